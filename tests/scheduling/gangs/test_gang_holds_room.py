"""Gangs beside a stream of smaller pods, which take each piece of room that comes free."""

from collections import Counter, deque
from itertools import pairwise

import numpy as np
import pytest

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.cycle import schedule
from support.gang_builders import add, group, member, members
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

KEY = ("default", "g")
ONE_CPU = {"cpu": "1"}


class Stream:
    """A cluster in which pods of one CPU come and end one after the other."""

    def __init__(self, *nodes, **gangs):
        self.cluster = cluster_state(nodes)
        self.gangs = {name: members(count, name, requests=ONE_CPU) for name, count in gangs.items()}
        for name, pods in self.gangs.items():
            add(self.cluster, group(name, len(pods)), *pods)
        self.now = NOW
        self.made = 0
        self.running = []

    def cycle(self, *, small=2):
        """One cycle a second later, before which the oldest of the small pods has ended and others have come."""
        self.now += 1.0
        if self.running:
            ended = self.running.pop(0)
            self.cluster.set_pod(pod(ended.name, nodeName="a", phase="Succeeded", requests=ONE_CPU), self.now)
        fresh = [pod(f"small-{self.made + i}", requests=ONE_CPU) for i in range(small)]
        self.made += small
        heads = [each for pods in self.gangs.values() for each in pods]
        result = schedule(
            self.cluster, [*fresh, *heads], {"concerto": profile()}, now=self.now, generator=np.random.default_rng(0)
        )
        for decision in result.decisions:
            bound = pod(decision.pod.name, nodeName=decision.assignment.node, requests=ONE_CPU)
            if decision.pod.group:
                continue
            self.cluster.set_pod(bound, self.now)
            self.running.append(bound)
        return {d.pod.name for d in result.decisions}, result


def test_a_gang_is_placed_beside_a_stream_of_small_pods_of_its_priority():
    stream = Stream(node("a"), g=4)
    first, _ = stream.cycle(small=4)
    assert len(first) == 4
    for _ in range(30):
        placed, _ = stream.cycle()
        if "g-0" in placed:
            break
    assert {"g-0", "g-1", "g-2", "g-3"} <= placed
    assert stream.now - NOW < 15.0
    assert stream.cluster.pod_groups.held_room.holder is None


def placed_beside_a_stream(cluster, pods, count=8, seconds=15, **of_stream):
    """So many small pods run at a time, and each ends after about two seconds, until the gang is placed.

    Returns:
        When the gang was placed, seconds after it came, and its nodes; None if it was not.
    """
    running = deque()
    for step in range(4 * seconds):
        now = NOW + step / 4
        while running and running[0][0] <= now:
            _, name, on = running.popleft()
            cluster.set_pod(pod(name, nodeName=on, phase="Succeeded", **of_stream), now)
        fresh = [pod(f"small-{step}-{i}", **of_stream) for i in range(count - len(running))]
        result = schedule(
            cluster, [*fresh, *pods], {"concerto": profile()}, now=now, generator=np.random.default_rng(step)
        )
        if result.gangs.get(KEY, ...) is None:
            return now - NOW, Counter(d.assignment.node for d in result.decisions if d.pod.group)
        for decision in result.decisions:
            # Each one lives a little longer than the one before, as starts differ
            on, life = decision.assignment.node, 2.0 + (len(running) % 4) / 4
            cluster.set_pod(pod(decision.pod.name, nodeName=on, **of_stream), now)
            running.append((now + life, decision.pod.name, on))
        running = deque(sorted(running))
    return None


def test_room_that_comes_free_in_pieces_too_small_for_the_gang_is_held_for_it():
    """Two nodes, each of which has room for three pods of the gang beside one of the stream."""
    cluster, pods = cluster_state([node("a"), node("b")]), members(6, requests={"cpu": "1200m"})
    add(cluster, group("g", 6), *pods)
    placed_after, on = placed_beside_a_stream(cluster, pods, requests={"cpu": "400m"})
    assert placed_after < 10.0
    assert on == {"a": 3, "b": 3}


