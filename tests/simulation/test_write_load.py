"""What agents of busy nodes write: all nodes share one API server."""

from __future__ import annotations

import pytest

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import PodLoad
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import PI_2000, JobSpec

BUDGET = 0.2
"""Writes a second of a busy node, on average: statuses and models together."""
STEADY = PodLoad(wait_seconds=5.0, core_seconds=4.0, bursts=0)
LOADS = {
    "pods that come and go": (JobSpec("pi", 240, PI_2000),),
    "services whose load comes and goes": (
        *(JobSpec(f"service-{node}", 2, STEADY, node=node) for node in range(3)),
        JobSpec("long", 3, PodLoad(wait_seconds=100.0, core_seconds=100.0, bursts=20)),
    ),
}


def writes_a_second(jobs: tuple[JobSpec, ...], **settings: bool) -> float:
    """Of a busy node, on average."""
    policy = Concerto(**settings)
    World(Setup((NodeSpec(count=3),), jobs), policy, 1).run()
    return policy.agents.writes / policy.agents.busy_seconds


@pytest.mark.parametrize("name", LOADS)
def test_a_busy_node_is_written_about_at_most_once_in_five_seconds(name):
    found = writes_a_second(LOADS[name])
    print(f"{name}: {found:.2f} writes a second of a busy node")
    assert found <= BUDGET


@pytest.mark.parametrize("name", LOADS)
def test_units_of_capacity_need_more(name):
    found = writes_a_second(LOADS[name], kinds=False)
    print(f"{name}, pods as units: {found:.2f} writes a second of a busy node")
    assert found > BUDGET
