"""Bindings of pods that get CPUs of their own: what the API server may answer, and what the agent may say or not."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import pickle
from collections import Counter

import pytest
from aiohttp import web

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Pin
from concerto.controllers.pinning.binding_objects import build_pod_cpu_binding
from concerto.controllers.pinning.preparation import NotPrepared, PinningPreparation, PreparationSettings
from concerto.kube.fair_places import FairPlaces
from concerto.pinning.classification import LABEL
from concerto.pinning.validation import BoundPod
from support.crd_schemas import problems
from support.faulty_server import Faulty, faulty, hangs_up, refuses, resets, says
from support.waiting import eventually

QUICK = PreparationSettings(
    timeout_seconds=1.0, first_backoff_seconds=0.001, max_backoff_seconds=0.01, sweep_seconds=0.01
)
SLOW = PreparationSettings(timeout_seconds=60.0, sweep_seconds=0.01)
POD = PodView.from_raw({
    "metadata": {"namespace": "team", "name": "p", "uid": "uid-p", "labels": {LABEL: "io-bound"}},
    "spec": {"containers": [{"name": "c"}]},
})  # fmt: skip
ASSIGNMENT = Assignment("team", "p", "uid-p", "n1", "Requests", "", 1.0, pin=Pin("0,2", "0", "CPU", "p"))
BODY = build_pod_cpu_binding(POD, ASSIGNMENT, "record-1")


def binding(record: str = "record-1", owner: str = "uid-p", uid: str = "b", **status: object) -> dict[str, object]:
    """The operator's binding as the API server has it."""
    obj = copy.deepcopy(build_pod_cpu_binding(POD, ASSIGNMENT, record))
    obj["metadata"] |= {"uid": uid, "generation": 1, "resourceVersion": "1"}
    obj["metadata"]["ownerReferences"][0]["uid"] = owner
    return obj | {"status": status} if status else obj


def theirs() -> dict[str, object]:
    obj = binding()
    del obj["metadata"]["labels"], obj["metadata"]["ownerReferences"]
    return obj


def test_a_binding_names_the_containers_that_request_whole_cpus_where_others_share():
    def spec(kind: str, *cpus: str) -> dict[str, object]:
        containers = [{"name": f"c{n}", "resources": {"requests": {"cpu": each}}} for n, each in enumerate(cpus)]
        metadata = {"namespace": "team", "name": "p", "uid": "uid-p", "labels": {LABEL: kind}}
        made = PodView.from_raw({"metadata": metadata, "spec": {"containers": containers}})
        return build_pod_cpu_binding(made, ASSIGNMENT, "record-1")["spec"]

    assert spec("cpu-bound", "2", "100m")["containers"] == ["c0"]
    assert "containers" not in spec("cpu-bound", "2")
    assert "containers" not in spec("best-effort", "2", "100m"), "its CPU is shared in any case"


def condition(kind: str, status: str, message: str = "", generation: int = 1) -> dict[str, object]:
    reason = "Held" if status == "True" else "SharedPoolNotShrunk"
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": generation}


VALID = {
    "observedGeneration": 1, "resourceStatus": "Validated", "nodeName": "n1", "podUID": "uid-p", "cpus": "0,2",
    "mems": "0",
}  # fmt: skip
PREPARED = VALID | {
    "applied": {"podUID": "uid-p"},
    "conditions": [condition("Validated", "True"), condition("Prepared", "True")],
}


def pins(server: Faulty, bound: set[str] | None = None) -> PinningPreparation:
    made = PinningPreparation(server.session, (bound or set()).__contains__, QUICK, lambda: True, FairPlaces(96).place)
    made.begin(ASSIGNMENT, "record-1")
    return made


def count(server: Faulty, method: str) -> int:
    return sum(line.startswith(method) for line in server.seen)


def test_what_is_written_is_a_binding_that_goes_with_the_pod():
    assert problems(BODY) == []
    assert BODY["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p"}]
    assert BODY["spec"] == {"podName": "p", "cpuSet": [{"cpuID": 0}, {"cpuID": 2}], "exclusivenessLevel": "CPU"}


