from itertools import pairwise

import numpy as np
import pytest

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.controllers.runtime.loop_watchdog import MAX_HELD_SECONDS
from concerto.scheduling.cycle import MAX_SECONDS, MAX_UNSCHEDULABLE, schedule
from concerto.scheduling.gangs.gang import MAX_PODS
from concerto.scheduling.queue import Queue
from concerto.scheduling.queue_marks import BeyondHeads, mark_failures
from concerto.scheduling.state.changes import Change
from support.gang_builders import add, group, member, members
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile
from support.step_counts import steps_of

KEY = ("default", "g")
ONE_CPU = {"cpu": "1"}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}]}}  # fmt: skip


def decide(cluster, heads, now=NOW, **more):
    by_name = {"concerto": profile()}
    return schedule(cluster, heads, by_name, now=now, generator=np.random.default_rng(0), **more)


def placed(result):
    return {d.pod.name: d.assignment.node for d in result.decisions}


def reported(result):
    return {u.pod.name: u.diagnosis.message for u in result.unschedulable}


def seen(cluster, *things):
    add(cluster, *things)
    return [each for each in things if hasattr(each, "shape")]


def nodes(*names, **over):
    return cluster_state([node(name, **over) for name in names])


def test_all_pods_of_a_gang_find_nodes_together():
    cluster = nodes("a", "b")
    pods = seen(cluster, group("g", 6), *members(6, requests=ONE_CPU))
    result = decide(cluster, pods)
    assert len(placed(result)) == 6
    assert set(placed(result).values()) == {"a", "b"}
    assert {d.assignment.gang for d in result.decisions} == {KEY}
    assert result.gangs == {KEY: None}


def test_a_gang_that_does_not_fit_takes_nothing():
    cluster = nodes("a")
    pods = seen(cluster, group("g", 6), *members(6, requests=ONE_CPU))
    small = [pod(f"small-{i}", requests=ONE_CPU) for i in range(4)]
    result = decide(cluster, [*pods, *small])
    assert placed(result) == {f"small-{i}": "a" for i in range(4)}
    assert reported(result) == {
        f"g-{i}": "0/1 nodes are available: 1 Insufficient cpu. "
        "PodGroup g needs 6 more pods at once, and only 4 found nodes."
        for i in range(6)
    }
    assert result.unschedulable[0].diagnosis.requeue_on == Change.NODE | Change.ENDED
    assert result.unschedulable[0].diagnosis.gang == KEY
    assert result.gangs[KEY] is result.unschedulable[0].diagnosis


def test_gangs_whose_pods_refuse_each_other_are_not_like_those_whose_pods_do_not():
    cluster = nodes("a")
    pods = []
    for name, app in (("g", "x"), ("h", "y")):
        pods += seen(
            cluster, group(name, 2), member(f"{name}-0", of=name, affinity=APART),
            member(f"{name}-1", of=name, labels={"app": app}),
        )  # fmt: skip
    assert placed(decide(cluster, pods)) == {"h-0": "a", "h-1": "a"}


def test_it_is_all_or_nothing_on_measured_capacity_as_well():
    cluster = cluster_state([node("a"), node("b")], (), [capacity("a", 3.0), capacity("b", 2.0)])
    pods = seen(cluster, group("g", 6), *members(6))
    assert placed(decide(cluster, pods)) == {}
    cluster.set_capacity(capacity("b", 3.0, version=2), NOW)
    assert len(placed(decide(cluster, pods))) == 6


def test_its_pods_start_together_whatever_the_pace_of_nodes():
    cluster = cluster_state([node("a")], (), [capacity("a", 1.0, room=4.0)])
    pods = seen(cluster, group("g", 4), *members(4))
    assert len(placed(decide(cluster, [pod("p1"), pod("p2")]))) == 1, "others start one after the other"
    cluster = cluster_state([node("a")], (), [capacity("a", 1.0, room=4.0)])
    assert len(placed(decide(cluster, seen(cluster, group("g", 4), *pods)))) == 4
    cluster = cluster_state([node("a")], (), [capacity("a", 1.0, room=3.0)])
    assert placed(decide(cluster, seen(cluster, group("g", 4), *pods))) == {}


