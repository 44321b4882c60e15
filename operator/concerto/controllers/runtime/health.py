"""Whether the process is well, for the kubelet's probes, and the routes of its HTTP endpoints."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from concerto.controllers.runtime.metrics import Metrics
from concerto.serving.authorized import Judge, authorized

Check = Callable[[], str | None]
"""Returns None when all is well, else what is wrong, in words. Called in the thread that serves HTTP."""

_RENDER_AGAIN_SECONDS = 1.0
"""/metrics is rendered at most that often: with thousands of series it takes tens of milliseconds of CPU."""


@dataclass
class Health:
    """Whether the process is well (liveness) and knows enough to work or to stand by (readiness).

    Attributes:
        alive: liveness checks by name.
        ready: readiness checks by name.
    """

    alive: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)


class Endpoints:
    """Answers /metrics, /healthz and /readyz."""

    def __init__(self, metrics: Metrics, health: Health, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was rendered yet."""
        self._metrics = metrics
        self._health = health
        self._clock = clock
        self._rendered = b""
        self._rendered_at = float("-inf")

    def routes(self) -> list[web.RouteDef]:
        """The probes."""
        return [web.get("/healthz", _probe(self._health.alive)), web.get("/readyz", _probe(self._health.ready))]

    def metrics_route(self, judge: Judge | None = None) -> web.RouteDef:
        """/metrics, for the callers that the judge lets through; None: for everybody."""
        return web.get("/metrics", self._render if judge is None else authorized(self._render, judge))

    async def _render(self, _: web.Request) -> web.Response:
        now = self._clock()
        if now - self._rendered_at >= _RENDER_AGAIN_SECONDS:
            self._rendered, self._rendered_at = self._metrics.render(), now
        return web.Response(body=self._rendered, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _probe(checks: dict[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = [f"{name}: {problem}" for name, check in list(checks.items()) if (problem := check()) is not None]
        return web.Response(text="\n".join(wrong) or "ok", status=503 if wrong else 200)

    return answer
