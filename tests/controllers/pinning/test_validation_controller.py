"""The operator's part of a PodCPUBinding's status fits the CRD and says what the node's agent has brought about."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from aiohttp import web

from concerto.api.nodecputopology import Core, CPUTopology
from concerto.controllers.pinning import validation
from concerto.controllers.pinning.status import binding_event, build_binding_status, is_stale
from concerto.controllers.pinning.validation import PodCPUBindingController
from concerto.kube import ApiError
from concerto.kube.events import EventRecorder
from concerto.pinning.validation import Verdict
from support.crd_schemas import problems
from support.faulty_server import Answer, Faulty, faulty

NOW = "2026-03-01T12:00:00Z"
OBJECT = {
    "apiVersion": "concerto.dev/v1alpha1",
    "kind": "PodCPUBinding",
    "metadata": {"name": "b", "namespace": "default", "uid": "u", "generation": 3, "creationTimestamp": NOW},
    "spec": {"podName": "p", "cpuSet": [{"cpuID": 0}], "exclusivenessLevel": "Core"},
}
VALID = Verdict("Validated", "Validated", "CPU binding is validated: ...", "n", "pod-uid", "0", "0")
GRANTED = {"podUID": "pod-uid", "cpus": "0", "mems": "0", "at": NOW}


def said(kind: str, status: str, reason: str, generation: int = 3) -> dict[str, object]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": f"{reason}.",
        "observedGeneration": generation,
        "lastTransitionTime": NOW,
    }


PREPARED = said("Prepared", "True", "Held")
APPLIED = said("Applied", "True", "Applied")


def with_agent(applied: dict[str, str] | None, *conditions: dict[str, object]) -> dict[str, object]:
    status = {"conditions": list(conditions)} | ({} if applied is None else {"applied": applied})
    return OBJECT | {"status": status}


# object, verdict, resourceStatus, reason of Ready, conditions
WAITING = {"Ready": "False", "Validated": "True", "Reconciling": "True", "Stalled": "False"}
STUCK = {"Ready": "False", "Validated": "True", "Reconciling": "False", "Stalled": "True"}
DONE = {"Ready": "True", "Validated": "True", "Reconciling": "False", "Stalled": "False"}
LOST = {"Ready": "False", "Validated": "False", "Reconciling": "True", "Stalled": "False"}
STATUSES = {
    "valid, and the agent has said nothing yet": (OBJECT, VALID, "Validated", "NotApplied", WAITING),
    "valid, and what holds the agent up is reported": (
        with_agent({"podUID": "pod-uid"}, PREPARED, said("Applied", "False", "Waiting")),
        VALID,
        "CPUSetAllocationFailed",
        "Waiting",
        STUCK,
    ),
    "valid, and held before the pod is there": (
        with_agent({"podUID": "pod-uid"}, PREPARED, said("Applied", "Unknown", "NoContainers")),
        VALID,
        "Validated",
        "Prepared",
        WAITING,
    ),
    "applied as it was granted": (with_agent(GRANTED, PREPARED, APPLIED), VALID, "Applied", "Applied", DONE),
    "applied with the memory that kubelet gives, or that there is": (
        with_agent(GRANTED | {"mems": "0-1"}, PREPARED, APPLIED),
        VALID,
        "Applied",
        "Applied",
        DONE,
    ),
    "applied on other CPUs than were granted": (
        with_agent(GRANTED | {"cpus": "1"}, PREPARED, APPLIED),
        VALID,
        "CPUSetAllocationFailed",
        "NotAsGranted",
        STUCK,
    ),
    "applied, but an edit since has not been": (
        with_agent(GRANTED, said("Prepared", "True", "Held", 2), said("Applied", "True", "Applied", 2)),
        VALID,
        "Validated",
        "NotApplied",
        WAITING,
    ),
    "applied, but for the pod that had the name before": (
        with_agent(GRANTED | {"podUID": "another"}, PREPARED, APPLIED),
        VALID,
        "Validated",
        "NotApplied",
        WAITING,
    ),
    "refused by the kernel": (
        with_agent({"podUID": "pod-uid"}, PREPARED, said("Applied", "False", "Refused")),
        VALID,
        "CPUSetAllocationFailed",
        "Refused",
        STUCK,
    ),
    "of a pod that kubelet rules": (
        with_agent({"podUID": "pod-uid"}, said("Prepared", "False", "KubeletConflict")),
        VALID,
        "CPUSetAllocationFailed",
        "KubeletConflict",
        STUCK,
    ),
    "lost to another": (
        OBJECT,
        Verdict("CPUSetAllocationFailed", "Conflict", "Held.", "n", "pod-uid", loses_to=("default", "other")),
        "CPUSetAllocationFailed",
        "Conflict",
        LOST,
    ),
    "without a pod": (OBJECT, Verdict("PodNotFound", "PodNotFound", "No pod."), "PodNotFound", "PodNotFound", LOST),
    "of CPUs that are not there": (
        OBJECT,
        Verdict("InvalidCPUSet", "CPUsNotFound", "No CPUs.", "n", "pod-uid"),
        "InvalidCPUSet",
        "CPUsNotFound",
        {"Ready": "False", "Validated": "False", "Reconciling": "False", "Stalled": "True"},
    ),
}


@pytest.mark.parametrize(("obj", "verdict", "reached", "reason", "conditions"), STATUSES.values(), ids=STATUSES)
def test_a_status_fits_the_crd_and_says_what_is_so(obj, verdict, reached, reason, conditions):
    status = build_binding_status(obj, verdict, NOW)
    assert problems(obj | {"status": status}) == []
    assert status["resourceStatus"] == reached
    assert {c["type"]: c["status"] for c in status["conditions"]} == conditions
    assert next(c["reason"] for c in status["conditions"] if c["type"] == "Ready") == reason
    assert status["observedGeneration"] == 3
    assert ("conflictsWith" in status) == (verdict.loses_to is not None)


def test_an_agent_that_does_not_answer_in_time_is_said_not_to_pin():
    status = build_binding_status(OBJECT, VALID, NOW, patient=False)
    assert {c["type"]: c["status"] for c in status["conditions"]} == STUCK
    assert next(c["reason"] for c in status["conditions"] if c["type"] == "Stalled") == "AgentNotSupported"
    assert status["resourceStatus"] == "Validated", "the CPUs are held against others all the same"


def test_a_status_that_is_built_again_is_the_same_and_keeps_its_times():
    first = build_binding_status(OBJECT, VALID, NOW)
    assert build_binding_status(OBJECT | {"status": first}, VALID, "2026-03-01T13:00:00Z") == first


def test_what_an_agent_said_of_another_pod_is_stale_and_what_it_said_of_this_one_is_not():
    assert is_stale(with_agent(GRANTED, PREPARED, APPLIED), Verdict("PodNotFound", "PodNotFound", "No pod."))
    assert not is_stale(with_agent(GRANTED, PREPARED, APPLIED), VALID)
    assert not is_stale(OBJECT, VALID)


def test_events_report_validation_and_application_once_each_with_the_sets_of_the_listing():
    validated = build_binding_status(OBJECT, VALID, NOW)
    applied = build_binding_status(with_agent(GRANTED, PREPARED, APPLIED), VALID, NOW)
    first, second = binding_event({}, validated), binding_event(validated, applied)
    assert first is not None and (first.type, first.reason, first.note) == ("Normal", "Validated", VALID.message)
    assert second is not None and (second.type, second.reason) == ("Normal", "Applied")
    assert second.note == "Applied CPUSet [0], MemSet [0]"
    assert binding_event(applied, validated) is None, "an agent that starts anew is no news"
    assert binding_event(validated, validated) is None
    refused = build_binding_status(
        with_agent({"podUID": "pod-uid"}, PREPARED, said("Applied", "False", "Refused")), VALID, NOW
    )
    event = binding_event(applied, refused)
    assert event is not None and (event.type, event.reason, event.note) == (
        "Warning",
        "CPUSetAllocationFailed",
        "Refused.",
    )


FOUR = CPUTopology(tuple(Core(0, n, frozenset({n})) for n in range(4)), {0: frozenset(range(4))})
TOPOLOGY = {"metadata": {"name": "n", "uid": "t"}, "spec": {"nodeName": "n"}, "status": {"topology": FOUR.to_raw()}}


def binding(name: str, cpu: int) -> dict[str, object]:
    metadata = {"name": name, "namespace": "default", "uid": name, "generation": 1, "creationTimestamp": NOW}
    return OBJECT | {"metadata": metadata, "spec": {"podName": name, "cpuSet": [{"cpuID": cpu}]}}


def pod(name: str, node: str, **annotations: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def takes(statuses: dict[str, str], refused: str = "") -> Answer:
    """A server that keeps each binding's ``resourceStatus``, and takes no status of one."""

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.path.split("/")[-2]
        if name == refused:
            return web.json_response({"kind": "Status", "code": 500, "reason": "InternalError"}, status=500)
        body = json.loads(await request.read())
        statuses[name] = body["status"]["resourceStatus"]
        return web.json_response(binding(name, 0) | {"status": body["status"]})

    return answer


