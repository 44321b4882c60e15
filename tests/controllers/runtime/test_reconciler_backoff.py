"""How often the work queue of a kind tries what the API server refuses, and what makes it try sooner."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from concerto.api.nodecputopology import Core, CPUPools, CPUTopology
from concerto.controllers.pinning.validation import PodCPUBindingController
from concerto.controllers.runtime import reconciler
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.reconciler import Key, Reconciler
from concerto.kube import KubeError, Reflector, TooManyRequests
from concerto.kube.events import EventRecorder
from concerto.kube.resources import POD_CPU_BINDINGS
from concerto.kube.status_writes import StatusChanged
from support.faulty_server import faulty, refuses, says
from support.waiting import eventually

Object = dict[str, Any]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
A, B = ("default", "a"), ("default", "b")
REFUSED = refuses(403, "Forbidden", message='admission webhook "w" denied the request')
FOUR = CPUTopology(tuple(Core(0, n, frozenset({n})) for n in range(4)), {0: frozenset(range(4))})
TOPOLOGY = {
    "metadata": {"name": "n"},
    "spec": {"nodeName": "n"},
    "status": {"topology": FOUR.to_raw(), "pools": CPUPools(shared=FOUR.cpus).to_raw()},
}


def binding(name: str, cpu: int, **metadata: object) -> Object:
    known = {"name": name, "namespace": "default", "uid": name, "generation": 1, "resourceVersion": "1"}
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodCPUBinding",
        "metadata": {**known, "creationTimestamp": "2026-03-01T12:00:00Z", **metadata},
        "spec": {"podName": name, "cpuSet": [{"cpuID": cpu}]},
    }


def pod_of(key: Key) -> Object:
    return {"metadata": {"name": key[1], "namespace": "default", "uid": f"uid-{key[1]}"}, "spec": {"nodeName": "n"}}


class Queue:
    """A work queue whose reconcile fails for the names that say so."""

    def __init__(self, session: Any, *failing: str, recorder: EventRecorder | None = None) -> None:
        self.failing = set(failing)
        self.error = KubeError("refused")
        self.turns: Counter[str] = Counter()
        self.reflector = Reflector(session, POD_CPU_BINDINGS)
        for name in "ab":
            self.reflector.store["default", name] = binding(name, 0)
        self.during = lambda key: None
        self.made = Reconciler(session, self.reflector, self._reconcile, Metrics(), recorder=recorder)

    async def _reconcile(self, key: Key, obj: Object | None) -> None:
        self.turns[key[1]] += 1
        self.during(key)
        if key[1] in self.failing:
            raise self.error

    async def run_for(self, seconds: float) -> None:
        running = asyncio.create_task(self.made.run())
        try:
            await asyncio.sleep(seconds)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_however_often_a_key_that_backs_off_changes_it_is_tried_once_in_a_while(monkeypatch):
    monkeypatch.setattr(reconciler, "_CHANGED_SECONDS", 0.2)
    async with faulty([says(200, {})]) as server:
        queue = Queue(server.session, "a")
        queue.made.start()

        async def change() -> None:
            while True:
                queue.made.mark(*A)
                await asyncio.sleep(0)

        changing = asyncio.create_task(change())
        await queue.run_for(0.9)
        changing.cancel()
    assert 3 <= queue.turns["a"] <= 5
    assert queue.turns["b"] == 1


async def test_a_key_that_changes_during_each_of_its_turns_backs_off_too():
    async with faulty([says(200, {})]) as server:
        queue = Queue(server.session, "a")
        queue.during = lambda key: queue.made.mark(*key) if key == A else None
        queue.made.start()
        await queue.run_for(0.4)
    assert queue.turns["a"] <= 2, "the wait after the first failure is 0.5 s"
    assert queue.turns["b"] == 1


async def test_a_key_backs_off_during_its_turns_too_which_may_last_for_minutes():
    """Otherwise a regular pass marks it during each turn that hangs, and it never waits for more than a second."""
    found: list[bool] = []
    async with faulty([says(200, {})]) as server:
        queue = Queue(server.session, "a")
        queue.during = lambda key: found.append(queue.made.backs_off(*key)) if key == A else None
        queue.made.start()
        await queue.run_for(0.7)
    assert found == [False, True]


async def test_a_change_is_tried_before_the_wait_is_over(monkeypatch):
    monkeypatch.setattr(reconciler, "_CHANGED_SECONDS", 0.05)
    async with faulty([says(200, {})]) as server:
        queue = Queue(server.session, "a")
        queue.made.start()
        running = asyncio.create_task(queue.made.run())
        await eventually(lambda: queue.made.backs_off(*A))
        queue.failing.clear()
        queue.made.mark(*A)
        changed_at = asyncio.get_running_loop().time()
        due_at = queue.made._later[A].when()
        assert due_at < changed_at + 0.1, "the wait after the first failure is 0.5 s"
        await eventually(lambda: queue.turns["a"] == 2)
        assert not queue.made.backs_off(*A)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_key_is_not_tried_sooner_than_the_api_server_asks_for_even_if_it_changes(monkeypatch):
    monkeypatch.setattr(reconciler, "_CHANGED_SECONDS", 0.05)
    async with faulty([says(200, {})]) as server:
        queue = Queue(server.session, "a")
        queue.error = TooManyRequests(429, "TooManyRequests", "busy", retry_after=1.2)
        queue.during = lambda key: queue.made.mark(*key) if key == A else None
        queue.made.start()
        running = asyncio.create_task(queue.made.run())
        await eventually(lambda: queue.made.backs_off(*A))
        for _ in range(9):
            queue.made.mark(*A)
            await asyncio.sleep(0.1)
        assert queue.turns["a"] == 1
        await eventually(lambda: queue.turns["a"] == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("sooner", [True, False], ids=["the watch comes first", "the answer comes first"])
async def test_a_status_that_is_changed_in_another_way_at_each_write_is_written_less_and_less_often(sooner):
    """It was written without pause: each write was a change of the object."""
    async with faulty([says(200, {})]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        queue = Queue(server.session, "a", recorder=recorder)
        loop = asyncio.get_running_loop()

        def write(key: Key) -> None:
            if key != A:
                return
            before = queue.reflector.store[A]
            metadata = before["metadata"] | {"resourceVersion": str(1 + int(before["metadata"]["resourceVersion"]))}
            queue.error = StatusChanged(written := before | {"metadata": metadata}, ["phase"])

            def watch() -> None:
                queue.reflector.store[A] = written
                queue.made.on_change(before, written)

            watch() if sooner else loop.call_later(0.02, watch)

        queue.during = write
        queue.made.start()
        running = asyncio.create_task(queue.made.run())
        await asyncio.sleep(1.2)
        assert queue.turns["a"] == 2, "at once, and 0.5 s later; then 1 s later"
        assert [each.event["reason"] for each in recorder._series.values()] == ["StatusChanged"]
        queue.during = lambda key: None
        newer = queue.reflector.store[A]
        newer = newer | {"metadata": newer["metadata"] | {"resourceVersion": "99"}}
        queue.failing.clear()
        queue.made.on_change(queue.reflector.store[A], newer)
        assert queue.made._later[A].when() <= loop.time() + 1.0, "somebody has changed the object"
        await eventually(lambda: not queue.made.backs_off(*A))
        assert not queue.made._stored
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_failure_in_the_turn_of_another_is_no_reason_to_try_at_once():
    async with faulty([says(200, {})]) as server:
        queue = Queue(server.session, "a", "b")
        queue.during = lambda key: queue.made.back_off(*(B if key == A else A), queue.error)
        queue.made.start()
        await queue.run_for(0.4)
    assert max(queue.turns.values()) <= 2


async def test_what_has_failed_in_the_turn_of_another_has_a_turn_of_its_own_after_a_wait():
    async with faulty([says(200, {})]) as server:
        queue = Queue(server.session)
        queue.made.start()
        running = asyncio.create_task(queue.made.run())
        await eventually(lambda: queue.turns == {"a": 1, "b": 1})
        queue.made.back_off(*A, queue.error)
        assert queue.made.backs_off(*A)
        await eventually(lambda: queue.turns == {"a": 2, "b": 1})
        assert not queue.made.backs_off(*A)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_bindings_of_one_node_whose_statuses_are_all_refused_are_tried_once_each():
    """Two were tried 1,200 times a second: a failure of one in the turn of the other ended its wait."""
    objects = {("default", f"b{number}"): binding(f"b{number}", number) for number in range(4)}
    writes: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.path.split("/podcpubindings/")[1].split("/")[0]
        if request.method == "GET":
            return web.json_response(objects["default", name])
        writes[name] += 1
        return await REFUSED(request)

    pods = {key: pod_of(key) for key in objects}
    async with faulty([answer]) as server:
        reflector = Reflector(server.session, POD_CPU_BINDINGS)
        reflector.store.update(objects)
        recorder = EventRecorder(server.session, component="c", instance="i")
        made = PodCPUBindingController(server.session, recorder, pods, {("", "n"): TOPOLOGY})
        queue = Reconciler(server.session, reflector, made.reconcile, Metrics())
        made.mark, made.back_off = queue.mark, queue.back_off
        made.load(objects.values())
        queue.start()
        running = asyncio.create_task(queue.run())
        await eventually(lambda: len(writes) == 4)
        await asyncio.sleep(0.4)  # before the wait after the first failure is over
        assert writes.total() <= 2 * 4
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def two_that_want_the_same_cpu(
    answer: Answer, statuses: dict[str, str]
) -> AsyncIterator[tuple[PodCPUBindingController, dict[Key, Object], Object]]:
    """A controller, the pods of bindings a and b, and a, which has the CPU; ``answer`` notes what is written."""
    pods = {key: pod_of(key) for key in (A, B)}
    first, second = (binding(name, 0) for name in "ab")
    for each in (first, second):
        each["spec"]["exclusivenessLevel"] = "CPU"
    second["metadata"]["creationTimestamp"] = "2026-03-01T12:00:01Z"
    async with faulty([answer]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        made = PodCPUBindingController(server.session, recorder, pods, {("", "n"): TOPOLOGY})
        await made.reconcile(A, first)
        await made.reconcile(B, second)
        assert statuses == {"a": "Validated", "b": "CPUSetAllocationFailed"}
        yield made, pods, first


async def test_a_finalizer_that_can_not_be_removed_keeps_no_cpus_from_other_bindings():
    statuses: dict[str, str] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "status" not in body:
            return await REFUSED(request)
        name = request.path.split("/")[-2]
        statuses[name] = body["status"]["resourceStatus"]
        return web.json_response(binding(name, 0) | {"status": body["status"]})

    async with two_that_want_the_same_cpu(answer, statuses) as (made, _, first):
        first["metadata"] |= {
            "deletionTimestamp": "2026-03-01T12:01:00Z",
            "finalizers": ["cslab.ece.ntua.gr/pod-cpu-binding-finalizer"],
        }
        with pytest.raises(KubeError):
            await made.reconcile(A, first)
        assert statuses["b"] == "Validated"


async def test_the_status_of_one_whose_pod_has_gone_keeps_no_cpus_from_other_bindings():
    """If it was refused, they had to wait for the next look at all objects."""
    statuses: dict[str, str] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = request.path.split("/")[-2]
        if statuses.get("b") and name == "a":
            return await REFUSED(request)
        statuses[name] = body["status"]["resourceStatus"]
        return web.json_response(binding(name, 0) | {"status": body["status"]})

    async with two_that_want_the_same_cpu(answer, statuses) as (made, pods, first):
        gone = pods.pop(A)
        made.on_pod(gone, None)
        with pytest.raises(KubeError):
            await made.reconcile(A, first)
        assert statuses["b"] == "Validated"


async def test_a_binding_whose_status_is_changed_while_it_is_written_has_failed():
    async def changes(request: web.Request) -> web.StreamResponse:
        status = (await request.json())["status"] | {"cpus": "7"}
        return web.json_response(binding("a", 0, resourceVersion="2") | {"status": status})

    async with faulty([changes]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        made = PodCPUBindingController(server.session, recorder, {A: pod_of(A)}, {("", "n"): TOPOLOGY})
        with pytest.raises(StatusChanged, match=r"in status\.cpus: does"):
            await made.reconcile(A, binding("a", 0))
