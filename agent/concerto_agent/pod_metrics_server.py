"""Serves `pod_metrics` over TLS to those whom the API server knows and allows.

The certificate is made at each start, in memory only; its fingerprint goes into NodeCapacity.status, where callers find
it. A caller's token is checked by TokenReview, for this node's audience or that of all agents (so that a token given to
an agent opens nothing else), and its right by SubjectAccessReview: ``get`` on ``nodecapacities/metrics`` of this node.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from concerto.api.nodecapacity import METRICS_AUDIENCE, MetricsEndpoint, metrics_audience
from concerto.kube import KubeError, Session
from concerto.kube.resources import NODE_CAPACITIES
from concerto.serving.connection_limiter import ConnectionLimiter, ConnectionLimits
from concerto_agent.certificate import Certificate
from concerto_agent.pod_metrics import PodMetrics

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

PATH = "/metrics/resource"
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True)
class CallerSettings:
    """How callers are checked.

    Attributes:
        allowed_seconds: a caller that was allowed is not asked about again for so long.
        refused_seconds: the same for one that was refused.
        remembered: callers that are remembered.
        review_timeout_seconds: for each of the two questions to the API server.
    """

    allowed_seconds: float = 60.0
    refused_seconds: float = 10.0
    remembered: int = 64
    review_timeout_seconds: float = 5.0


@dataclass(frozen=True)
class Verdict:
    """What a caller gets: an HTTP status and, unless it is 200, why."""

    status: int
    reason: str = ""


class Callers:
    """Who may read this node's pod metrics: the API server's to say."""

    def __init__(
        self,
        session: Session,
        node_name: str,
        settings: CallerSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody is known yet."""
        self._session = session
        self._node_name = node_name
        self._settings = settings or CallerSettings()
        self._clock = clock
        self._known: dict[str, tuple[float, Verdict]] = {}
        # One question at a time: strangers with ever new tokens cost the API server no more than that
        self._asking = asyncio.Lock()

    async def judge(self, authorization: str | None) -> Verdict:
        """The verdict on a caller.

        Args:
            authorization: its header ``Authorization``.
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or not token.isascii():
            return Verdict(401, "a bearer token is needed")
        key = hashlib.sha256(token.encode()).hexdigest()
        if (known := self._recall(key)) is not None:
            return known
        async with self._asking:
            if (known := self._recall(key)) is not None:
                return known
            try:
                verdict = await self._ask(token)
            except (KubeError, KeyError, TypeError) as error:
                return Verdict(503, f"the API server did not answer who may read: {error}")
            settings = self._settings
            seconds = settings.allowed_seconds if verdict.status == 200 else settings.refused_seconds
            while len(self._known) >= settings.remembered:
                # Strangers with ever new tokens do not push out those who may read
                refused = (k for k, (_, known) in self._known.items() if known.status != 200)
                del self._known[next(refused, None) or next(iter(self._known))]
            self._known[key] = (self._clock() + seconds, verdict)
        return verdict

    def _recall(self, key: str) -> Verdict | None:
        until, verdict = self._known.get(key, (float("-inf"), None))
        if self._clock() < until:
            return verdict
        self._known.pop(key, None)
        return None

    async def _ask(self, token: str) -> Verdict:
        audiences = [metrics_audience(self._node_name), METRICS_AUDIENCE]
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        }
        said = (await self._create(_TOKEN_REVIEWS, review))["status"]
        # The audience is to be looked at here: an authenticator that knows of none accepts any
        if not said.get("authenticated") or not set(audiences) & set(said.get("audiences") or ()):
            return Verdict(401, f"the token is not valid for audience {audiences[0]}")
        user = said["user"]
        access = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user["username"],
                **{k: user[k] for k in ("uid", "groups", "extra") if user.get(k)},
                "resourceAttributes": {
                    "group": NODE_CAPACITIES.group,
                    "version": NODE_CAPACITIES.version,
                    "resource": NODE_CAPACITIES.plural,
                    "subresource": "metrics",
                    "name": self._node_name,
                    "verb": "get",
                },
            },
        }
        if (await self._create(_ACCESS_REVIEWS, access))["status"].get("allowed") is True:
            return Verdict(200)
        return Verdict(403, f"{user['username']} may not get nodecapacities/metrics of {self._node_name}")

    async def _create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._session.create(path, body, timeout_seconds=self._settings.review_timeout_seconds)


async def serve(
    bind: str, metrics: PodMetrics, callers: Callers, certificate: Certificate, settings: ConnectionLimits | None = None
) -> tuple[web.AppRunner, MetricsEndpoint]:
    """Serve; the caller cleans the runner up.

    Args:
        bind: ``host:port``; port 0 takes a free one.
        metrics: what is served.
        callers: to whom.
        certificate: as whom.
        settings: how many at a time.

    Returns:
        The runner, and where it serves: without an address where that is any of the node's.
    """
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        verdict = await callers.judge(request.headers.get("Authorization"))
        if verdict.status != 200:
            refusal = web.Response(status=verdict.status, text=verdict.reason)
            refusal.force_close()  # a stranger who tries again pays for another handshake, and waits for it
            return refusal
        return web.Response(text=metrics.text())

    app = web.Application()
    app.router.add_get(PATH, answer)
    # Whoever goes away no longer waits for a verdict
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    settings = settings or ConnectionLimits()
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or "0.0.0.0", int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(settings.queue)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise

    async def shut(_: web.Application) -> None:
        limiter.cancel()

    app.on_shutdown.append(shut)
    await runner.setup()
    assert runner.server is not None, "starting"
    limiter = asyncio.ensure_future(ConnectionLimiter(runner.server, listener, certificate.context, settings).run())
    served = listener.getsockname()[1]
    return runner, MetricsEndpoint(served, certificate.sha256, "" if host in ("", "0.0.0.0", "::") else host)
