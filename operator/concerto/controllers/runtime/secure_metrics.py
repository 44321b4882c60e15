"""/metrics over TLS, for callers whose token the API server knows and allows to get it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from concerto.controllers.runtime.health import Endpoints
from concerto.kube import ClusterConfig, Session
from concerto.kube.access_review import READ_METRICS, AccessReviewer, Verdict
from concerto.serving.certificate import make_certificate
from concerto.serving.http_server import HttpServer


class _Access:
    """Asks over a connection of its own, on the event loop that serves: scrapes and the rest do not share any."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._reviewer: AccessReviewer | None = None

    async def lifespan(self, _: object) -> AsyncIterator[None]:
        async with await Session.open(self._config) as session:
            self._reviewer = AccessReviewer(session, READ_METRICS)
            yield

    async def judge(self, authorization: str | None) -> Verdict:
        assert self._reviewer is not None, "open as long as the server runs"
        return await self._reviewer.judge(authorization)


def secure_metrics_server(bind: str, endpoints: Endpoints, config: ClusterConfig) -> HttpServer:
    """A server of /metrics with a certificate that is new at each start.

    Args:
        bind: ``host:port``.
        endpoints: answers /metrics.
        config: connection to the API server.

    Raises:
        OSError: the address can't be bound.
        CertificateError: no certificate could be made.
    """
    access = _Access(config)
    routes = [endpoints.metrics_route(access.judge)]
    return HttpServer(bind, routes, tls=make_certificate().context, lifespans=[access.lifespan])