HALF_A_CPU = {"cpu": "500m"}


def measured_by_kind(*pods):
    """One node of four cores; nothing has been measured of any kind yet."""
    cluster = cluster_state([node("a")], pods, [capacity("a", 8.0)])
    cluster.kinds.set_table({})
    return cluster


def test_a_gang_of_a_kind_that_was_never_measured_is_placed_where_it_fits_by_requests():
    cluster = measured_by_kind()
    alone = decide(cluster, [pod(f"p{i}", requests=HALF_A_CPU) for i in range(6)])
    assert len(placed(alone)) < 6, "one by one they are measured first"
    cluster = measured_by_kind()
    assert len(placed(decide(cluster, seen(cluster, group("g", 6), *members(6, requests=HALF_A_CPU))))) == 6


def test_a_gang_of_a_kind_that_was_never_measured_is_not_placed_beyond_requests():
    cluster = measured_by_kind()
    assert placed(decide(cluster, seen(cluster, group("g", 9), *members(9, requests=HALF_A_CPU)))) == {}


def test_a_gang_of_a_kind_that_was_never_measured_finds_no_room_where_others_have_been_seen_to_use_all():
    of_another_image = {"namespace": "others", "containers": [{"name": "main", "image": "other"}]}
    others = [pod(f"other-{i}", nodeName="a", phase="Running", **of_another_image) for i in range(14)]
    cluster = measured_by_kind(*others)
    kinds = NodeKinds()
    kinds.pod_ended(others[0].kind, PodMeasurement(2.0, 4.0, 4.0, 1e6, True), 0.0)
    cluster.kinds.set_table(kinds.table((), 0.0))
    assert cluster.kinds.left(0)[0] < 0.0
    result = decide(cluster, seen(cluster, group("g", 2), *members(2, requests=HALF_A_CPU)))
    assert placed(result) == {}
    assert "1 node(s) had less CPU left than the 1 that is assumed for a pod" in reported(result)["g-0"]


def test_beyond_the_minimum_each_pod_is_placed_where_there_is_room():
    cluster = nodes("a")
    pods = seen(cluster, group("g", 3), *members(6, requests=ONE_CPU))
    result = decide(cluster, pods)
    assert len(placed(result)) == 4
    assert set(reported(result).values()) == {"0/1 nodes are available: 1 Insufficient cpu."}
    assert len(reported(result)) == 2


def test_pods_that_come_later_are_placed_one_by_one():
    cluster = nodes("a")
    there = [member(f"there-{i}", nodeName="a", requests=ONE_CPU) for i in range(2)]
    late = [member(f"late-{i}", requests=ONE_CPU) for i in range(3)]
    seen(cluster, group("g", 2), *there, *late)
    result = decide(cluster, late)
    assert len(placed(result)) == 2
    assert {d.assignment.gang for d in result.decisions} == {None}


def test_pods_that_come_later_wait_until_so_many_are_bound_as_the_gang_needs():
    cluster = nodes("a", "b")
    pods = seen(cluster, group("g", 4), *members(4, requests=ONE_CPU))
    assert len(placed(decide(cluster, pods))) == 4
    late = seen(cluster, member("late", requests=ONE_CPU))
    result = decide(cluster, late)
    text = "0/2 nodes are available: waiting for pods of PodGroup g that are being bound."
    assert (placed(result), reported(result)) == ({}, {"late": text})
    assert result.unschedulable[0].diagnosis.condition_reason == "WaitingForPodGroup"
    cluster.pod_groups.take_changed()
    seen(cluster, *members(4, requests=ONE_CPU, nodeName="a"))
    assert cluster.pod_groups.take_changed() == {KEY}
    assert set(placed(decide(cluster, late))) == {"late"}


def test_two_gangs_that_fit_only_one_at_a_time_do_not_get_a_half_each():
    cluster = nodes("a")
    first = seen(cluster, group("one", 3), *members(3, "one", requests=ONE_CPU))
    second = seen(cluster, group("two", 3), *members(3, "two", requests=ONE_CPU))
    heads = [each for pair in zip(first, second) for each in pair]
    assert set(placed(decide(cluster, heads))) == {"one-0", "one-1", "one-2"}