@pytest.mark.parametrize(
    ("sentence", "script", "problem", "posts"),
    [
        ("made", [says(201)], None, 1),
        ("lost, and done", [resets, says(200, binding())], None, 1),
        ("lost, and not done", [hangs_up, refuses(404, "NotFound"), says(201)], None, 2),
        ("429", [refuses(429, "TooManyRequests"), says(201)], None, 2),
        (
            "of an attempt before: never taken for ours",
            [refuses(409, "AlreadyExists"), says(200, binding("record-0")), says(200), says(201)],
            None,
            2,
        ),
        (
            "of a pod that had the name before",
            [refuses(409, "AlreadyExists"), says(200, binding(owner="old")), says(200), says(201)],
            None,
            2,
        ),
        (
            "somebody else's",
            [refuses(409, "AlreadyExists"), says(200, theirs())],
            "team/p has the name",
            1,
        ),
        ("no right", [refuses(403, "Forbidden")], "was rejected: Forbidden!", 1),
        ("never", [refuses(503, "ServiceUnavailable")], "did not take the PodCPUBinding in time", 0),
    ],
)
async def test_the_binding_is_there_before_anything_else(sentence, script, problem, posts):
    async with faulty(script) as server:
        made = pins(server)
        asked = asyncio.create_task(made.prepare(POD, 0.5))
        await server.asked(len(script))
        made.on_cpu_binding(None, binding(**PREPARED))
        said = await asked
        assert (None if said is None else problem in said.message) is (None if problem is None else True), sentence
        assert count(server, "POST") == posts or posts == 0
        assert count(server, "DELETE") == int("before" in sentence), "what is left of the past"


REFUSAL = VALID | {"resourceStatus": "CPUSetAllocationFailed"}
HEARD = {
    "ready": (PREPARED, None),
    "validated only": (VALID | {"conditions": [condition("Validated", "True")]}, "is its agent running"),
    "of another generation": (PREPARED | {"observedGeneration": 0}, "was it edited?"),
    "of another pod": (PREPARED | {"applied": {"podUID": "old"}}, "is its agent running"),
    "of another node": (PREPARED | {"nodeName": "n2"}, "was it edited?"),
    "edited by somebody": (PREPARED | {"cpus": "7"}, "was it edited?"),
    "not validated yet": ({}, "was it edited?"),
    "the agent can't yet": (
        PREPARED | {"conditions": [condition("Validated", "True"), condition("Prepared", "False", "x is in the way.")]},
        "within 0.5 s: x is in the way. The pod is scheduled again",
    ),
    "refused": (
        REFUSAL | {"conditions": [condition("Validated", "False", "CPUs [0] are held.")]},
        "CPUs [0] are held.",
    ),
}


@pytest.mark.parametrize(("status", "problem"), HEARD.values(), ids=HEARD)
async def test_a_pod_may_be_bound_once_the_agent_says_so_of_it_and_these_cpus(status, problem):
    async with faulty([says(201)]) as server:
        made = pins(server)
        asked = asyncio.create_task(made.prepare(POD, 0.5 if problem and "[0]" not in problem else 20))
        await server.asked(1)
        made.on_cpu_binding(None, binding(**status))
        said = await asked
        assert said is None if problem is None else problem in said.message
        agents = problem is not None and "[0]" not in problem and "edited" not in problem
        assert said is None or said.agent_late is agents, "only an agent that does not answer is avoided"


OVER = {
    "the pod is gone": (lambda made: made.on_pod("uid-p", ""), "The pod is gone."),
    "bound elsewhere": (lambda made: made.on_pod("uid-p", "n2"), "bound to n2 by another scheduler"),
    "bound there": (lambda made: made.on_pod("uid-p", "n1"), "bound by another scheduler"),
    "its binding was deleted": (lambda made: made.on_cpu_binding(binding(), None), "PodCPUBinding was deleted."),
}


@pytest.mark.parametrize(("happens", "problem"), OVER.values(), ids=OVER)
async def test_waiting_ends_when_there_is_nothing_to_wait_for(happens, problem):
    async with faulty([says(201)]) as server:
        made = pins(server)
        made.on_cpu_binding(None, binding(**VALID))
        asked = asyncio.create_task(made.prepare(POD, 20))
        await server.asked(1)
        happens(made)
        said = await asked
        assert isinstance(said, NotPrepared) and problem in said.message and not said.agent_late


