"""Room that people's reservations hold, by what the pods that they are for were measured to cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concerto.api.podreservation import Reservation
from concerto.api.selectors import LabelSelector
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.cycle import schedule
from concerto.scheduling.reservation_placement import place
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.reserved_loads import MAX_COMPARED, find_kind
from support.scheduling_builders import GI, NOW, capacity, cluster_state, node, pod, profile

MI = 2**20
KEY = ("default", "res")
COSTS = {
    "heavy": (8.0, 4.0, GI),
    "light": (0.4, 4.0, 16 * MI),
    "big": (0.4, 4.0, 12.5 * GI),
    "less": (0.4, 4.0, 12 * GI),
}
"""Work, seconds for which they hold their place, and memory: heavy pods take two cores, light ones a tenth of one."""


def a_pod(kind, number=0, **over):
    return pod(f"{kind}-{number}", labels={"app": kind}, containers=[{"name": "main", "image": kind}], **over)


def cluster(*pods, nodes=1, known=("heavy", "light")):
    """Nodes of eight cores and 16 GiB whose agents count units, of which there are none left."""
    names = [f"n{i}" for i in range(nodes)]
    statuses = [capacity(name, -5.0) for name in names]
    statuses = [replace(each, status=replace(each.status, system_cpu=0.0)) for each in statuses]
    made = cluster_state([node(name, allocatable={"cpu": 8000, "memory": 16 * GI}) for name in names], pods, statuses)
    table = NodeKinds()
    for kind in known:
        work, held, memory = COSTS[kind]
        for _ in range(10):
            table.pod_ended(a_pod(kind).kind, PodMeasurement(work, held, held, memory, True), 0.0)
    made.kinds.set_table(table.table((), 0.0))
    return made


def reserve(made, kind, units, on="n0"):
    selector = LabelSelector.from_raw({"matchLabels": {"app": kind}})
    view = Reservation(*KEY, "uid", selector, units)
    made.set_reservation(view)
    find_kind(made, view)
    if on:
        made.hold(KEY, {on: units})


def placed(made, *pods, last_pods=0.0):
    made.kinds.loads.settings = replace(made.kinds.loads.settings, min_burst_seconds=1e6, last_pods=last_pods)
    decisions = schedule(made, pods, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(1)).decisions
    return len(decisions)


def running(kind, number=100):
    return a_pod(kind, number, nodeName="n0", phase="Running")


def test_room_for_heavy_pods_is_held_from_light_ones_by_what_heavy_pods_cost():
    made = cluster(running("heavy"))
    reserve(made, "heavy", 2)
    light = placed(made, *(a_pod("light", i) for i in range(60)))
    assert light == pytest.approx((8 * 1.15 - 2.0 - 2 * 2.0) / 0.1, abs=1)
    assert placed(made, a_pod("heavy", 1), a_pod("heavy", 2)) == 2


def test_room_for_light_pods_keeps_no_heavy_one_away():
    made = cluster(running("light"))
    reserve(made, "light", 10)
    assert placed(made, *(a_pod("heavy", i) for i in range(9))) == 4, "ten light pods take one core of 9.2"


@pytest.mark.parametrize(("waiting", "goes_beyond"), [(50, True), (80, False)])
def test_the_last_pods_are_not_counted_on_room_that_is_held_for_others(waiting, goes_beyond):
    made = cluster(running("heavy"))
    reserve(made, "heavy", 2)
    # 9.2 cores less 2 in use and 4 held leave 3.2, and as much beyond
    light = placed(made, *(a_pod("light", i) for i in range(waiting)), last_pods=0.4)
    assert light == (waiting if goes_beyond else pytest.approx(32, abs=1))


def test_pods_that_wait_for_room_held_for_them_need_no_other_room():
    made = cluster(running("heavy"))
    reserve(made, "heavy", 2)
    waiting = [*(a_pod("heavy", i) for i in range(2)), *(a_pod("light", i) for i in range(40))]
    assert placed(made, *waiting, last_pods=0.4) == len(waiting)


def test_memory_is_held_too():
    made = cluster(running("heavy"), known=COSTS)
    reserve(made, "heavy", 2)
    assert placed(made, a_pod("big")) == 0, "of 15.2 GiB, one is used and two are held"
    assert placed(made, a_pod("less")) == 1


def test_while_no_pod_was_seen_that_may_use_it_a_unit_is_a_pod_like_the_one_that_asks():
    made = cluster()
    reserve(made, "heavy", 20)
    assert placed(made, *(a_pod("light", i) for i in range(90))) == pytest.approx((8 * 1.15 - 20 * 0.1) / 0.1, abs=1)


def test_the_first_pod_that_uses_a_reservation_shows_what_the_others_cost():
    made = cluster()
    reserve(made, "heavy", 3)
    assert placed(made, a_pod("heavy", 1)) == 1
    light = placed(made, *(a_pod("light", i) for i in range(90)))
    assert light == pytest.approx((8 * 1.15 - 3 * 2.0) / 0.1, abs=1)


@pytest.mark.parametrize(("kind", "units"), [("heavy", 4), ("light", 92)])
def test_a_reservation_finds_as_many_places_as_its_pods_have_whatever_units_are_left(kind, units):
    made = cluster(running(kind))
    reserve(made, kind, 1000, on="")
    (held,) = find(made, 1000).values()
    assert held == pytest.approx(min(units - 1, 109), abs=1)


def find(made, units):
    view = made.ledger.reservations.views()[0]
    return place(made, view, now=NOW, max_units=units, stale_after_seconds=60.0)


def test_places_are_looked_for_on_the_emptiest_nodes():
    made = cluster(running("heavy"), nodes=3)
    reserve(made, "heavy", 2, on="")
    assert find(made, 2) == {"n1": 1, "n2": 1}


def test_as_long_as_nothing_was_measured_of_its_pods_units_of_capacity_are_held():
    made = cluster(running("heavy"), known=("light",))
    reserve(made, "heavy", 4, on="")
    assert find(made, 4) == {}, "the agents have no units left"


@pytest.mark.parametrize("release", [lambda made: made.remove_reservation(KEY), lambda made: made.hold(KEY, {})])
def test_pods_that_wait_for_held_room_are_tried_again_once_it_is_free(release):
    made = cluster(running("heavy"))
    reserve(made, "heavy", 3)
    assert placed(made, a_pod("light-other"), *(a_pod("heavy-other", i) for i in range(5))) <= 4
    assert Change.CAPACITY in release(made)


@pytest.mark.parametrize(("others", "is_found"), [(MAX_COMPARED - 1, True), (MAX_COMPARED, False)])
def test_a_reservation_is_compared_with_the_latest_pods_of_its_namespace(others, is_found):
    made = cluster(running("heavy"), *(running("light", number) for number in range(others)))
    reserve(made, "heavy", 1)
    assert (made.ledger.reservations.kind_of(KEY) is not None) is is_found