def test_a_gang_of_several_templates():
    cluster = nodes("a", "b")
    pods = seen(
        cluster, group("g", 3), member("driver", requests={"cpu": "3"}), *members(2, requests={"cpu": "2"}),
    )  # fmt: skip
    assert set(placed(decide(cluster, pods))) == {"driver", "g-0", "g-1"}
    cluster = nodes("a", "b", allocatable={"cpu": 3000})
    add(cluster, group("g", 3), *pods)
    assert placed(decide(cluster, pods)) == {}


CPUS_IN_OTHER_ORDERS = {
    "the oldest first, as kube-scheduler does": (3, {"a": 4, "b": 3}, [2, 3, 2]),
    "the smallest first, where not all have to be placed": (2, {"a": 2}, [2, 1, 1]),
}


@pytest.mark.parametrize("sentence", CPUS_IN_OTHER_ORDERS)
def test_where_the_largest_pods_first_find_no_nodes_other_orders_are_tried(sentence):
    """By order: ``minCount``, CPUs of nodes, and CPUs of pods from the oldest to the youngest."""
    needed, sizes, wanted = CPUS_IN_OTHER_ORDERS[sentence]
    cluster = cluster_state([node(name, allocatable={"cpu": cpus * 1000}) for name, cpus in sizes.items()])
    pods = [member(f"g-{i}", requests={"cpu": str(cpus)}, created=NOW - 10 + i) for i, cpus in enumerate(wanted)]
    result = decide(cluster, seen(cluster, group("g", needed), *pods))
    assert len(placed(result)) == needed
    used = {name: sum(wanted[int(p[2:])] for p, where in placed(result).items() if where == name) for name in sizes}
    assert all(used[name] <= cpus for name, cpus in sizes.items())


def test_a_gang_that_fits_in_no_order_leaves_nothing_behind_and_is_reported_for_its_largest_pods():
    cluster = nodes("a")
    pods = seen(cluster, group("g", 3), *(member(f"g-{i}", requests={"cpu": str(3 - i)}) for i in range(3)))
    result = decide(cluster, [*pods, pod("small", requests={"cpu": "4"})])
    assert placed(result) == {"small": "a"}
    assert reported(result)["g-0"].endswith("PodGroup g needs 3 more pods at once, and only 1 found nodes.")


def test_constraints_between_the_pods_of_a_gang_hold_and_leave_no_trace():
    cluster = nodes("a", "b")
    pods = seen(cluster, group("g", 3), *members(3, labels={"app": "x"}, affinity=APART))
    others = [pod("other", labels={"app": "x"}, affinity=APART), pod("another", labels={"app": "x"}, affinity=APART)]
    result = decide(cluster, [*pods, *others])
    assert set(placed(result)) == {"other", "another"}
    assert set(placed(result).values()) == {"a", "b"}


def test_the_cluster_is_as_before_after_a_gang_that_does_not_fit():
    cluster = cluster_state([node("a"), node("b")], (), [capacity("a", 9.0), capacity("b", 9.0)])
    pods = seen(cluster, group("g", 12), *members(12, requests=ONE_CPU, labels={"app": "x"}))
    before = state_of(cluster)
    assert placed(decide(cluster, pods)) == {}
    assert state_of(cluster) == before


def state_of(cluster):
    rows = slice(0, cluster.size)
    return (
        cluster.measured.available[rows].tolist(), cluster.measured.live[rows].tolist(),
        cluster.resources.used("cpu", rows).tolist(), [len(list(cluster.pods_on.on(r))) for r in range(cluster.size)],
        cluster.signatures.version,
    )  # fmt: skip


