"""What the recorder makes of placements: it must find what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from e2e.testbed.recorder_by_kind import Costs, Node, RecordedCost, amount, judge
from e2e.testbed.recorder_leaders import Event, late_pod_writes
from e2e.testbed.recorder_verdict import Assignment, PodHistory, late_writes, verdict_of

NODE = Node(cpu=4000, memory=8 << 30, own_cpu=400.0, own_memory=1e9)
THERE = [(500, 64 << 20)] * 4
FILLED_TO = 1.15 * 3600
RIGHT = RecordedCost(500, 64 << 20, 1.15, round(FILLED_TO - 2000), int(0.95 * (8 << 30) - 1e9 - 4 * (64 << 20)))


def test_a_placement_that_adds_up_is_right() -> None:
    assert judge(RIGHT, NODE, THERE) is None


WRONG = {
    "a pod was not counted": (replace(RIGHT, cpu_left=RIGHT.cpu_left + 500), THERE),
    "the memory of a pod was not counted": (replace(RIGHT, memory_left=RIGHT.memory_left + (1 << 30)), THERE),
    "less CPU was left than the pod may stand over by": (replace(RIGHT, cpu_left=100), THERE),
    "less memory was left than the pod takes": (replace(RIGHT, memory_left=(64 << 20) - 1), THERE),
    "the node was filled without measure": (replace(RIGHT, head_room=3.0), THERE),
}


@pytest.mark.parametrize(("cost", "others"), WRONG.values(), ids=WRONG)
def test_a_placement_is_wrong_if(cost: RecordedCost, others: list[tuple[int, int]]) -> None:
    assert judge(cost, NODE, others) is not None


def test_an_empty_node_takes_a_pod_of_any_size() -> None:
    assert judge(replace(RIGHT, cpu=9000, cpu_left=round(FILLED_TO)), NODE, []) is None
    assert judge(replace(RIGHT, memory=1 << 40), NODE, []) is None


def test_a_node_without_pods_that_has_no_memory_left_takes_none() -> None:
    full = replace(NODE, own_memory=0.97 * NODE.memory)
    assert judge(replace(RIGHT, memory=1, memory_left=-1), full, []) is not None


def test_a_pod_costs_at_least_the_smaller_of_what_was_recorded_before_and_after() -> None:
    costs = Costs()
    costs.add("job", 3, replace(RIGHT, cpu=1000))
    costs.add("job", 7, replace(RIGHT, cpu=300))
    assert [costs.surely("job", at)[0] for at in (1, 4, 9)] == [1000, 300, 300]
    assert costs.surely("other", 4) == (0, 0)


def test_quantities_are_read_to_the_thousandth() -> None:
    assert [amount(q) for q in ("2", "1500m", "8Ki", "1Gi")] == [2000, 1500, 8_192_000, 1_073_741_824_000]


def decision(uid: str, leader: str, created: int, node: str = "n1") -> Assignment:
    return Assignment(uid, f"d/{uid}", node, "1", "Capacity", 1.0, f"cycle-{leader}-000001", 0, created)


def bound(at: int | None, node: str = "n1") -> PodHistory:
    return PodHistory("d/p", counts=True, node=node, bound=at or 99, bound_at=at)


# The first leader records p at 10 and its successor q at 20; then what else there is, and how many writes were late
FIRST, SECOND = decision("p", "first", 10), decision("q", "second", 20)
LATE = {
    "the first binds before its successor's record": ({"p": bound(15)}, [], 0),
    "the first binds after its successor's record": ({"p": bound(25)}, [], 1),
    "the successor places the pod anew, and binds it": ({"p": bound(35)}, [decision("p", "second", 30)], 0),
    "the successor places it elsewhere, and the first binds it": (
        {"p": bound(35)}, [decision("p", "second", 30, "n2")], 1
    ),
    "the first records after its successor": ({}, [decision("r", "first", 25)], 1),
    "the binding itself was not seen": ({"p": bound(None)}, [], 0),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "more", "late"), LATE.values(), ids=LATE)
def test_what_comes_after_a_successors_first_record_is_late_where(
    pods: dict[str, PodHistory], more: list[Assignment], late: int
) -> None:
    assert len(late_writes(pods, [FIRST, SECOND, *more])) == late


def managed(name: str, *by: tuple[int, str, str], **metadata: str) -> dict[str, Any]:
    """An object that leaders wrote, each given by its number, a time, and the field that it wrote."""
    written = {
        "spec": {"f:spec": {}},
        "nomination": {"f:status": {"f:nominatedNodeName": {}}},
        "eviction": {"f:status": {"f:conditions": {'k:{"type":"DisruptionTarget"}': {}}}},
    }
    entries = [{"manager": f"concerto-leader-{n}", "time": time, "fieldsV1": written[what]} for n, time, what in by]
    return {"metadata": {"namespace": "d", "name": name, "uid": name, "managedFields": entries, **metadata}}


RECORDS = [(r, "podreservations", "ADDED", managed(f"cycle-{n}", (n, "t0", "spec"))) for n, r in ((1, 10), (2, 20))]
PODS = {
    "the first nominates before its successor's record": ([(15, managed("p", (1, "t1", "nomination")))], 0),
    "the first nominates after its successor's record": ([(25, managed("p", (1, "t1", "nomination")))], 1),
    "its successor nominates": ([(25, managed("p", (2, "t1", "nomination")))], 0),
    "another writes later to the pod that the first nominated": (
        [(15, managed("p", (1, "t1", "nomination"))), (25, managed("p", (1, "t1", "nomination"), phase="Running"))], 0
    ),
    "the first evicts after its successor's record": (
        [(15, managed("p", (1, "t1", "eviction"))), (25, managed("p", (1, "t1", "eviction"), deletionTimestamp="t"))], 1
    ),
    "its successor evicts what the first has marked": (
        [(15, managed("p", (1, "t1", "eviction"))),
         (25, managed("p", (1, "t1", "eviction"), (2, "t2", "eviction"), deletionTimestamp="t"))], 0
    ),
    "somebody deletes a pod that nobody evicts": ([(25, managed("p", deletionTimestamp="t"))], 0),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "late"), PODS.values(), ids=PODS)
def test_writes_to_pods_are_late_if(pods: list[tuple[int, dict[str, Any]]], late: int) -> None:
    events = [*RECORDS, *((revision, "pods", "MODIFIED", pod) for revision, pod in pods)]
    assert len(late_pod_writes(sorted(events, key=lambda event: event[0]))) == late


def version(kind: str, name: str, revision: int, namespace: str = "", **rest: Any) -> Event:
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": str(revision)}
    return revision, kind, "ADDED", {"spec": {}, **rest, "metadata": {**metadata, **rest.get("metadata", {})}}


def record(number: int, pod: str, namespace: str, revision: int) -> Event:
    decided = {"uid": pod, "namespace": namespace, "name": pod, "node": "n1", "nodeCapacityResourceVersion": "5"}
    spec = {"assignments": [{**decided, "basis": "Capacity", "available": 1}]}
    labels = {"labels": {"concerto.dev/in-flight": ""}}
    return version(
        "podreservations", f"cycle-first-{number:06d}", revision, "concerto-system", spec=spec, metadata=labels
    )


DELETED = {"deletionTimestamp": "2026-11-30T00:00:00Z"}
FULL_NODE = {
    "its binding may still come": ([], 1),
    "its namespace is being deleted by then": ([version("namespaces", "going", 12, metadata=DELETED)], 0),
    "another namespace is being deleted": ([version("namespaces", "go", 12, metadata=DELETED)], 1),
    "its namespace is deleted later": ([version("namespaces", "going", 25, metadata=DELETED)], 1),
    "it was bound before its namespace was deleted": (
        [version("pods", "p", 11, "going", spec={"nodeName": "n1"}),
         version("namespaces", "going", 12, metadata=DELETED)], 1
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "beyond"), FULL_NODE.values(), ids=FULL_NODE)
def test_an_unbound_pod_keeps_its_place_on_a_full_node_unless_it_cannot_be_bound(
    events: list[Event], beyond: int
) -> None:
    before = [
        version("nodecapacities", "n1", 5, status={"capacity": 1}),
        version("pods", "p", 6, "going"),
        version("pods", "q", 7, "d"),
        record(1, "p", "going", 10),
        record(2, "q", "d", 20),
    ]
    assert len(verdict_of([*before, *events], has_gaps=False).violations) == beyond
