"""Gangs beside a stream of smaller pods, which take each piece of room that comes free."""

from itertools import pairwise

import numpy as np

from concerto.scheduling.cycle import schedule
from support.gang_builders import add, group, members
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
