import pytest

from concerto.api.podreservation import Assignment, AssignmentCost, Pin, Reservation, build_placement_record
from concerto.api.selectors import Requirement

FULL = Assignment("default", "p", "uid-p", "n1", "Capacity", "77", 2.25, reservation=("team", "res"))
BY_REQUESTS = Assignment("default", "p", "uid-p", "n1", "Requests", "", 40.0)
PINNED = Assignment("default", "p", "uid-p", "n1", "Requests", "", 40.0, pin=Pin("0-3,8", "0-1", "Core", "p"))
BY_KIND = Assignment(
    "default", "p", "u", "n1", "Capacity", "77", 0.25, cost=AssignmentCost(340, 2.06, 2**22, "Ended", 1.15, -20, -1)
)
ENDLESS = Assignment(
    "default", "p", "u", "n1", "Capacity", "77", 9.0, cost=AssignmentCost(50, None, 2**26, "Running", 1.3, 900, 2**30)
)


@pytest.mark.parametrize("assignment", [FULL, BY_REQUESTS, PINNED, BY_KIND, ENDLESS])
def test_an_assignment_is_read_back_as_it_was_written(assignment):
    assert Assignment.from_raw(assignment.to_raw()) == assignment


def test_what_a_pod_costs_is_written_in_kubernetes_quantities():
    assert BY_KIND.to_raw()["cost"] == {
        "cpu": "340m",
        "cpuSeconds": "2.06",
        "memory": "4194304",
        "knownFrom": "Ended",
        "headRoom": "1.15",
        "cpuLeft": "-20m",
        "memoryLeft": "-1",
    }
    assert "cpuSeconds" not in ENDLESS.to_raw()["cost"]


AVAILABLE = {
    "whole": (2.0, "2.0"),
    "exact, so that the decision can be checked": (0.1 + 0.2, "0.30000000000000004"),
    "tiny, without an exponent": (1e-7, "0.0000001"),
    "negative": (-1.5, "-1.5"),
}


@pytest.mark.parametrize(("available", "text"), AVAILABLE.values(), ids=AVAILABLE)
def test_what_was_available_is_a_decimal_number(available, text):
    raw = Assignment("default", "p", "u", "n", "Capacity", "1", available).to_raw()
    assert raw["available"] == text
    assert Assignment.from_raw(raw).available == available


def test_a_batch_is_marked_as_the_operators_own_and_counts_its_assignments():
    batch = build_placement_record("concerto-system", "cycle-a-1", [FULL, BY_REQUESTS])
    assert batch["metadata"] == {
        "namespace": "concerto-system",
        "name": "cycle-a-1",
        "labels": {"concerto.dev/in-flight": "true"},
    }
    assert batch["spec"]["count"] == 2
    assert [Assignment.from_raw(a) for a in batch["spec"]["assignments"]] == [FULL, BY_REQUESTS]


def test_a_standing_reservation_is_read_with_its_status():
    obj = {
        "metadata": {"namespace": "team", "name": "res", "uid": "u", "creationTimestamp": "1970-01-01T00:01:00Z"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "a"}},
            "count": 3,
            "ttlSeconds": 30,
            "nodeSelector": {"disk": "ssd"},
        },
        "status": {
            "placements": [{"node": "n1", "units": "2"}],
            "consumedBy": [{"namespace": "team", "name": "p", "uid": "uid-p", "node": "n1"}],
        },
    }
    view = Reservation.from_raw(obj)
    assert (view.key, view.count, view.created, view.expires_at) == (("team", "res"), 3, 60.0, 90.0)
    assert view.selector.matches({"app": "a"})
    assert view.node_selector == (Requirement("disk", "In", ("ssd",)),)
    assert (view.placements, view.consumed) == ({"n1": 2}, {"uid-p": "n1"})


def test_without_a_time_to_live_it_never_expires():
    obj = {"metadata": {"namespace": "team", "name": "res"}, "spec": {"podSelector": {}, "count": 1, "nodeName": "n1"}}
    view = Reservation.from_raw(obj)
    assert (view.expires_at, view.node_name, view.consumed) == (None, "n1", {})