async def test_a_status_that_can_not_be_written_keeps_no_other_binding_of_the_node_waiting():
    statuses: dict[str, str] = {}
    failed: list[str] = []
    objects = {name: binding(name, number) for number, name in enumerate("abc")}
    async with faulty([takes(statuses, refused="a")]) as server:
        pods = {("default", name): pod(name, "n") for name in "abc"}
        recorder = EventRecorder(server.session, component="c", instance="i")
        made = PodCPUBindingController(server.session, recorder, pods, {("", "n"): TOPOLOGY})
        made.back_off = lambda namespace, name, error: failed.append(name)
        made.load(objects.values())
        await made.reconcile(("default", "c"), objects["c"])
        assert statuses == {"b": "Validated", "c": "Validated"}
        assert failed == ["a"], "it is tried again by itself"
        tried = len(server.seen)
        await made.reconcile(("default", "b"), objects["b"] | {"status": {}})
        assert failed == ["a"], "in no turn but its own"
        assert len(server.seen) == tried + 1
        with pytest.raises(ApiError):
            await made.reconcile(("default", "a"), objects["a"])


def in_two_namespaces(server: Faulty, marked: list[tuple[str | None, str]]) -> PodCPUBindingController:
    """Bindings ``a`` of the namespace default and ``b`` of the namespace other, on one node; nothing is written yet."""
    pods = {("default", "a"): pod("a", "n"), ("other", "b"): pod("b", "n")}
    recorder = EventRecorder(server.session, component="c", instance="i")
    made = PodCPUBindingController(server.session, recorder, pods, {("", "n"): TOPOLOGY})
    made.mark = lambda namespace, name: marked.append((namespace, name))
    made.load([theirs()])
    return made