def test_a_group_that_is_not_ready_is_reported_once_for_each_pod_and_requeued_by_its_group_alone():
    cluster = nodes("a")
    pods = seen(cluster, group("g", 3), *members(2))
    result = decide(cluster, [*pods, pod("small")])
    text = "0/1 nodes are available: waiting for 3 pods of PodGroup g, of which 2 are there."
    assert reported(result) == {"g-0": text, "g-1": text}
    assert placed(result) == {"small": "a"}
    diagnosis = result.unschedulable[0].diagnosis
    assert (diagnosis.requeue_on, diagnosis.condition_reason) == (Change.NOTHING, "WaitingForPodGroup")


def test_gangs_that_find_no_nodes_are_looked_at_once_for_all_that_are_alike():
    cluster = nodes("a")
    pods = []
    for i in range(50):
        pods += seen(cluster, group(f"g{i}", 6), *members(6, f"g{i}", requests=ONE_CPU))
    assert steps_of(lambda: decide(cluster, pods)) < 10 * steps_of(lambda: decide(cluster, pods[:6]))
    assert len(reported(decide(cluster, pods))) == 300


def test_a_gang_for_which_a_cycle_has_no_room_left_is_first_in_the_next_one():
    cluster = cluster_state([node("a", allocatable={"cpu": 64_000})])
    pods = seen(cluster, group("g", 4), *members(4))
    result = decide(cluster, [pod("p0"), pod("p1"), *pods], limit=5)
    assert set(placed(result)) == {"p0", "p1"}
    assert (result.has_more, result.postponed) == (True, pods[0])
    result = decide(cluster, [*pods, pod("p2"), pod("p3")], limit=5)
    assert set(placed(result)) == {"g-0", "g-1", "g-2", "g-3", "p2"}
    assert result.postponed is None


def test_a_gang_that_is_larger_than_a_cycle_is_decided_on_in_a_cycle_of_its_own():
    cluster = cluster_state([node("a", allocatable={"cpu": 64_000})])
    pods = seen(cluster, group("g", 7), *members(7))
    result = decide(cluster, [*pods, pod("p")], limit=5)
    assert len(placed(result)) == 7
    assert result.has_more


def test_a_gang_for_which_the_time_is_too_short_is_first_in_the_next_cycle_and_then_given_up():
    cluster = nodes("a", "b")
    pods = seen(cluster, group("g", 4), *members(4))
    ticks = iter(range(100))
    result = decide(cluster, [pod("p"), *pods], spent=lambda: next(ticks), max_seconds=2)
    assert placed(result) == {"p": "a"}
    assert (result.postponed, result.out_of_time) == (pods[0], True)
    assert reported(result) == {}
    ticks = iter(range(0, 100, 3))
    result = decide(cluster, [*pods, pod("q")], spent=lambda: next(ticks), max_seconds=2)
    assert placed(result) == {}
    assert set(reported(result)) == {"g-0", "g-1", "g-2", "g-3"}
    assert "looking for nodes for all pods of the PodGroup at once took too long" in reported(result)["g-0"]
    assert {failure.diagnosis.condition_reason for failure in result.unschedulable} == {"SchedulerError"}
    assert (result.postponed, result.out_of_time) == (None, True)


def test_a_gang_that_was_given_up_is_not_looked_at_for_a_while_however_it_changes():
    cluster = nodes("a", "b")
    pods = seen(cluster, group("g", 4), *members(4))
    ticks = iter(range(0, 100, 3))
    given_up = decide(cluster, pods, spent=lambda: next(ticks), max_seconds=2)
    assert given_up.look_again_at_gangs == {KEY: NOW + 1.0}
    changed = [*pods, *seen(cluster, group("g", 5), member("more"))]
    result = decide(cluster, [*changed, pod("q")], now=NOW + 0.9)
    assert placed(result) == {"q": "a"}
    assert {"looking for nodes for all pods of the PodGroup at once took too long" in text
            for text in reported(result).values()} == {True}  # fmt: skip
    small = seen(cluster, group("small", 2), *members(2, "small"))
    assert len(placed(decide(cluster, small, now=NOW + 0.9))) == 2
    assert len(placed(decide(cluster, changed, now=NOW + 1.0))) == 5


