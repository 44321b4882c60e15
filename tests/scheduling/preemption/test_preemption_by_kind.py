"""Preemption where pods take what their kind costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.cycle import schedule
from concerto.scheduling.preemption.preemption import Preemption
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

MI = 2**20


def cluster_knowing(work, held, *pods):
    """One node of 4 cores, and the cost of pods by name: core-seconds of work, and seconds for which they run."""
    status = capacity("n", -5.0)
    made = cluster_state([node("n")], pods, [replace(status, status=replace(status.status, system_cpu=0.0))])
    known = NodeKinds()
    for _ in range(10):
        known.pod_ended(pod("p").kind, PodMeasurement(work, held, held, 64 * MI, True), 0.0)
    made.kinds.set_table(known.table((), 0.0))
    return made


def outcome(cluster, asks):
    search = Preemption(cluster, profile(), asks, NOW)
    early = search.begin(asks)
    while early is None and search.look_at_next(asks):
        pass
    return early or search.take(asks)


def test_as_many_are_evicted_as_make_room_by_what_they_cost():
    running = [pod(f"p-{i}", nodeName="n", status={"startTime": f"2026-03-01T12:00:{i:02d}Z"}) for i in range(10)]
    cluster = cluster_knowing(2.0, 4.0, *running)  # half a core each, of 4.6
    found = outcome(cluster, pod("p-x", priority=100))
    assert [victim.name for victim in found.candidate.victims.pods] == ["p-8", "p-9"]
    assert outcome(cluster, pod("p-x")).candidate is None


def test_nobody_is_evicted_for_a_node_that_first_does_the_work_of_others():
    cluster = cluster_knowing(40.0, 400.0)
    placed = schedule(
        cluster, [pod(f"p-{i}") for i in range(100)], {"concerto": profile()}, now=NOW,
        generator=np.random.default_rng(1),
    )  # fmt: skip
    assert 0 < len(placed.decisions) < 46  # as many would fit, each with a tenth of a core
    found = outcome(cluster, pod("p-x", priority=100))
    assert found.candidate is None
    assert found.message.startswith("preemption: not needed: 1 node(s) can take the pod once")
