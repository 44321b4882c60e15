import pytest

from concerto.api.podreservation import Reservation
from concerto.api.selectors import LabelSelector
from concerto.scheduling.plugins.measured_capacity.filter import PodCapacity
from support.scheduling_builders import NOW, capacity, cluster_state, node, passes, pod, query, reasons

CLUSTER = cluster_state(
    [node(n) for n in ("room", "part", "full", "overfull", "unknown", "silent")],
    [pod(f"p{i}", nodeName="overfull") for i in range(2)],
    [
        capacity("room", 1.0),
        capacity("part", 0.5),
        capacity("full", 0.0),
        capacity("overfull", 1.0),
        capacity("silent", 9.0, at=NOW - 301),
    ],
)
CASES = {
    "a whole pod, or by requests": ({}, ["room", "unknown", "silent"]),
    "without measurement none": ({"metrics_policy": "Avoid"}, ["room"]),
    "parts of a pod": ({"admit_fraction": 0.5}, ["room", "part", "unknown", "silent"]),
    "a silent node's last word, if it is young enough": (
        {"metrics_policy": "Avoid", "stale_after_seconds": 301.0},
        ["room", "silent"],
    ),
}


@pytest.mark.parametrize(("settings", "names"), CASES.values(), ids=CASES)
def test_room_for_one_more(settings, names):
    assert passes(PodCapacity(), query(CLUSTER, pod("p"), **settings)) == names


def test_what_is_held_for_a_pod_is_its_own_as_fast_as_the_node_lets_pods_start():
    cluster = cluster_state(
        [node(n) for n in ("held", "held-and-free", "not-now")],
        [],
        [capacity("held", 1.0), capacity("held-and-free", 1.0, room=5.0), capacity("not-now", 0.5, room=5.0)],
    )
    selector = LabelSelector.from_raw({"matchLabels": {"app": "ours"}})
    cluster.set_reservation(Reservation("default", "res", "r", selector, 3))
    held = dict.fromkeys(("held", "held-and-free", "not-now"), 1)
    cluster.hold(("default", "res"), held)
    assert passes(PodCapacity(), query(cluster, pod("p"))) == ["held-and-free"]
    reserved = dict.fromkeys(held, 1.0)
    assert passes(PodCapacity(), query(cluster, pod("p"), reserved=reserved)) == ["held", "held-and-free"]


def test_full_unknown_and_silent_are_distinguished():
    assert reasons(PodCapacity(), query(CLUSTER, pod("p"), metrics_policy="Avoid")) == {
        "Insufficient measured capacity": 3,
        "node(s) had no measured capacity": 1,
        "node(s) had stale telemetry": 1,
    }


def test_room_that_is_held_for_others_is_distinguished_from_no_room():
    cluster = cluster_state([node("held"), node("full")], [], [capacity("held", 1.0), capacity("full", 0.0)])
    selector = LabelSelector.from_raw({"matchLabels": {"app": "others"}})
    cluster.set_reservation(Reservation("default", "res", "r", selector, 1))
    cluster.hold(("default", "res"), {"held": 1})
    assert reasons(PodCapacity(), query(cluster, pod("p"))) == {
        "Insufficient measured capacity": 1,
        "node(s) had their measured capacity held by PodReservations": 1,
    }