def test_a_gang_that_was_postponed_is_decided_on_behind_one_that_holds_room_and_so_are_those_behind_it():
    cluster = nodes("a")
    holds = seen(cluster, group("h", 4), *members(4, "h", requests=ONE_CPU))
    add(cluster, pod("there", nodeName="a", requests=ONE_CPU))
    decide(cluster, holds)
    decide(cluster, holds, now=NOW + 6)
    assert cluster.pod_groups.held_room.holder == ("default", "h")
    wide = seen(cluster, group("p", 300), *members(300, "p", requests={"cpu": "10m"}))
    singles = [pod(f"single-{i}", requests={"cpu": "100m"}) for i in range(3)]
    heads = [*singles, *wide, pod("tiny")]
    result = decide(cluster, heads, now=NOW + 7)
    assert (placed(result), result.postponed) == ({}, wide[0])
    result = decide(cluster, heads, now=NOW + 8, postponed=wide[0])
    assert result.postponed is None
    assert {each.name for each in wide} <= set(reported(result))
    assert placed(result) == {"tiny": "a"}
    assert cluster.pod_groups.held_room.holder == ("default", "h")


def test_a_gang_that_was_postponed_is_decided_on_although_a_large_pod_comes_first_of_its_priority():
    cluster = cluster_state([node("a")], (), [capacity("a", 9.0)])
    large = pod("large", created="1970-01-01T00:00:00Z", owner="Job")
    cluster.large_pods.sizes.add_pod(large, "a")
    cluster.large_pods.sizes.report("a", {large.uid: 3900.0})
    wide = seen(cluster, group("p", 4), *members(4, "p"))
    heads = [*wide, large, pod("tiny")]
    result = decide(cluster, heads, limit=3)
    assert result.postponed == wide[0]
    result = decide(cluster, heads, limit=3, postponed=wide[0])
    assert result.postponed is None
    assert {each.name for each in wide} <= set(placed(result))


def test_a_gang_never_takes_so_much_time_that_the_event_loop_is_held_for_too_long(monkeypatch):
    """To take pods back takes a sixth of the time that it took to place them (500 different pods on 1,000 nodes)."""
    cluster = nodes("a", "b", allocatable={"pods": MAX_PODS})
    seconds, placing = 0.0, 0.0005
    assume, forget = cluster.assume, cluster.forget

    def taking(act, time):
        def take(*args):
            nonlocal seconds
            seconds += time
            return act(*args)

        return take

    monkeypatch.setattr(cluster, "assume", taking(assume, placing))
    monkeypatch.setattr(cluster, "forget", taking(forget, placing / 6))
    pods = seen(cluster, group("g", MAX_PODS), *members(MAX_PODS, requests={"cpu": "1m"}))
    result = decide(cluster, pods, spent=lambda: seconds, max_seconds=MAX_SECONDS)
    assert set(result.gangs) == {KEY}
    assert "took too long" in reported(result)["g-0"]
    assert MAX_SECONDS < seconds < 0.9 * MAX_HELD_SECONDS


def test_what_is_to_be_finished_goes_first_to_where_it_was_recorded_whatever_was_measured_since():
    cluster = cluster_state([node("a"), node("b")], (), [capacity("a", 0.0), capacity("b", 9.0)])
    bound = member("g-bound", nodeName="a", requests=ONE_CPU)
    pods = seen(cluster, group("g", 3), *members(2, requests=ONE_CPU), bound)
    for each in pods[:2]:
        cluster.pod_groups.must_finish(KEY, each.uid, "a")
    vip = pod("vip", priority=1000, requests={"cpu": "4"})
    result = decide(cluster, [vip, *pods])
    assert placed(result) == {"g-0": "a", "g-1": "a", "vip": "b"}


def test_what_is_to_be_finished_and_takes_too_long_is_finished_in_several_cycles():
    cluster = nodes("a", "b")
    bound = member("g-bound", nodeName="a", requests=ONE_CPU)
    pods = seen(cluster, group("g", 4), *members(3, requests=ONE_CPU), bound)
    for each in pods[:3]:
        cluster.pod_groups.must_finish(KEY, each.uid, "a")
    heads = [pod("vip", priority=9), *pods]
    rounds = [placed(decide(cluster, heads, spent=lambda: 2, max_seconds=1)) for _ in pods[:3]]
    assert rounds == [{"g-0": "a"}, {"g-1": "a"}, {"g-2": "a"}]


