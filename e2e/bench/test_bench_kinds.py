"""What 5,000 nodes measure of kinds of pods: taking it in, merging it, and what holding it takes.

Run: ``pytest -s -m bench e2e/bench/test_bench_kinds.py --benchmark-columns=min,median``
"""

from __future__ import annotations

import random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from concerto.api.pod_kind import kind_of
from concerto.api.subspacesnapshot import KindEntry
from concerto.capacity.kinds.cluster_kinds import ROWS_A_LOOK, ClusterKinds
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds, to_entries
from support.traced_memory import traced_memory

pytestmark = pytest.mark.bench

NODES, PODS_A_NODE, WORKLOADS, NAMESPACES = 5000, 30, 300, 20
KINDS = [
    kind_of(f"team-{n % NAMESPACES:02d}", "Deployment", f"service-{n:03d}", (("app", f"registry.invalid/{n:03d}:v1"),))
    for n in range(WORKLOADS)
]


def published(node: int, chance: random.Random) -> tuple[KindEntry, ...]:
    """The table of a node whose pods are of 30 workloads."""
    running = [
        (KINDS[(node * PODS_A_NODE + pod) % WORKLOADS], PodMeasurement(chance.random(), 100.0, 100.0, 3e7, False, 0.01))
        for pod in range(PODS_A_NODE)
    ]
    return to_entries(NodeKinds().table(running, 0.0))


@pytest.fixture(scope="module")
def cluster() -> ClusterKinds:
    found, chance = ClusterKinds(), random.Random(1)
    tables = [published(node, chance) for node in range(WORKLOADS)]
    with traced_memory() as memory:
        for node in range(NODES):
            found.set_entries(f"n{node}", tables[node % WORKLOADS], 8.0, 2.0**35)
    rows = NODES * len(tables[0])
    print(f"\n{rows} rows of {NODES} nodes in {memory.held / 2**20:.0f} MiB, {memory.held / rows:.0f} bytes a row")
    return found


def test_a_node_publishes(benchmark: BenchmarkFixture, cluster: ClusterKinds) -> None:
    chance = random.Random(2)
    tables = [published(node, chance) for node in range(100)]
    numbers = iter(range(10**9))

    def take() -> None:
        number = next(numbers)
        cluster.set_entries(f"n{number % NODES}", tables[number % 100], 8.0, 2.0**35)

    benchmark(take)


def test_what_changed_is_added_up(benchmark: BenchmarkFixture, cluster: ClusterKinds) -> None:
    def change() -> None:
        for key in cluster._keys:
            cluster._change(key)

    benchmark.pedantic(lambda: cluster.table(ROWS_A_LOOK), setup=change, rounds=20)
