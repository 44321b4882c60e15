"""Cycle after cycle over one queue: whose turn it is, and who is looked at where the time of a cycle does not do."""

from __future__ import annotations

from collections import Counter
from itertools import chain, count

import numpy as np

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.cycle import schedule
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

NAMESPACES, CYCLES, LOOKED_AT = 12, 30, 5


class Cycles:
    """A queue and a node that measures pods of any kind, so that larger pods of one second come first."""

    def __init__(self, *pods):
        self.cluster = cluster_state([node("n", allocatable={"cpu": 64_000, "pods": 1000})], [], [capacity("n", 100.0)])
        known = NodeKinds()
        for each in pods:
            measured = PodMeasurement(0.01, 10.0, 10.0, 2.0**20, True)
            known.pod_ended(each.kind, measured, 0.0)
        self.cluster.kinds.set_table(known.table((), 0.0))
        self.queue = Queue(signatures=self.cluster.signatures)
        for each in pods:
            self.queue.set(each)
        self.out_of_time = False

    def run(self, looked_at=LOOKED_AT):
        """One cycle, whose time is over after so many pods; returns the pods that were placed."""
        spent = count()
        heads = self.queue.heads(NOW, resume=self.out_of_time)
        result = schedule(
            self.cluster,
            chain((next(heads),), heads),
            {"concerto": profile()},
            now=NOW,
            generator=np.random.default_rng(1),
            resume=self.out_of_time,
            spent=lambda: float(next(spent)),
            max_seconds=looked_at - 1,
        )
        self.queue.note_turns(result.turns)
        for decision in result.decisions:
            self.queue.take(decision.pod.uid)
        for failure in result.unschedulable:
            self.queue.mark_all([(failure.pod.uid, Change.CAPACITY, False)], NOW)
        self.out_of_time = result.out_of_time
        return [decision.pod for decision in result.decisions]


def test_namespaces_take_turns_however_few_pods_a_cycle_can_look_at():
    pods = [pod(f"p{n}-{i}", namespace=f"n{n:02}") for n in range(NAMESPACES) for i in range(CYCLES * LOOKED_AT)]
    cycles, served = Cycles(*pods), Counter()
    for _ in range(CYCLES):
        served.update(each.namespace for each in cycles.run())
    assert len(served) == NAMESPACES
    assert max(served.values()) - min(served.values()) <= 1


def test_large_pods_that_have_failed_do_not_hide_small_ones_of_the_same_second():
    large = [pod(f"large-{i}", requests={"cpu": f"{100 + i}"}) for i in range(8)]
    small = [pod(f"small-{i}") for i in range(3)]
    cycles, placed = Cycles(*small, *large), []
    for _ in range(4):
        placed += cycles.run()
        cycles.queue.requeue(Change.CAPACITY)
    assert {each.name for each in placed} == {each.name for each in small}