@pytest.mark.parametrize("lost", ["gone", "cordoned", "full"])
def test_what_is_to_be_finished_finds_other_nodes_where_the_recorded_one_is_lost(lost):
    cluster = cluster_state([node("a", unschedulable=lost == "cordoned"), node("b")])
    bound = member("g-bound", nodeName="b", requests=ONE_CPU)
    pods = seen(cluster, group("g", 3), *members(2, requests=ONE_CPU), bound)
    for each in pods[:2]:
        cluster.pod_groups.must_finish(KEY, each.uid, "a")
    if lost == "gone":
        cluster.remove_node("a")
    if lost == "full":
        add(cluster, pod("there", nodeName="a", requests={"cpu": "4"}))
    assert placed(decide(cluster, pods[:2])) == {"g-0": "b", "g-1": "b"}


def test_what_is_to_be_finished_takes_the_room_that_there_is_before_all_others():
    cluster = nodes("a")
    bound = member("g-bound", nodeName="a", requests={"cpu": "3"})
    pods = seen(cluster, group("g", 3), *members(2, requests=ONE_CPU), bound)[:2]
    for each in pods:
        cluster.pod_groups.must_finish(KEY, each.uid, "gone")
    result = decide(cluster, [pod("lone", requests=ONE_CPU), *pods])
    assert (placed(result), set(reported(result))) == ({"g-0": "a"}, {"g-1", "lone"})
    result = decide(cluster, [pod("lone", requests=ONE_CPU), *pods])
    assert (placed(result), set(reported(result))) == ({}, {"g-1", "lone"})


def test_what_is_to_be_finished_waits_while_it_backs_off():
    cluster = nodes("a")
    bound = member("g-bound", nodeName="a", requests=ONE_CPU)
    pods = seen(cluster, group("g", 3), *members(3, requests=ONE_CPU), bound)[:3]
    for each in pods[:2]:
        cluster.pod_groups.must_finish(KEY, each.uid, "a")
    other, more = pod("other", requests=ONE_CPU), pod("more", requests=ONE_CPU, priority=9)
    result = decide(cluster, [more, other, pods[2]], ready=lambda uid: uid not in ("uid-g-0", "uid-g-1"))
    assert (placed(result), cluster.is_placed("uid-g-0")) == ({"more": "a"}, False)
    held = "0/1 nodes are available: 1 Insufficient cpu. Some room is held for the pods of a PodGroup for a short time."
    text = "0/1 nodes are available: waiting for pods of PodGroup g that are being bound."
    assert reported(result) == {"other": held, pods[2].name: text, "g-0": text, "g-1": text}
    result = decide(cluster, [other], ready=lambda uid: uid != "uid-g-0")
    assert set(placed(result)) == {"g-1"}


def test_a_gang_that_backs_off_holds_no_room_meanwhile():
    cluster = nodes("a")
    pods = seen(cluster, group("g", 4), *members(4, requests=ONE_CPU))
    add(cluster, pod("there", nodeName="a", requests=ONE_CPU))
    decide(cluster, pods)
    decide(cluster, pods, now=NOW + 6)
    other = pod("other", requests=ONE_CPU)
    assert placed(decide(cluster, [other], now=NOW + 7)) == {}
    assert placed(decide(cluster, [other], now=NOW + 8, ready=lambda uid: uid == other.uid)) == {"other": "a"}


def test_what_is_to_be_finished_is_reported_if_the_time_was_over_before_one_pod_found_a_node():
    cluster = nodes("a")
    bound = member("g-bound", nodeName="a", requests={"cpu": "4"})
    pods = seen(cluster, group("g", 3), *members(2, requests=ONE_CPU), bound)[:2]
    for each in pods:
        cluster.pod_groups.must_finish(KEY, each.uid, "a")
    result = decide(cluster, pods, spent=lambda: 2, max_seconds=1)
    assert (placed(result), set(reported(result))) == ({}, {"g-0", "g-1"})
    assert result.gangs[KEY] is not None


