"""Serves `pod_metrics` over TLS to those whom the API server knows and allows.

The certificate is made at each start, in memory only; its fingerprint goes into NodeCapacity.status, where callers find
it. A caller's token is checked by TokenReview, for this node's audience or that of all agents (so that a token given to
an agent opens nothing else), and its right by SubjectAccessReview: ``get`` on ``nodecapacities/metrics`` of this node.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from concerto.api.nodecapacity import METRICS_AUDIENCE, MetricsEndpoint, metrics_audience
from concerto.kube.access_review import AccessReviewer, Right
from concerto.kube.resources import NODE_CAPACITIES
from concerto.serving.certificate import Certificate
from concerto.serving.connection_limiter import ConnectionLimiter, ConnectionLimits
from concerto_agent.pod_metrics import PodMetrics

if TYPE_CHECKING:
    from aiohttp import web

PATH = "/metrics/resource"


def read_pod_metrics(node_name: str) -> Right:
    """The right to read the metrics of this node's pods."""
    attributes = {
        "group": NODE_CAPACITIES.group,
        "version": NODE_CAPACITIES.version,
        "resource": NODE_CAPACITIES.plural,
        "subresource": "metrics",
        "name": node_name,
        "verb": "get",
    }
    return Right(
        {"resourceAttributes": attributes},
        f"get nodecapacities/metrics of {node_name}",
        (metrics_audience(node_name), METRICS_AUDIENCE),
    )


async def serve(
    bind: str,
    metrics: PodMetrics,
    callers: AccessReviewer,
    certificate: Certificate,
    settings: ConnectionLimits | None = None,
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

    from concerto.serving.authorized import authorized
    from concerto.serving.http_server import close_unless_ok, request_logger

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=metrics.text())

    app = web.Application(middlewares=[close_unless_ok])
    app.router.add_get(PATH, authorized(answer, callers.judge))
    # Whoever goes away no longer waits for a verdict
    runner = web.AppRunner(app, access_log=None, logger=request_logger(), handler_cancellation=True)
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
