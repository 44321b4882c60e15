"""Who is looked at when cycles run out of time: each pod once a round, the namespaces in turn."""

from __future__ import annotations

import numpy as np

from concerto.api.schedulingprofile import ProfileSettings
from concerto.controllers.scheduling.fair_order import FairOrder
from concerto.scheduling.cycle import CycleResult, Unschedulable, schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod

NOWHERE = Diagnosis(1, {}, Change.NODE)
PROFILES = {"concerto": Profile.build(ProfileSettings.from_raw({"schedulerName": "concerto"}))}


def backlog(namespace, count, **over):
    return [pod(f"{namespace}-{i}", namespace=namespace, **over) for i in range(count)]


def queue_of(pods):
    queue = Queue()
    for each in pods:
        queue.set(each)
    return queue


def cycle(order, pods, looked_at):
    """A cycle that finds no node for that many pods, and then runs out of time; returns who was looked at."""
    ordered = order.order(pods)
    seen, left = ordered[:looked_at], ordered[looked_at:]
    result = CycleResult(
        unschedulable=[Unschedulable(p, NOWHERE) for p in seen], left=list(left), out_of_time=bool(left)
    )
    order.on_result(ordered, result, queue_of(pods))
    return [p.name for p in seen]


def test_as_long_as_there_is_time_the_queue_decides():
    pods = backlog("a", 3) + backlog("b", 1)
    order = FairOrder()
    for _ in range(3):
        assert cycle(order, pods, 4) == ["a-0", "a-1", "a-2", "b-0"]


def test_one_pod_behind_ten_thousand_of_another_namespace_is_looked_at_in_the_second_cycle():
    pods = backlog("crowd", 10_000) + backlog("victim", 1)
    order = FairOrder()
    assert "victim-0" not in cycle(order, pods, 250)
    assert "victim-0" in cycle(order, pods, 250)


def test_pods_that_find_no_node_and_are_requeued_by_every_event_do_not_come_before_the_others():
    pods = backlog("a", 10)
    order = FairOrder()
    seen = [name for _ in range(5) for name in cycle(order, pods, 2)]
    assert sorted(seen) == sorted(p.name for p in pods), "each once in a round of five cycles"


def test_higher_priority_comes_first_but_once_a_round():
    pods = backlog("high", 3, priority=100) + backlog("low", 3)
    order = FairOrder()
    assert [cycle(order, pods, 2) for _ in range(3)] == [["high-0", "high-1"], ["high-2", "low-0"], ["low-1", "low-2"]]


def test_the_queue_decides_again_after_a_cycle_that_looked_at_every_pod():
    pods = backlog("a", 4) + backlog("b", 2)
    order = FairOrder()
    cycle(order, pods, 2)
    cycle(order, pods, len(pods))
    assert cycle(order, pods, 6) == [p.name for p in pods]


def test_pods_that_have_gone_are_forgotten():
    order = FairOrder()
    for number in range(50):
        cycle(order, backlog(f"n{number}", 1000), 999)
    assert len(order._had_turn) <= 21_000


def test_a_cycle_without_time_looks_at_one_pod_and_leaves_the_rest():
    cluster = cluster_state([node("n1")], capacities=[capacity("n1", 10.0)])
    result = schedule(
        cluster, backlog("a", 5), PROFILES, now=NOW, generator=np.random.default_rng(1), out_of_time=lambda: True
    )
    assert len(result.decisions) == 1 and [p.name for p in result.left] == ["a-1", "a-2", "a-3", "a-4"]
    assert result.out_of_time


def test_a_cycle_with_time_leaves_nothing():
    cluster = cluster_state([node("n1")], capacities=[capacity("n1", 10.0)])
    result = schedule(cluster, backlog("a", 5), PROFILES, now=NOW, generator=np.random.default_rng(1))
    assert not result.left and not result.out_of_time
