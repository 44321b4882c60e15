"""What the work queue of a kind asks the API server for: nothing while nothing happens, an object when it changed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from concerto.api.nodecputopology import Core, CPUPools, CPUTopology
from concerto.controllers.pinning.validation import PodCPUBindingController
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.reconciler import Reconciler
from concerto.kube import Reflector
from concerto.kube.events import EventRecorder
from concerto.kube.fair_places import FairPlaces
from concerto.kube.resources import POD_CPU_BINDINGS
from support.faulty_server import Faulty, faulty
from support.waiting import eventually

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

    async def __call__(self, request: web.Request) -> web.StreamResponse:
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


class Watched:
    """A reflector of a collection, and a work queue on it; changes are delivered by the test."""

    def __init__(self, server: Faulty, kept: Collection, reconcile: Any, **settings: float) -> None:
        self.kept = kept
        self.reflector = Reflector(server.session, POD_CPU_BINDINGS)
        self.queue = Reconciler(server.session, self.reflector, reconcile, Metrics(), **settings)
        self.deliver()

    def deliver(self) -> None:
        """The watch brings everything that has changed."""
        now = {("default", name): WHOSE | obj for name, obj in self.kept.objects.items()}
        before = dict(self.reflector.store)
        self.reflector.store.clear()
        self.reflector.store.update(now)
        for key in before.keys() | now.keys():
            if before.get(key) != now.get(key):
                self.queue.on_change(before.get(key), now.get(key))


async def when(server: Faulty, so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20), server.arrival:
        await server.arrival.wait_for(so)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_hour_without_news_costs_no_request():
    kept = Collection(answered("a", 0), binding("silent", 1), binding("podless", 2))
    pods = {
        ("default", name): {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"nodeName": "n"},
        }
        for name in ("a", "silent")
    }
    turns = asyncio.Queue[str]()
    async with faulty([kept]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        controller = PodCPUBindingController(
            server.session, recorder, pods, {("", "n"): TOPOLOGY}, patience_seconds=0.05
        )

        async def reconcile(key: tuple[str, str], obj: Object | None) -> float | None:
            turns.put_nowait(key[1])
            return await controller.reconcile(key, obj)

        watched = Watched(server, kept, reconcile, resync_seconds=0.05)  # in place of 300
        controller.mark = watched.queue.mark
        watched.queue.start()
        running = asyncio.create_task(watched.queue.run())
        settled = {"a": "Applied", "silent": "AgentNotSupported", "podless": "PodNotFound"}
        await when(server, lambda: kept.reasons() == settled)
        known = Counter(kept.asked)
        watched.deliver()
        await when(server, lambda: all(kept.asked[f"GET {name}"] > known[f"GET {name}"] for name in settled))
        before = Counter(kept.asked)
        while not turns.empty():
            turns.get_nowait()
        async with asyncio.timeout(20):
            looked_at = [await turns.get() for _ in range(12 * 3)]
        await stop(running)
    assert set(looked_at) == set(settled)
    assert kept.asked == before


async def served(happens: Callable[[Watched], None]) -> tuple[list[tuple[str, bool]], Counter[str]]:
    """Names in the order of their turns, and whether the object existed, after something happened."""
    kept = Collection(binding("a", 0), binding("b", 1))
    turns: list[tuple[str, bool]] = []
    done = asyncio.Event()

    async def reconcile(key: tuple[str, str], obj: Object | None) -> None:
        assert obj is None or WHOSE.items() <= obj.items()
        turns.append((key[1], obj is not None))
        if len(turns) == 2:
            done.set()

    async with faulty([kept]) as server:
        watched = Watched(server, kept, reconcile)
        happens(watched)
        running = asyncio.create_task(watched.queue.run())
        async with asyncio.timeout(20):
            await done.wait()
        await stop(running)
    return turns, kept.asked


def starts(watched: Watched) -> None:
    watched.queue.start()


def a_binding_goes_after_the_start(watched: Watched) -> None:
    watched.queue.start()
    watched.kept.objects.pop("b")
    watched.deliver()


def bindings_come_and_go_in_a_standby(watched: Watched) -> None:
    for number in range(1000):
        watched.kept.objects[f"gone-{number}"] = binding(f"gone-{number}", 2)
        watched.deliver()
        del watched.kept.objects[f"gone-{number}"]
        watched.deliver()
    watched.queue.start()


@pytest.mark.parametrize(
    ("happens", "turns", "asked"),
    [
        (starts, [("a", True), ("b", True)], {}),
        (a_binding_goes_after_the_start, [("b", False), ("a", True)], {"GET b": 1}),
        (bindings_come_and_go_in_a_standby, [("a", True), ("b", True)], {}),
    ],
    ids=["as the reflector has them", "what has changed comes first, and is read", "a standby collects no marks"],
)
async def test_what_changed_is_read_and_comes_before_what_did_not(happens, turns, asked):
    assert await served(happens) == (turns, asked)


class Turns:
    """Turns of keys; those of namespaces whose names begin with "stuck" hang until `release` is set."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.begun: list[tuple[str, str]] = []

    async def reconcile(self, key: tuple[str, str], obj: Object | None) -> None:
        self.begun.append(key)
        if key[0].startswith("stuck"):
            await self.release.wait()