def test_what_is_to_be_finished_holds_no_room_as_it_is_looked_at_first_anyway():
    cluster = nodes("a")
    bound = member("g-bound", nodeName="a", requests={"cpu": "4"})
    pods = seen(cluster, group("g", 2), member("g-0", requests=ONE_CPU), bound)[:1]
    cluster.pod_groups.must_finish(KEY, pods[0].uid, "a")
    for second in range(8):
        decide(cluster, pods, now=NOW + second)
    assert cluster.pod_groups.held_room.holder is None


def test_every_pod_of_a_gang_that_finds_no_nodes_waits_until_something_changes():
    cluster = nodes("a")
    pods = seen(cluster, group("g", 400), *(member(f"g-{i}", requests={"cpu": f"{1000 + i}m"}) for i in range(502)))
    waiting = Queue(signatures=cluster.signatures)
    for each in pods:
        waiting.set(each)
    result = decide(cluster, waiting.heads(NOW))
    assert len(reported(result)) == MAX_PODS, "these stand for all"
    mark_failures(waiting, result, NOW)
    assert list(waiting.heads(NOW + 1)) == []
    waiting.requeue_pod_group(KEY)
    assert len(list(waiting.heads(NOW + 1, limit=1000))) == 502


NOT_PLACED = {
    "no PodGroup": [],
    "too few pods": [group("g", 5000), group("h", 5000)],
    "a fault": [group("g", 2, priority=9), group("h", 2, priority=9)],
}


@pytest.mark.parametrize("groups", NOT_PLACED.values(), ids=NOT_PLACED)
def test_a_cycle_costs_the_same_however_many_unlike_pods_wait_in_gangs_that_are_not_ready(groups):
    def steps(count: int) -> int:
        cluster = nodes("a")
        pods = (member(f"{of}-{i}", of, requests={"cpu": f"{1000 + i}m"}) for i in range(count) for of in "gh")
        waiting = Queue(signatures=cluster.signatures)
        for each in seen(cluster, *groups, *pods):
            waiting.set(each)
        beyond = BeyondHeads(waiting)

        def cycle() -> None:
            for of in "gh":
                waiting.requeue_pod_group(("default", of))
            result = decide(cluster, waiting.heads(NOW))
            assert len(result.gangs) == 2
            mark_failures(waiting, result, NOW)
            beyond.add(result)
            assert len(list(beyond.take(100))) == 100

        cycle()
        return steps_of(cycle)

    assert steps(3000) < 1.2 * steps(600)


