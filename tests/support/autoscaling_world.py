"""An API server of gadgets for tests of the PredictiveHPA controller: scales, external metrics, statuses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from concerto.controllers.autoscaling.controller import AutoscaledKinds, PredictiveHPAController
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import PrometheusServer
from concerto.controllers.runtime.context import Context
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.watched_kinds import FollowedKind
from concerto.kube.events import EventRecorder
from support.faulty_server import Answer, faulty, refuses, says

NOW = 1_772_366_400.0
GADGETS = {"resources": [{"name": "gadgets", "kind": "Gadget", "namespaced": True}]}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def scale(replicas: int = 2, uid: str = "u", version: str = "1") -> dict[str, Any]:
    return {
        "kind": "Scale",
        "metadata": {"namespace": "n", "name": "web", "uid": uid, "resourceVersion": version},
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "selector": "app=web"},
    }


def phpa(name: str, metric: str = "requests", **prediction: Any) -> dict[str, Any]:
    external = {"metric": {"name": metric}, "target": {"type": "AverageValue", "averageValue": "1"}}
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PredictiveHPA",
        "metadata": {"namespace": "n", "name": name, "uid": name, "generation": 1, "resourceVersion": "1"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "x.dev/v1", "kind": "Gadget", "name": name},
            "minReplicas": 0,
            "maxReplicas": 9,
            "metrics": [{"type": "External", "external": external}],
            "prediction": prediction,
        },
    }


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    base = dict(old) if isinstance(old, dict) else {}
    whole = base | {k: merged(base.get(k), v) for k, v in patch.items()}
    return {k: v for k, v in whole.items() if patch.get(k, v) is not None}


class World:
    """An API server of gadgets, each of two replicas, and external metrics that a test answers.

    Attributes:
        metrics: what is answered about each metric.
        scaled: replicas asked for, by gadget.
        statuses: the latest status of each object.
        looks: how often each was written.
        taken: set once a scale was written.
        dies_here: a scale that is taken is answered only then.
        selector: of all gadgets.
        reservations: how many were asked for.
        refuses_scales: none can be written.
        scale_asked: set once a scale is asked for, which is answered only with `scale_answers`.
        stuck: objects whose statuses are not answered before `unstuck`.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, Answer] = {}
        self.scaled: dict[str, int] = {}
        self.statuses: dict[str, dict[str, Any]] = {}
        self.looks: Counter[str] = Counter()
        self.taken = asyncio.Event()
        self.dies_here: asyncio.Event | None = None
        self.selector = "app=web"
        self.reservations = 0
        self.refuses_scales = False
        self.scale_asked: asyncio.Event | None = None
        self.scale_answers = asyncio.Event()
        self.stuck: set[str] = set()
        self.unstuck = asyncio.Event()
        self.news = asyncio.Condition()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts[1] == "x.dev":
            if parts[-1] == "scale":
                if request.method == "GET" and self.scale_asked:
                    self.scale_asked.set()
                    await self.scale_answers.wait()
                if request.method == "PUT" and self.refuses_scales:
                    return await refuses(422, "Invalid")(request)
                if request.method == "PUT":
                    self.scaled[parts[-2]] = (await request.json())["spec"]["replicas"]
                    self.taken.set()
                    if self.dies_here:
                        await self.dies_here.wait()
                found = scale(self.scaled.get(parts[-2], 2))
                found["status"]["selector"] = self.selector
                return await says(200, found)(request)
            group = {"preferredVersion": {"version": "v1"}}
            return await says(200, group if parts[-1] == "x.dev" else GADGETS)(request)
        if parts[1] == "external.metrics.k8s.io":
            return await self.metrics[parts[-1]](request)
        if parts[-1] == "podreservations" and request.method == "POST":
            self.reservations += 1
        if parts[-2] == "predictivehpas" and request.method == "GET":
            return await says(200, {"metadata": {"uid": parts[-1], "resourceVersion": self.version(parts[-1])}})(
                request
            )
        if parts[-1] == "status":
            if parts[-2] in self.stuck:
                await self.unstuck.wait()
            body = await request.json()
            if body["metadata"].get("resourceVersion") != self.version(parts[-2]):
                return await refuses(409, "Conflict")(request)
            self.statuses[parts[-2]] = merged(self.statuses.get(parts[-2]), body["status"])
            self.looks[parts[-2]] += 1
            async with self.news:
                self.news.notify_all()
            metadata = {"resourceVersion": self.version(parts[-2])}
            return await says(200, {"metadata": metadata, "status": self.statuses[parts[-2]]})(request)
        return await refuses(404, "NotFound")(request)

    def version(self, name: str) -> str:
        """The resourceVersion of an object, which each write of its status raises."""
        return str(self.looks[name] + 1)

    async def seen(self, name: str, times: int = 1) -> dict[str, Any]:
        """The status of an object, once it was written so often."""
        async with asyncio.timeout(20), self.news:
            await self.news.wait_for(lambda: self.looks[name] >= times)
        return self.statuses[name]

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        found = next(c for c in self.statuses[name]["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]


def load(value: object) -> Answer:
    return says(200, {"items": [{"value": value, "timestamp": None}]})


@asynccontextmanager
async def autoscaling(
    world: World, clock: Clock, may_write: Callable[[], bool] = lambda: True, **settings: Any
) -> AsyncIterator[PredictiveHPAController]:
    async with faulty([world]) as server:
        recorder = EventRecorder(server.session, "c", "i")
        prometheus = PrometheusServer(server.session.config.server)
        settings = {"batch_seconds": 0.05, "metrics_timeout_seconds": 20.0, "prometheus": prometheus} | settings
        context = Context(server.session, "concerto-system", recorder, Metrics(), clock, may_write)
        kinds = AutoscaledKinds.followed_by(partial(FollowedKind, server.session))
        made = PredictiveHPAController(context, kinds, PredictiveHPASettings(**settings))
        try:
            yield made
        finally:
            for task in made._tasks:
                task.cancel()
            await asyncio.gather(*made._tasks, return_exceptions=True)