async def test_a_binding_that_somebody_takes_for_his_own_is_not_the_agents_fault():
    async with faulty([says(201)]) as server:
        made = pins(server)
        made.on_cpu_binding(None, binding(**VALID | {"conditions": [condition("Validated", "True")]}))
        asked = asyncio.create_task(made.prepare(POD, 0.05))
        await server.asked(1)
        made.on_cpu_binding(binding(**VALID), theirs())
        said = await asked
        assert said is not None and not said.agent_late


async def test_the_deletion_of_an_earlier_attempts_binding_ends_nothing():
    async with faulty([says(201)]) as server:
        made = pins(server)
        made.on_cpu_binding(None, binding("record-0"))
        asked = asyncio.create_task(made.prepare(POD, 20))
        await server.asked(1)
        made.on_cpu_binding(binding("record-0"), None)
        made.on_cpu_binding(None, binding(**PREPARED))
        assert await asked is None


async def test_where_a_pod_is_to_go_is_reported_until_it_is_seen_there_or_given_back():
    async with faulty([refuses(404, "NotFound")]) as server:
        made = pins(server)
        assert made.assigned(("team", "p")) == BoundPod("uid-p", "n1")
        made.confirm("uid-p")
        assert made.assigned(("team", "p")) is not None, "the pod itself has not said so yet"
        made.on_pod("uid-p", "n1")
        assert made.assigned(("team", "p")) is None
        made.begin(ASSIGNMENT, "record-2")
        await made.release("uid-p")
        assert made.assigned(("team", "p")) is None


@pytest.mark.parametrize(
    ("sentence", "script", "deletes"),
    [
        ("there", [says(200, binding()), says(200)], 1),
        ("gone already", [refuses(404, "NotFound")], 0),
        ("of another pod by now", [says(200, binding(owner="new"))], 0),
        ("somebody else's", [says(200, theirs())], 0),
        ("unreachable for a while", [refuses(403, "Forbidden")] * 3 + [says(200, binding()), says(200)], 1),
        ("replaced meanwhile", [says(200, binding()), refuses(409, "Conflict")], 1),
    ],
)
async def test_a_binding_is_given_up_for_certain_and_no_other(sentence, script, deletes):
    async with faulty(script) as server:
        await pins(server).release("uid-p")
        assert count(server, "DELETE") == deletes, sentence


async def test_bindings_that_nobody_needs_are_deleted_and_others_are_not():
    async with faulty([says(200)]) as server:
        made = pins(server, bound={"uid-bound"})
        names = {"in-flight": "uid-p", "bound": "uid-bound", "ended": "uid-gone", "orphan": "uid-waits"}
        for name, owner in names.items():
            obj = binding(owner=owner, uid=name)
            obj["metadata"]["name"] = name
            made.on_cpu_binding(None, obj)
        made.on_cpu_binding(None, theirs())
        running = asyncio.create_task(made.run())
        await server.asked(2)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert {line.rpartition("/")[2] for line in server.seen} == {"ended", "orphan"}


async def test_a_binding_that_names_another_namespaces_pod_as_its_owner_does_not_stand_in_for_that_pods():
    bound = {"uid-p"}
    async with faulty([says(200)]) as server:
        made = pins(server, bound)
        made.on_pod("uid-p", "n1")
        ours, fake = binding(), binding(uid="fake")
        fake["metadata"]["namespace"] = "other"
        for obj in (ours, fake):
            made.on_cpu_binding(None, obj)
        made.on_cpu_binding(fake, None)
        made.on_cpu_binding(None, fake)
        running = asyncio.create_task(made.run())
        bound.clear()
        made.on_pod("uid-p", "")
        await server.asked(2)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert {line.split("/")[5] for line in server.seen} == {"team", "other"}


def hanging_in(namespace: str, release: asyncio.Event):
    """Answers to writes in the namespace only once they are released."""

    async def answer(request):
        if request.method != "GET" and f"/namespaces/{namespace}/" in request.path:
            await release.wait()
        return await says(201 if request.method == "POST" else 200)(request)

    return answer