def test_measured_room_that_comes_free_in_pieces_too_small_for_the_gang_is_held_for_it():
    """A node that is filled to 4.6 cores, of which 4 are taken: too few are left for a pod that takes 3.5."""
    small = {"containers": [{"name": "main", "image": "small"}], "namespace": "others"}
    there = [pod(f"there-{i}", nodeName="a", phase="Running", **small) for i in range(20)]
    cluster, pods = cluster_state([node("a")], there, [capacity("a", 8.0)]), members(1)
    add(cluster, group("g", 1), *pods)
    kinds = NodeKinds()
    for one, cores in ((pods[0], 3.5), (there[0], 0.2)):
        kinds.pod_ended(one.kind, PodMeasurement(2.0 * cores, 2.0, 2.0, 1e6, True), 0.0)
    cluster.kinds.set_table(kinds.table((), 0.0))

    def cycle(at):
        heads, random = [pod(f"small-{at}", **small), *pods], np.random.default_rng(0)
        return [
            d.pod.name for d in schedule(cluster, heads, {"concerto": profile()}, now=at, generator=random).decisions
        ]

    assert cycle(NOW) == [f"small-{NOW}"]
    assert cycle(NOW + 5.0) == [f"small-{NOW + 5.0}"], "it asks for room only now"
    assert cycle(NOW + 6.0) == []


def test_room_to_come_is_held_where_the_least_has_to_leave_and_on_no_node_that_is_too_small():
    cluster = cluster_state([node("small", allocatable={"cpu": 2500}), node("busy"), node("free")])
    pods = members(2, requests={"cpu": "2600m"})
    taken = {"busy": 3500, "free": 2000, "small": 0}
    there = [pod(f"on-{on}", nodeName=on, requests={"cpu": f"{amount}m"}) for on, amount in taken.items() if amount]
    add(cluster, group("g", 2), *pods, *there)

    def cycle(at, heads):
        random = np.random.default_rng(0)
        return schedule(cluster, [*heads, *pods], {"concerto": profile()}, now=at, generator=random)

    for at in (NOW, NOW + 5.0):
        assert cycle(at, ()).decisions == []
    others = [pod(f"p-{i}", requests={"cpu": "500m"}) for i in range(12)]
    assert Counter(d.assignment.node for d in cycle(NOW + 6.0, others).decisions) == {"small": 5}


def test_small_pods_pass_where_the_gang_has_no_use_for_the_room():
    stream = Stream(node("a"), node("b", taints=[("x", "y", "NoSchedule")]), g=4)
    stream.cycle(small=4)
    for _ in range(6):
        stream.cycle()
    assert stream.cluster.pod_groups.held_room.holder == KEY
    tolerant = pod("t", requests=ONE_CPU, tolerations=[{"operator": "Exists"}])
    result = schedule(
        stream.cluster, [tolerant, *stream.gangs["g"]], {"concerto": profile()}, now=stream.now,
        generator=np.random.default_rng(0),
    )  # fmt: skip
    assert [(d.pod.name, d.assignment.node) for d in result.decisions] == [("t", "b")]


def test_a_gang_that_never_completes_blocks_nobody_for_long():
    stream = Stream(node("a", allocatable={"cpu": 6000}), g=6)
    add(stream.cluster, pod("service", nodeName="a", requests={"cpu": "2"}))  # it never ends
    stream.cycle(small=4)
    placed_at, held = [], 0
    for _ in range(120):
        placed, result = stream.cycle()
        placed_at += [stream.now] * len(placed)
        held += result.held_until < float("inf")
    gaps = [later - earlier for earlier, later in pairwise(placed_at)]
    assert 0 < held <= 62
    assert max(gaps) < 33.0
    assert len(placed_at) > 50
    assert not any(stream.cluster.is_placed(each.uid) for each in stream.gangs["g"])


def test_a_gang_that_is_larger_than_the_cluster_holds_nothing():
    stream = Stream(node("a"), g=5)
    stream.cycle(small=4)
    for _ in range(60):
        _, result = stream.cycle()
        assert result.held_until == float("inf")


IMPOSSIBLE = {
    "a selector that no node matches": {"nodeSelector": {"no": "node"}},
    "more than any node has": {"requests": {"cpu": "5"}},
    "a taint that it does not tolerate": {"nodeSelector": {"kubernetes.io/hostname": "tainted"}},
}