def test_a_cycle_ends_once_it_has_found_no_nodes_for_so_many_pods_of_gangs():
    cluster = nodes("a")
    names = [f"g{i}" for i in range(2 * MAX_UNSCHEDULABLE // 200)]
    pods = [each for name in names for each in members(200, name, requests={"cpu": "9"})]
    seen(cluster, *(group(name, 200) for name in names), *pods)
    waiting = Queue(signatures=cluster.signatures)
    for each in pods:
        waiting.set(each)
    found = []
    resume = False
    for _ in range(2):
        result = decide(cluster, waiting.heads(NOW, resume=resume), resume=resume)
        mark_failures(waiting, result, NOW)
        found.append({key[1] for key in result.gangs})
        resume = result.out_of_time
    assert [len(each) for each in found] == [len(names) // 2] * 2
    assert found[0] | found[1] == set(names)


def test_a_gang_of_more_pods_than_it_needs_is_requeued_by_what_helps_any_of_them():
    cluster = nodes("a")
    largest = member("elsewhere", nodeSelector={"kubernetes.io/hostname": "b"}, requests={"cpu": "3500m"})
    pods = seen(cluster, group("g", 2), largest, *members(2, requests={"cpu": "3"}))
    found = decide(cluster, pods).gangs[KEY]
    assert "1 node(s) didn't match Pod's node affinity/selector" in found.message
    assert found.requeue_on == Change.NODE | Change.ENDED


def test_gangs_that_go_first_take_no_part_of_what_a_cycle_may_find_no_nodes_for():
    cluster = nodes("a", "b")
    for name in (f"g{i}" for i in range(MAX_UNSCHEDULABLE // MAX_PODS)):
        bound, *rest = members(MAX_PODS + 1, name)
        seen(cluster, group(name, 2), member(bound.name, name, nodeName="b"), *rest)
        cluster.pod_groups.must_finish(("default", name), rest[0].uid, "b")
    result = decide(cluster, [pod("other")], ready=lambda uid: uid == "uid-other")
    assert len(result.unschedulable) == MAX_UNSCHEDULABLE
    assert placed(result) == {"other": "a"}


def unfinished(cluster, count, of_each):
    """So many gangs of which one pod is bound, and for the others, each unlike the rest, there is no room."""
    names = [f"g{i}" for i in range(count)]
    for name in names:
        rest = [member(f"{name}-{i}", name, requests={"cpu": f"{9000 + i}m"}) for i in range(of_each)]
        seen(cluster, group(name, 2), member(f"{name}-bound", name, nodeName="b"), *rest)
        for each in rest:
            cluster.pod_groups.must_finish(("default", name), each.uid, "b")
    return names


def test_gangs_whose_last_pods_find_no_nodes_do_not_take_up_all_cycles():
    cluster, resume, results = nodes("a", "b"), False, []
    names = unfinished(cluster, 3, 5)
    for i in range(12):
        ticks = iter(range(100))
        heads = [pod(f"other-{i}", requests={"cpu": "1m"})]
        result = decide(cluster, heads, resume=resume, spent=lambda ticks=ticks: next(ticks), max_seconds=3)
        results.append(({key[1] for key in result.gangs}, bool(placed(result))))
        resume = result.out_of_time
    assert [next(iter(gangs), "") for gangs, _ in results[:3]] == names, "each goes first once"
    later = results[3:]
    assert all(one or another for (_, one), (_, another) in pairwise(later)), "others have each second cycle"
    assert set().union(*(gangs for gangs, _ in later)) == set(names), "each has its turn again"


def test_unfinished_gangs_are_looked_at_before_others_at_least_once_and_then_in_turn():
    cluster, looked_at, resume = nodes("a", "b"), [], False
    names = unfinished(cluster, 12, 200)
    for i in range(8):
        result = decide(cluster, [pod(f"other-{i}", requests={"cpu": "1m"})], resume=resume)
        looked_at.append(({key[1] for key in result.gangs}, bool(placed(result))))
        resume = result.out_of_time
    first = next(i for i, (_, others) in enumerate(looked_at) if others)
    assert set().union(*(gangs for gangs, _ in looked_at[: first + 1])) == set(names), (
        "none has lost its room to others"
    )
    later = [gangs for gangs, _ in looked_at[first + 1 :]]
    assert all(others for _, others in looked_at[first + 1 :])
    assert set().union(*later) == set(names)


def test_what_unfinished_gangs_cost_a_cycle_does_not_grow_with_their_number():
    def steps(count: int) -> int:
        cluster = nodes("a", "b")
        unfinished(cluster, count, 100)
        for _ in range(count // 10):
            decide(cluster, [])
        return steps_of(lambda: decide(cluster, []))

    assert steps(40) < 1.2 * steps(20)


def test_an_error_over_one_pod_costs_its_gang_and_nobody_else(monkeypatch):
    cluster = nodes("a")
    pods = seen(cluster, group("g", 2), member("bad", labels={"bad": "y"}), member("good"))
    of = cluster.signatures.of

    def breaks(asked):
        if asked.labels:
            raise RuntimeError("broken")
        return of(asked)

    result_pods = [*pods, pod("small")]
    monkeypatch.setattr(cluster.signatures, "of", breaks)
    result = decide(cluster, result_pods)
    assert placed(result) == {"small": "a"}
    assert set(reported(result)) == {"bad", "good"}
    assert "Scheduling failed with an internal error" in reported(result)["good"]