def theirs(**over: object) -> dict[str, object]:
    obj = binding("b", 1) | over
    return obj | {"metadata": obj["metadata"] | {"namespace": "other"}}


async def test_a_status_of_another_namespace_is_written_in_a_turn_of_its_own_which_is_asked_for_once():
    statuses: dict[str, str] = {}
    marked: list[tuple[str | None, str]] = []
    async with faulty([takes(statuses)]) as server:
        made = in_two_namespaces(server, marked)
        for _ in range(3):
            await made.reconcile(("default", "a"), binding("a", 0))
        assert (statuses, marked) == ({"a": "Validated"}, [("other", "b")])
        await made.reconcile(("other", "b"), theirs())
        assert statuses == {"a": "Validated", "b": "Validated"}
        await made.reconcile(("default", "a"), binding("a", 0))
        assert marked == [("other", "b")]


async def test_a_status_that_hangs_delays_no_turn_of_another_namespace():
    marked: list[tuple[str | None, str]] = []
    release = asyncio.Event()

    async def hangs(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    async with faulty([hangs]) as server:
        made = in_two_namespaces(server, marked)
        made._pods["default", "c"] = pod("c", "n")
        made.load([binding("c", 2)])
        turn = asyncio.create_task(made.reconcile(("default", "a"), binding("a", 0)))
        await server.asked(1)
        assert "/c/status" in server.seen[0]
        assert marked == [("other", "b")]
        release.set()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def test_no_turn_is_asked_for_where_the_status_of_another_namespace_shows_the_verdict_as_after_a_restart():
    marked: list[tuple[str | None, str]] = []
    shown: dict[str, object] = {}

    async def keeps(request: web.Request) -> web.StreamResponse:
        shown.update(json.loads(await request.read())["status"])
        return web.json_response(theirs(status=shown))

    async with faulty([keeps]) as server:
        await in_two_namespaces(server, marked).reconcile(("other", "b"), theirs())
    marked.clear()
    async with faulty([takes({})]) as server:
        made = in_two_namespaces(server, marked)
        made.load([theirs(status=shown)])
        await made.reconcile(("default", "a"), binding("a", 0))
        assert not marked


async def test_a_verdict_that_changes_while_it_is_written_is_written_again():
    statuses: dict[str, str] = {}
    marked: list[tuple[str | None, str]] = []
    release, kept = asyncio.Event(), takes(statuses)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/namespaces/other/" in request.path:
            await release.wait()
        return await kept(request)

    async with faulty([answer]) as server:
        made = in_two_namespaces(server, marked)
        hanging = asyncio.create_task(made.reconcile(("other", "b"), theirs()))
        await server.asked(1)
        older = binding("a", 1)
        older |= {"metadata": older["metadata"] | {"creationTimestamp": "2026-03-01T11:00:00Z"}}
        older |= {"spec": older["spec"] | {"exclusivenessLevel": "CPU"}}
        await made.reconcile(("default", "a"), older)
        assert statuses == {"a": "Validated"}
        release.set()
        await hanging
        assert statuses == {"a": "Validated", "b": "Validated"}
        assert marked.pop() == ("other", "b")
        await made.reconcile(("other", "b"), theirs())
        assert statuses == {"a": "Validated", "b": "CPUSetAllocationFailed"}


async def test_bindings_are_judged_with_those_of_the_node_that_the_pod_is_on_now():
    statuses: dict[str, str] = {}
    async with faulty([takes(statuses)]) as server:
        pods = {("default", "a"): pod("a", "n"), ("default", "b"): pod("b", "")}
        recorder = EventRecorder(server.session, component="c", instance="i")
        made = PodCPUBindingController(server.session, recorder, pods, {("", "n"): TOPOLOGY})
        exclusive = {"spec": {"podName": "b", "cpuSet": [{"cpuID": 0}], "exclusivenessLevel": "CPU"}}
        await made.reconcile(("default", "a"), binding("a", 0))
        await made.reconcile(("default", "b"), binding("b", 0) | exclusive)
        assert statuses == {"a": "Validated", "b": "Pending"}
        old, pods["default", "b"] = pods["default", "b"], pod("b", "n")
        made.on_pod(old, pods["default", "b"])
        await made.reconcile(("default", "a"), binding("a", 0))
        assert statuses == {"a": "Validated", "b": "CPUSetAllocationFailed"}
        made.on_pod(pods.pop(("default", "a")), None)
        await made.reconcile(("default", "b"), binding("b", 0) | exclusive)
        assert statuses["b"] == "Validated", "whose pod is gone holds nothing"
        pods["default", "a"] = pod("a", "n", **{"kubernetes.io/config.mirror": ""})
        made.on_pod(None, pods["default", "a"])
        await made.reconcile(("default", "a"), binding("a", 0))
        assert statuses == {"a": "Failed", "b": "Validated"}, "a static pod holds nothing either"


@pytest.mark.parametrize(
    ("patience_seconds", "again"), [(1000.0, True), (0.0, False)], ids=["expected to answer", "known not to answer"]
)
async def test_an_agent_that_is_silent_is_waited_for_until_that_is_said_and_then_no_more(patience_seconds, again):
    async with faulty([takes({})]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        pods = {("default", "a"): pod("a", "n")}
        made = PodCPUBindingController(
            server.session, recorder, pods, {("", "n"): TOPOLOGY}, patience_seconds=patience_seconds
        )
        assert (await made.reconcile(("default", "a"), binding("a", 0)) is not None) == again


async def test_bindings_of_one_node_are_judged_together_and_not_all_for_each(monkeypatch):
    # A tenant with the role concerto-pin can create them: 1,000 took 17 s of the operator's CPU at each resync
    statuses: dict[str, str] = {}
    judged, judge_node = [], validation.judge_node
    monkeypatch.setattr(validation, "judge_node", lambda *args: judged.append(args) or judge_node(*args))
    due = {f"b{number}": binding(f"b{number}", 1) for number in range(1000)}
    due = {name: obj | {"spec": obj["spec"] | {"podName": "p"}} for name, obj in due.items()}
    async with faulty([takes(statuses)]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        pods = {("default", "p"): pod("p", "n")}
        made = PodCPUBindingController(server.session, recorder, pods, {("", "n"): TOPOLOGY}, patience_seconds=0.0)
        while due:
            waits = {name: await made.reconcile(("default", name), obj) for name, obj in due.items()}
            due = {name: due[name] for name, wait in waits.items() if wait is not None}
            await asyncio.sleep(max((wait or 0.0) for wait in waits.values()))
    assert Counter(statuses.values()) == {"Validated": 1, "Failed": 999}
    assert len(judged) < 100
