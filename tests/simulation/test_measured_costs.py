"""What simulated agents measure of pods on an overloaded node is what they measure of them on an empty one."""

from __future__ import annotations

import numpy as np
import pytest

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.policies.raw_pods import kind_of_job
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec

# As fitted to real nodes (e2e.compare.calibrate): starts and ends wait for a CPU as pods do
REAL = NodeModelSettings(
    start_seconds=(0.4, 0.8),
    start_when_full_seconds=0.0,
    spike_threads=0,
    start_core_seconds=0.2,
    end_core_seconds=0.1,
)


def shares_of(load, plant, cores, pods, seed):
    """Cores that pods take, measured on a node that has one at a time, and on one that gets the others at once."""
    alone = Arrivals("Paced", per_second=0.0437)  # not in step with kubelet, which looks once a second
    jobs = (
        JobSpec("empty", 20, load, arrivals=alone, node=0),
        JobSpec("before", 3, load, arrivals=alone, node=1),
        JobSpec("full", pods, load, arrivals=Arrivals(start_seconds=100.0), node=1),
    )
    policy = Concerto()
    World(Setup((NodeSpec(count=2, cores=cores),), jobs, plant=plant), policy, seed).run()
    table = policy.agents.cluster_kinds.table()
    sums = [table[kind_of_job(job).key] for job in jobs]
    return [each.work / each.held for each in sums]


@pytest.mark.parametrize(
    ("load", "plant", "cores"),
    [
        (PodLoad(wait_seconds=2.0, core_seconds=2.0), REAL, 1.0),
        (PodLoad(wait_seconds=2.0, core_seconds=2.0), REAL, 4.0),
        (PodLoad(wait_seconds=0.3, core_seconds=2.0, threads=4), NodeModelSettings(), 4.0),
        (PodLoad(wait_seconds=0.3, core_seconds=4.0, cpu_limit=0.5), REAL, 1.0),
    ],
    ids=["one CPU", "four CPUs", "four threads", "a quota"],
)
def test_pods_cost_the_same_on_an_overloaded_node_as_on_an_empty_one(load, plant, cores):
    """On average: pods end in step with their kubelet's looks, sooner after them on one node than on another."""
    empty, _, full = np.mean([shares_of(load, plant, cores, 40, seed) for seed in (1, 2, 3)], axis=0)
    assert full == pytest.approx(empty, rel=0.1)
