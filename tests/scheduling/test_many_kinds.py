"""A cluster of more workloads than one SubspaceSnapshot can hold has as much room as one of few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from concerto.api.pod_kind import kind_of
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.cycle import schedule
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

NODES, WORKLOADS, PODS_A_NODE = 40, 240, 24
SERVICES = [kind_of("shop", "Deployment", f"web-{i}", (("main", f"web:{i}"),)) for i in range(WORKLOADS)]
USED = {kind: PodMeasurement(0.01 + 0.02 * i, 100.0, 100.0, 1e7, False, 0.001) for i, kind in enumerate(SERVICES)}


def test_idle_pods_of_many_workloads_leave_room_for_a_job_that_was_never_measured():
    names = [f"n{i}" for i in range(NODES)]
    services = {name: SERVICES[i % 10 * PODS_A_NODE :][:PODS_A_NODE] for i, name in enumerate(names)}
    running = [
        replace(pod(f"{name}-{kind.key}", nodeName=name), kind=kind) for name in names for kind in services[name]
    ]
    cluster = cluster_state([node(name) for name in names], running, [capacity(name, 50.0) for name in names])
    known = ClusterKinds()
    for name in names:
        known.set_node(name, NodeKinds().table([(kind, USED[kind]) for kind in services[name]], 0.0), 4.0)
    cluster.kinds.set_table(known.table())
    while cluster.kinds.are_behind:
        cluster.kinds.catch_up()
    job = kind_of("shop", "Job", "new", (("main", "new:1"),))
    waiting = [replace(pod(f"new-{i}"), kind=job) for i in range(NODES)]
    result = schedule(cluster, waiting, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0))
    assert not result.unschedulable
    assert {decision.assignment.node for decision in result.decisions} == {*names}
