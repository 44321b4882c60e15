"""What the work queue of a kind asks the API server for: lists while nothing happens, an object when something has."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aiohttp import web

from concerto.api.nodecputopology import Core, CPUPools, CPUTopology
from concerto.controllers.pinning.validation import PodCPUBindingController
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.reconciler import Reconciler
from concerto.kube.events import EventRecorder
from concerto.kube.resources import POD_CPU_BINDINGS
from support.faulty_server import Faulty, faulty

NOW = "2026-03-01T12:00:00Z"
FOUR = CPUTopology(tuple(Core(0, n, frozenset({n})) for n in range(4)), {0: frozenset(range(4))})
TOPOLOGY = {
    "metadata": {"name": "n"},
    "spec": {"nodeName": "n"},
    "status": {"topology": FOUR.to_raw(), "pools": CPUPools(shared=FOUR.cpus).to_raw()},
}
Object = dict[str, Any]
WHOSE = {"apiVersion": "concerto.dev/v1alpha1", "kind": "PodCPUBinding"}
"""Said of an object by itself, and left out of lists."""


def binding(name: str, cpu: int) -> Object:
    metadata = {"name": name, "namespace": "default", "uid": name, "generation": 1, "creationTimestamp": NOW}
    return {"metadata": metadata, "spec": {"podName": name, "cpuSet": [{"cpuID": cpu}]}}


def answered(name: str, cpu: int) -> Object:
    """One that its node's agent has applied."""
    conditions = [
        {"type": kind, "status": "True", "reason": "Applied", "message": "", "observedGeneration": 1}
        for kind in ("Prepared", "Applied")
    ]
    applied = {"podUID": f"uid-{name}", "cpus": str(cpu), "mems": "0"}
    return binding(name, cpu) | {"status": {"applied": applied, "conditions": conditions}}


class Collection:
    """What the API server keeps of one kind, and what it was asked."""

    def __init__(self, *objects: Object) -> None:
        self.objects = {o["metadata"]["name"]: o for o in objects}
        self.asked: Counter[str] = Counter()
        self.on_list: Callable[[], None] = lambda: None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path == POD_CPU_BINDINGS.path():
            self.asked["list"] += 1
            items = list(self.objects.values())
            self.on_list()
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        name = request.path.split("/podcpubindings/")[1].split("/")[0]
        self.asked[f"{request.method} {name}"] += 1
        found = self.objects.get(name)
        if found is None:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.method == "PATCH":
            before, own = found.get("status") or {}, json.loads(await request.read())["status"]
            kinds = {c["type"] for c in own["conditions"]}
            others = [c for c in before.get("conditions", ()) if c["type"] not in kinds]
            found = self.objects[name] = found | {"status": before | own | {"conditions": own["conditions"] + others}}
        return web.json_response(WHOSE | found)

    def reasons(self) -> dict[str, str]:
        """Of the conditions Ready."""
        conditions = {name: (o.get("status") or {}).get("conditions", ()) for name, o in self.objects.items()}
        return {name: c["reason"] for name, all_ in conditions.items() for c in all_ if c["type"] == "Ready"}


async def when(server: Faulty, so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20), server.arrival:
        await server.arrival.wait_for(so)


def reconciler(server: Faulty, reconcile: Any, **settings: float) -> Reconciler:
    return Reconciler(server.session, POD_CPU_BINDINGS, reconcile, Metrics(), **settings)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_hour_without_news_costs_twelve_lists_and_nothing_for_each_binding():
    kept = Collection(answered("a", 0), binding("silent", 1), binding("podless", 2))
    pods = {
        ("default", name): {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"nodeName": "n"},
        }
        for name in ("a", "silent")
    }
    async with faulty([kept]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        controller = PodCPUBindingController(
            server.session, recorder, pods, {("", "n"): TOPOLOGY}, patience_seconds=0.05
        )
        queue = reconciler(server, controller.reconcile, resync_seconds=0.05)  # in place of 300
        controller.mark = queue.mark
        running = asyncio.create_task(queue.run())
        settled = {"a": "Applied", "silent": "AgentNotSupported", "podless": "PodNotFound"}
        await when(server, lambda: kept.reasons() == settled)
        begin = kept.asked["list"] + 1  # the first list that shows all of it
        await when(server, lambda: kept.asked["list"] >= begin)
        before = Counter(kept.asked)
        await when(server, lambda: kept.asked["list"] >= begin + 12)
        await stop(running)
    assert set(kept.asked - before) == {"list"}


async def seen_by(
    happens: Callable[[Collection, Reconciler], None],
) -> tuple[list[tuple[str, bool]], Mapping[str, int]]:
    """Names that are looked at, and whether the object is there, after something happens in the middle of a list."""
    kept = Collection(binding("a", 0), binding("b", 1))
    looked_at: list[tuple[str, bool]] = []
    done = asyncio.Event()

    async def reconcile(key: tuple[str, str], obj: Object | None) -> None:
        assert obj is None or WHOSE.items() <= obj.items()
        looked_at.append((key[1], obj is not None))
        if len(looked_at) == 2:
            done.set()

    async with faulty([kept]) as server:
        queue = reconciler(server, reconcile)
        kept.on_list = lambda: happens(kept, queue)
        running = asyncio.create_task(queue.run())
        async with asyncio.timeout(20):
            await done.wait()
        await stop(running)
    return sorted(looked_at), kept.asked


def nothing(kept: Collection, queue: Reconciler) -> None:
    return


def ends(kept: Collection, queue: Reconciler) -> None:
    """One is deleted after the list was read, and that is heard before the list has come."""
    kept.objects.pop("a", None)
    queue.mark("default", "a")


@pytest.mark.parametrize(
    ("happens", "looked_at", "asked"),
    [
        (nothing, [("a", True), ("b", True)], {"list": 1}),
        (ends, [("a", False), ("b", True)], {"list": 1, "GET a": 1}),
    ],
    ids=["as listed", "what is heard of while the list comes is asked for"],
)
async def test_a_listed_object_is_looked_at_as_it_was_listed_unless_there_is_news(happens, looked_at, asked):
    assert await seen_by(happens) == (looked_at, asked)