@pytest.mark.parametrize("over", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_gang_with_a_pod_that_no_node_would_take_holds_nothing(over):
    tainted = node("tainted", labels={"kubernetes.io/hostname": "tainted"}, taints=[("x", "y", "NoSchedule")])
    cluster = cluster_state([node("a"), node("b"), tainted], [pod("there", nodeName="a", requests={"cpu": "3"})])
    pods = [*members(3, requests={"cpu": "2"}), member("odd", **{"requests": ONE_CPU, **over})]
    add(cluster, group("g", 4), *pods)
    for at in range(60):
        small = pod(f"small-{at}", requests={"cpu": "10m"})
        result = schedule(
            cluster, [*pods, small], {"concerto": profile()}, now=NOW + at, generator=np.random.default_rng(at)
        )
        assert [d.pod.name for d in result.decisions] == [small.name]
        assert result.held_until == float("inf")
        assert cluster.pod_groups.held_room.holder is None


def test_a_gang_that_may_do_without_the_pod_that_no_node_would_take_holds_room():
    cluster = cluster_state([node("a")], [pod("there", nodeName="a", requests={"cpu": "3"})])
    pods = [*members(1, requests={"cpu": "2"}), member("odd", nodeSelector={"no": "node"})]
    add(cluster, group("g", 1), *pods)
    for at in (NOW, NOW + 5.0):
        schedule(cluster, pods[:1], {"concerto": profile()}, now=at, generator=np.random.default_rng(0))
    assert cluster.pod_groups.held_room.holder == KEY


def test_who_finds_no_room_meanwhile_is_told_why():
    stream = Stream(node("a"), g=4)
    stream.cycle(small=4)
    while True:
        _, result = stream.cycle()
        if result.held_until < float("inf"):
            break
    _, result = stream.cycle()
    by_name = {u.pod.name: u for u in result.unschedulable}
    small = next(u for name, u in by_name.items() if name.startswith("small"))
    assert small.diagnosis.message.endswith("Some room is held for the pods of a PodGroup for a short time.")
    assert by_name["g-0"].always_considered


def test_those_of_a_higher_priority_go_before_a_gang_that_holds_room():
    stream = Stream(node("a"), g=4)
    stream.cycle(small=4)
    for _ in range(7):
        stream.cycle()
    assert stream.cluster.pod_groups.held_room.holder == KEY
    vip = pod("vip", requests=ONE_CPU, priority=10)
    heads = [vip, *stream.gangs["g"]]
    result = schedule(
        stream.cluster, heads, {"concerto": profile()}, now=stream.now, generator=np.random.default_rng(0)
    )
    assert [d.pod.name for d in result.decisions] == ["vip"]


def test_held_units_of_measured_capacity_go_to_nobody_else_and_come_back():
    cluster = cluster_state([node("a")], (), [capacity("a", 3.0)])
    pods = members(4)
    add(cluster, group("g", 4), *pods)

    def cycle(at, *heads):
        return schedule(cluster, [*heads], {"concerto": profile()}, now=at, generator=np.random.default_rng(0))

    cycle(NOW, *pods)
    result = cycle(NOW + 5.0, pod("small"), *pods)
    assert [d.pod.name for d in result.decisions] == ["small"], "it asks for room only now"
    result = cycle(NOW + 6.0, pod("other"), *pods)
    assert (result.decisions, result.held_until) == ([], NOW + 35.0)
    assert cluster.measured.available[0] == 2.0
    result = cycle(NOW + 35.0, pod("other"), *pods)
    assert result.released
    assert [d.pod.name for d in result.decisions] == ["other"]


def beside_a_slow_gang(pods, needed, there):
    """Pods that may go to a node of their own, in 20 cycles beside a gang each look at whose pods takes long.

    Returns:
        How many of them were placed once the gang held room for the first time.
    """
    own = node("own", labels={"own": "yes"}, taints=[("x", "y", "NoSchedule")], allocatable={"cpu": 100000})
    cluster, spent, placed, began = cluster_state([node("a"), own], there), [0.0], 0, False
    resume, postponed = False, None
    add(cluster, group("g", needed), *pods)

    def clock():
        spent[0] += 0.01
        return spent[0]

    for step in range(20):
        spent[0] = 0.0
        on_own = {"nodeSelector": {"own": "yes"}, "tolerations": [{"operator": "Exists"}]}
        result = schedule(
            cluster, [pod(f"other-{step}", **on_own), *pods], {"concerto": profile()}, now=NOW + step,
            generator=np.random.default_rng(0), resume=resume, postponed=postponed, spent=clock, max_seconds=0.2,
        )  # fmt: skip
        resume, postponed = result.out_of_time, result.postponed
        began = began or result.held_until < float("inf")
        placed += began and len(result.decisions)
    return placed


def test_a_gang_of_many_different_pods_that_holds_room_leaves_time_for_others():
    pods = [member(f"g-{i}", requests={"cpu": f"{i + 10}m"}) for i in range(40)]
    assert beside_a_slow_gang(pods, 40, [pod("there", nodeName="a", requests={"cpu": "4"})]) >= 14


def test_a_gang_that_takes_all_time_of_a_cycle_does_not_hold_room_for_long():
    pods = members(40, requests={"cpu": "100m"})
    assert beside_a_slow_gang(pods, 30, [pod("there", nodeName="a", requests={"cpu": "3"})]) >= 6
