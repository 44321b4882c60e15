"""Serves `pod_metrics` over TLS to those whom the API server knows and allows.

The certificate is made at each start, in memory only; its fingerprint goes into NodeCapacity.status, where callers find
it. A caller's token is checked by TokenReview, for this node's audience or that of all agents (so that a token given to
an agent opens nothing else), and its right by SubjectAccessReview: ``get`` on ``nodecapacities/metrics`` of this node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from concerto.api.nodecapacity import METRICS_AUDIENCE, MetricsEndpoint, metrics_audience
from concerto.kube.access_review import AccessReviewer, Right
from concerto.kube.resources import NODE_CAPACITIES
from concerto.serving.certificate import Certificate
from concerto.serving.connection_limiter import ConnectionLimits
from concerto_agent.pod_metrics import PodMetrics

if TYPE_CHECKING:
    from concerto.serving.http_server import HttpServer

PATH = "/metrics/resource"
_LIMITS = ConnectionLimits(keep_alive_seconds=3630.0)
"""The autoscaler asks every 15 s: its connection stays open, and it needs no handshake for each answer."""


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
    settings: ConnectionLimits = _LIMITS,
) -> tuple[HttpServer, MetricsEndpoint]:
    """Serve; the caller cleans the server up.

    Args:
        bind: ``host:port``; port 0 takes a free one.
        metrics: what is served.
        callers: to whom.
        certificate: as whom.
        settings: how many at a time.

    Returns:
        The server, and where it serves: without an address where that is any of the node's.
    """
    from aiohttp import web

    from concerto.serving.authorized import authorized
    from concerto.serving.http_server import HttpServer

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=metrics.text())

    route = web.get(PATH, authorized(answer, callers.judge))
    server = HttpServer(bind, [route], settings, tls=certificate.context)
    await server.start()
    host = bind.rpartition(":")[0].strip("[]")
    address = "" if host in ("", "0.0.0.0", "::") else host
    return server, MetricsEndpoint(server.port, certificate.sha256, address)
