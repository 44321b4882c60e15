"""What probes and scrapes get, and what they cost."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.core import GaugeMetricFamily

from concerto.controllers.runtime.health import Endpoints, Health
from concerto.controllers.runtime.loop_watchdog import MAX_HELD_SECONDS, LoopWatchdog
from concerto.controllers.runtime.metrics import Metrics
from support.waiting import eventually


class Counted:
    """Counts how often metrics are rendered."""

    def __init__(self) -> None:
        self.renders = 0

    def collect(self):
        self.renders += 1
        yield GaugeMetricFamily("renders", "How often.", value=self.renders)


def client(endpoints: Endpoints) -> TestClient:
    app = web.Application()
    app.router.add_routes([*endpoints.routes(), endpoints.metrics_route()])
    return TestClient(TestServer(app))


async def test_metrics_are_rendered_at_most_once_a_second_however_often_they_are_read():
    metrics, counted, now = Metrics(), Counted(), [0.0]
    metrics.registry.register(counted)
    before = counted.renders
    async with client(Endpoints(metrics, Health(), lambda: now[0])) as asked:
        for _ in range(50):
            assert (await asked.get("/metrics")).status == 200
        assert counted.renders - before == 1
        now[0] = 1.0
        assert f"renders {before + 2}.0" in await (await asked.get("/metrics")).text()


async def test_a_probe_fails_with_what_is_wrong():
    health = Health(alive={"tasks": lambda: None}, ready={"nodes": lambda: "not listed yet", "pods": lambda: None})
    async with client(Endpoints(Metrics(), health)) as asked:
        assert (await asked.get("/healthz")).status == 200
        answer = await asked.get("/readyz")
        assert (answer.status, await answer.text()) == (503, "nodes: not listed yet")


async def test_the_watchdog_measures_what_holds_the_loop():
    metrics = Metrics()
    watchdog = LoopWatchdog(metrics)
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0.05)
    until = time.thread_time() + MAX_HELD_SECONDS + 0.1
    while time.thread_time() < until:
        pass  # a callback that computes
    await eventually(lambda: watchdog._max_held > MAX_HELD_SECONDS)
    running.cancel()
    text = metrics.render().decode()
    assert float(text.split("\nconcerto_event_loop_max_held_seconds ")[1].split()[0]) > MAX_HELD_SECONDS


def test_a_loop_that_does_not_come_back_is_not_alive(monkeypatch):
    watchdog = LoopWatchdog(Metrics())
    assert watchdog.problem() is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31.0)
    assert watchdog.problem() == "the event loop has been held for 31 s"
