"""Cycles that place pods by what their kind costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.cycle import schedule
from support.scheduling_builders import GI, NOW, capacity, cluster_state, node, pod, profile

MI = 2**20


def knows(cluster, **kinds):
    """Have the cluster know the cost of pods by name: work, seconds for which they hold their place, and memory."""
    known = NodeKinds()
    for name, (work, held, memory) in kinds.items():
        for _ in range(10):
            known.pod_ended(pod(name).kind, PodMeasurement(work, held, held, memory, True), 0.0)
    cluster.kinds.set_table(known.table((), 0.0))
    return cluster


def measured(name, *, system_cpu=0.0):
    made = capacity(name, -5.0)
    return replace(made, status=replace(made.status, system_cpu=system_cpu))


def run(cluster, *pods, now=NOW):
    return schedule(cluster, pods, {"concerto": profile()}, now=now, generator=np.random.default_rng(1))


def kinds_apart(name):
    """A pod of a kind of its own, and not of the images of others."""
    return pod(name, containers=[{"name": "main", "image": name}])


def test_a_decision_says_what_the_pod_was_taken_to_cost_and_what_was_left():
    cluster = knows(cluster_state([node("n")], [], [measured("n", system_cpu=0.25)]), p=(2.0, 4.0, 64 * MI))
    (decision,) = run(cluster, pod("p")).decisions
    cost = decision.assignment.cost
    assert (cost.cpu_millicores, cost.cpu_seconds, cost.known_from) == (500, 2.0, "Ended")
    assert cost.memory_bytes == 64 * MI
    assert cost.head_room == 1.15
    assert cost.cpu_left_millicores == pytest.approx(1.15 * 3000, abs=1)
    assert cost.memory_left_bytes == pytest.approx(0.95 * 8 * GI, rel=1e-6)
    assert decision.assignment.available == pytest.approx(1.15 * 3.0 / 0.5, rel=1e-3)


def test_a_node_that_is_over_by_units_takes_pods_by_what_they_cost():
    cluster = knows(cluster_state([node("n")], [], [measured("n")]), p=(0.0, 10.0, 64 * MI))
    assert len(run(cluster, *(pod(f"p-{i}") for i in range(20))).decisions) == 20


def test_while_nothing_is_known_of_any_kind_a_decision_carries_no_cost():
    cluster = cluster_state([node("n")], [], [capacity("n", 5.0)])
    (decision,) = run(cluster, pod("p")).decisions
    assert decision.assignment.cost is None
    assert decision.assignment.available == 5.0
