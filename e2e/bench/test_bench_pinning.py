"""What it costs to find CPUs for a pod on a large node. Measures; passes or fails nothing.

Run: ``pytest e2e/bench/test_bench_pinning.py --benchmark-columns=min,median,mean,max``
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from concerto.api.nodecputopology import Cache, Core, CPUTopology
from concerto.pinning.allocator import Features, Occupancy, WorkloadType, allocate
from concerto.pinning.conflicts import Claim
from concerto.pinning.topology import TopologyIndex

pytestmark = pytest.mark.bench


def large_node() -> CPUTopology:
    """2 sockets of 64 cores with 2 threads each; 8 cores share an L3."""
    cores = [Core(n // 64, n % 64, frozenset({n, n + 128})) for n in range(128)]
    sockets = {s: frozenset(c for core in cores[s * 64 : (s + 1) * 64] for c in core.cpus) for s in range(2)}
    caches = [Cache(3, frozenset(c for core in cores[i : i + 8] for c in core.cpus)) for i in range(0, 128, 8)]
    return CPUTopology(tuple(cores), sockets, tuple(caches))


@pytest.mark.parametrize("workload", ["cpu-bound", "memory-bound", "io-bound", "best-effort"])
@pytest.mark.parametrize("threads", [4, 64])
@pytest.mark.parametrize("physical", [False, True], ids=["CPUs", "physical cores"])
def test_allocate(benchmark: BenchmarkFixture, workload: WorkloadType, threads: int, physical: bool) -> None:
    features = Features(physical_cores=physical)
    index = TopologyIndex.build(large_node())
    claims: list[Claim] = []
    number = 0
    while sum(claim.cpus.bit_count() for claim in claims) < index.online.bit_count() // 2:  # in pieces
        number += 1
        kind: WorkloadType = "cpu-bound" if number % 2 else "io-bound"
        placement = allocate(Occupancy(index, 3, 0, tuple(claims)), kind, 2 + number % 3, features)
        assert placement is not None
        claims.append(Claim(placement.cpus, placement.level))

    def place() -> object:
        # The occupancy anew each time: what it computes of the claims is part of the cost
        return allocate(Occupancy(index, 3, 0, tuple(claims)), workload, threads, features)

    # 64 threads find no 64 idle cores then
    fits = not physical or workload == "best-effort" or threads < 64
    assert (benchmark(place) is not None) == fits