async def test_podcpubindings_that_hang_keep_none_of_another_namespace_from_being_created():
    release = asyncio.Event()
    async with faulty([hanging_in("team", release)]) as server:
        made = PinningPreparation(server.session, lambda uid: False, SLOW, lambda: True, FairPlaces(96).place)

        def prepare(name: str, namespace: str) -> asyncio.Task[NotPrepared | None]:
            changed = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
            made.begin(dataclasses.replace(ASSIGNMENT, **changed), "record-1")
            return asyncio.create_task(made.prepare(dataclasses.replace(POD, **changed), 60))

        tasks = [prepare(f"p{i}", "team") for i in range(100)]
        try:
            await server.asked(1)
            tasks.append(prepare("free", "other"))
            await server.asked(2)
            assert [line.split("/")[5] for line in server.seen] == ["team", "other"]
        finally:
            release.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_podcpubindings_whose_deletion_hangs_keep_none_of_another_namespace():
    release = asyncio.Event()
    async with faulty([hanging_in("team", release)]) as server:
        made = PinningPreparation(server.session, lambda uid: False, SLOW, lambda: True, FairPlaces(96).place)
        for number in range(3):
            for namespace in ("team", "other"):
                obj = binding(owner=f"uid-{number}")
                obj["metadata"] |= {"namespace": namespace, "name": f"p-{number}"}
                made.on_cpu_binding(None, obj)
        running = asyncio.create_task(made.run())
        try:
            await server.asked(4)
            assert Counter(line.split("/")[5] for line in server.seen) == {"team": 1, "other": 3}
            release.set()
            await server.asked(6)
        finally:
            release.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_deletion_that_hangs_keeps_its_place_for_one_attempt():
    release, places = asyncio.Event(), FairPlaces(1)
    settings = dataclasses.replace(QUICK, timeout_seconds=0.1)
    async with faulty([hanging_in("team", release)]) as server:
        made = PinningPreparation(server.session, lambda uid: False, settings, lambda: True, places.place)
        made.on_cpu_binding(None, binding(owner="uid-gone"))
        running = asyncio.create_task(made.run())
        try:
            await server.asked(1)
            async with asyncio.timeout(5), places.place("other"):
                assert count(server, "DELETE") == 1
        finally:
            release.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_deletion_that_is_refused_is_tried_less_and_less_often():
    settings = dataclasses.replace(QUICK, sweep_seconds=0.01)
    async with faulty([refuses(403, "Forbidden")]) as server:
        made = PinningPreparation(server.session, lambda uid: False, settings, lambda: True, FairPlaces(96).place)
        obj = binding(owner="uid-gone")
        made.on_cpu_binding(None, obj)
        running = asyncio.create_task(made.run())
        await server.asked(3)
        await asyncio.sleep(0.6)
        assert count(server, "DELETE") <= 9
        made.on_cpu_binding(obj, None)
        assert ("team", "p") not in made._refused, "nothing is kept of one that is gone"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


BUSY = refuses(429, "TooManyRequests", {"Retry-After": "1"})