async def test_an_object_whose_turn_hangs_keeps_those_of_its_namespace_waiting_and_no_others():
    async with faulty([Collection()]) as server:
        release, turns, ended = asyncio.Event(), [], []

        async def reconcile(key: tuple[str, str], obj: Object | None) -> None:
            turns.append(key)
            if key == ("stuck", "a"):
                await release.wait()
            ended.append(key)

        watched = Watched(server, Collection(), reconcile)
        watched.queue.start()
        for key in [("stuck", "a"), ("stuck", "b"), ("free", "c"), ("other", "d")]:
            watched.queue.mark(*key)
        running = asyncio.create_task(watched.queue.run())
        try:
            await eventually(lambda: len(turns) == 3)
            await asyncio.sleep(0.05)
            assert turns == [("stuck", "a"), ("free", "c"), ("other", "d")]
            release.set()
            await eventually(lambda: ended[2:] == [("stuck", "a"), ("stuck", "b")])
        finally:
            await stop(running)


async def test_however_many_namespaces_hang_another_one_has_its_turn_at_once():
    """Each held up all others for half a second, and the 33rd until one of them was given up."""
    async with faulty([Collection()]) as server:
        turns = Turns()
        watched = Watched(server, Collection(), turns.reconcile)
        watched.queue.start()
        watched.queue.mark("free", "a")
        running = asyncio.create_task(watched.queue.run())
        try:
            await eventually(lambda: turns.begun == [("free", "a")])
            for number in range(60):
                watched.queue.mark(f"stuck{number}", "a")
            await asyncio.sleep(0.2)
            marked_at = asyncio.get_running_loop().time()
            watched.queue.mark("free", "b")
            await eventually(lambda: turns.begun[-1] == ("free", "b"))
            assert asyncio.get_running_loop().time() - marked_at < 1.0
            turns.release.set()
            await eventually(lambda: len(turns.begun) == 62)
        finally:
            await stop(running)


async def test_what_has_changed_does_not_wait_for_the_regular_turns_of_all_namespaces():
    """One object in each of many namespaces: a change came after all of them."""
    async with faulty([Collection()]) as server:
        turns = list[tuple[str, str]]()

        async def reconcile(key: tuple[str, str], obj: Object | None) -> None:
            turns.append(key)
            await asyncio.sleep(0.02)

        watched = Watched(server, Collection(), reconcile)
        for number in range(300):
            obj = binding("regular", 0)
            obj["metadata"]["namespace"] = f"n{number}"
            watched.reflector.store[f"n{number}", "regular"] = obj
        watched.queue.start()
        running = asyncio.create_task(watched.queue.run())
        try:
            await eventually(lambda: len(turns) > 8)
            watched.queue.mark("n299", "changed")
            await eventually(lambda: len(turns) == 301)
            assert turns.index(("n299", "changed")) < 150
        finally:
            await stop(running)


async def test_regular_turns_that_wait_for_namespaces_that_hang_hold_up_no_others():
    async with faulty([Collection()]) as server:
        turns = Turns()
        watched = Watched(server, Collection(), turns.reconcile)
        watched.queue.start()
        running = asyncio.create_task(watched.queue.run())
        try:
            for name in [f"free{number}" for number in range(20)] + [f"stuck{number}" for number in range(12)]:
                watched.queue.mark(name, "a")
            await eventually(lambda: len(turns.begun) == 32)
            await asyncio.sleep(FairPlaces.LASTS_AFTER_SECONDS)
            watched.queue.mark("free0", "b")
            await eventually(lambda: watched.queue._places.hangs(["stuck11"]))
            for name in [f"stuck{number}" for number in range(12)] + [f"free{number}" for number in range(20)]:
                obj = binding("regular", 0)
                obj["metadata"]["namespace"] = name
                watched.reflector.store[name, "regular"] = obj
            watched.queue._queue_all()
            await eventually(lambda: ("free19", "regular") in turns.begun)
            turns.release.set()
            await eventually(lambda: len(turns.begun) == 65)
        finally:
            await stop(running)
