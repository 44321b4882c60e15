"""Whether the process is well, for the kubelet's probes, and the server of its HTTP endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from concerto.controllers.runtime.metrics import Metrics

Check = Callable[[], str | None]
"""Returns None when all is well, else what is wrong, in words."""


@dataclass
class Health:
    """Whether the process is well (liveness) and knows enough to work or to stand by (readiness).

    Attributes:
        alive: liveness checks by name.
        ready: readiness checks by name.
    """

    alive: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)


async def serve(bind: str, metrics: Metrics, health: Health, routes: Iterable[web.RouteDef] = ()) -> web.AppRunner:
    """Serve /metrics, /healthz, /readyz and more on ``host:port``; the caller cleans the runner up."""

    async def render(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", render)
    app.router.add_get("/healthz", _probe(health.alive))
    app.router.add_get("/readyz", _probe(health.ready))
    app.router.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = bind.rpartition(":")
    await web.TCPSite(runner, host or "0.0.0.0", int(port)).start()
    return runner


def _probe(checks: dict[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = [f"{name}: {problem}" for name, check in checks.items() if (problem := check()) is not None]
        return web.Response(text="\n".join(wrong) or "ok", status=503 if wrong else 200)

    return answer