async def test_the_sweep_waits_for_as_long_as_the_api_server_asks_for():
    async with faulty([BUSY]) as server:
        made = PinningPreparation(server.session, lambda uid: False, QUICK, lambda: True, FairPlaces(96).place)
        made.on_cpu_binding(None, binding(owner="uid-gone"))
        running = asyncio.create_task(made.run())
        await server.asked(1)
        await asyncio.sleep(0.7)
        assert count(server, "DELETE") == 1
        await server.asked(2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_sweep_that_the_api_server_has_no_time_for_does_not_ask_for_all_its_objects():
    settings = dataclasses.replace(QUICK, sweep_seconds=0.2)
    async with faulty([BUSY]) as server:
        made = PinningPreparation(server.session, lambda uid: False, settings, lambda: True, FairPlaces(96).place)
        for number in range(20):
            obj = binding(owner=f"uid-{number}")
            obj["metadata"]["name"] = f"p-{number}"
            made.on_cpu_binding(None, obj)
        running = asyncio.create_task(made.run())
        await asyncio.sleep(0.5)
        assert count(server, "DELETE") <= 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


WAITS = {
    "a release": ([says(200, binding()), BUSY], lambda made: made.release("uid-p")),
    "a preparation that removes what was there before": (
        [refuses(409, "AlreadyExists"), says(200, binding("record-0")), BUSY, refuses(409, "AlreadyExists")],
        lambda made: made.prepare(POD, 20),
    ),
}


@pytest.mark.parametrize(("script", "work"), WAITS.values(), ids=WAITS)
async def test_deletions_wait_for_as_long_as_the_api_server_asks_for(script, work):
    async with faulty(script) as server:
        working = asyncio.create_task(work(pins(server)))
        await server.asked(len(script) - (script[-1] is not BUSY))
        before = len(server.seen)
        await asyncio.sleep(0.6)
        assert len(server.seen) == before
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_nothing_is_remembered_of_a_binding_that_goes_before_its_deletion_is_answered():
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await refuses(500, "InternalError")(request)

    async with faulty([answer]) as server:
        made = PinningPreparation(server.session, lambda uid: False, SLOW, lambda: True, FairPlaces(96).place)
        made.on_cpu_binding(None, obj := binding(owner="uid-gone"))
        running = asyncio.create_task(made.run())
        await server.asked(1)
        made.on_cpu_binding(obj, None)
        release.set()
        await asyncio.sleep(0.1)
        assert ("team", "p") not in made._refused
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_deletion_that_was_refused_is_tried_soon_after_the_object_is_edited_and_not_after_its_status():
    settings = dataclasses.replace(SLOW, sweep_seconds=0.3)
    async with faulty([refuses(403, "Forbidden"), says(200, {})]) as server:
        made = PinningPreparation(server.session, lambda uid: False, settings, lambda: True, FairPlaces(96).place)
        made.on_cpu_binding(None, obj := binding(owner="uid-gone"))
        running = asyncio.create_task(made.run())
        await eventually(lambda: ("team", "p") in made._refused)
        for _ in range(10):
            made._refused.failed(("team", "p"))
        made.on_cpu_binding(obj, later := obj | {"status": {"resourceStatus": "Applied"}})
        assert not made._refused.is_due(("team", "p"))
        edited = later | {"metadata": later["metadata"] | {"annotations": {"reason": "edited"}}}
        made.on_cpu_binding(later, edited)
        await server.asked(2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_process_that_no_longer_leads_writes_nothing():
    async with faulty([says(201)]) as server:
        made = PinningPreparation(server.session, lambda uid: False, QUICK, lambda: False, FairPlaces(96).place)
        made.begin(ASSIGNMENT, "record-1")
        made.on_cpu_binding(None, binding(owner="uid-gone"))
        for work in (made.prepare(POD, 20), made.release("uid-p"), made.run()):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await work
        assert server.seen == []


async def test_a_pod_that_is_seen_bound_before_its_preparation_begins_needs_none():
    async with faulty([says(201)]) as server:
        made = pins(server)
        made.on_pod("uid-p", "n1")
        found = await made.prepare(POD, 20)
        assert isinstance(found, NotPrepared) and "bound by another scheduler" in found.message
        assert server.seen == []


async def test_a_standby_remembers_nothing_of_bindings_that_are_gone():
    async with faulty([]) as server:
        made = PinningPreparation(server.session, lambda uid: False, QUICK, lambda: False, FairPlaces(96).place)
        size = len(pickle.dumps(state_of(made)))
        for number in range(200):
            obj = binding(owner=f"uid-{number}", uid=f"b-{number}")
            obj["metadata"]["name"] = f"p-{number}"
            made.on_cpu_binding(None, obj)
            made.on_pod(f"uid-{number}", "n1")
            made.on_cpu_binding(obj, obj)
            made.on_pod(f"uid-{number}", "")
            made.on_cpu_binding(obj, None)
        assert len(pickle.dumps(state_of(made))) == size


def state_of(made: PinningPreparation) -> dict[str, object]:
    return {name: value for name, value in vars(made).items() if isinstance(value, dict | set | list)}
