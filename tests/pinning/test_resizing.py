"""Which CPUs a pod that is resized in place keeps, gives up and gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_allocator import CCX, HYBRID, PHYSICAL, PLAIN, SEED, WORKLOADS, occupancy

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.pinning.allocator import allocate
from concerto.pinning.conflicts import Claim, conflict, shared_pool
from concerto.pinning.occupancy import Features, Occupancy
from concerto.pinning.resizing import resize
from concerto.pinning.topology import bits, to_mask
from support.topologies import machine, occupancies

EMPTY = occupancy(SEED)  # CPU n and n+10 share a core; 0-4 and 10-14 are socket 0

# workload, features, level, the node without the pod, CPUs it has, threads it is to have, CPUs it gets
RESIZES = {
    "cpu-bound: another idle core of its socket": ("cpu-bound", PLAIN, "CPU", EMPTY, "7-8", 3, "5,7-8"),
    "cpu-bound: its own siblings before another socket": ("cpu-bound", PLAIN, "CPU", EMPTY, "0-4", 7, "0-4,10-11"),
    "cpu-bound: another socket before siblings of other pods' cores": (
        "cpu-bound", PLAIN, "CPU", occupancy(SEED, ("1-4,11-13", "CPU")), "0", 3, "0,5,10",
    ),
    "cpu-bound: siblings of other pods' cores where nothing else is left": (
        "cpu-bound", PLAIN, "CPU", occupancy(SEED, ("1-9,15-19", "CPU")), "0", 3, "0,10-11",
    ),
    "cpu-bound: near first, in its core complex": ("cpu-bound", PLAIN, "CPU", occupancy(CCX), "8", 3, "8-10"),
    "cpu-bound: a core for each thread": ("cpu-bound", PHYSICAL, "Core", EMPTY, "0-4", 6, "0-5"),
    "cpu-bound: no core is left": (
        "cpu-bound", PHYSICAL, "Core", occupancy(SEED, ("3-9", "Core")), "0-1", 4, None,
    ),
    "memory-bound: the memory node with fewer of its CPUs": (
        "memory-bound", PLAIN, "CPU", EMPTY, "0-1,5", 4, "0-1,5-6",
    ),
    "io-bound: the sibling of its core": ("io-bound", PLAIN, "CPU", EMPTY, "3", 2, "3,13"),
    "cpu-bound: cores of its own kind": ("cpu-bound", PLAIN, "CPU", occupancy(HYBRID), "8", 3, "8-10"),
    "best-effort: nothing changes": ("best-effort", PLAIN, "None", EMPTY, "3", 5, "3"),
    "a CPU of it is switched off": ("cpu-bound", PLAIN, "CPU", occupancy(machine(1, 2, 1)), "0,2", 3, None),
    "pods without a binding would have no CPU": ("cpu-bound", PLAIN, "CPU", EMPTY, "0-18", 20, None),
    "fewer: a core for each thread": ("cpu-bound", PLAIN, "CPU", EMPTY, "0-4,10-12", 3, "0-2"),
    "fewer: a socket rather than two": ("cpu-bound", PLAIN, "CPU", EMPTY, "0,5-8", 4, "5-8"),
    "fewer: still on both memory nodes": ("memory-bound", PLAIN, "CPU", EMPTY, "0-1,5-6", 2, "0,5"),
    "fewer: the siblings of one core": ("io-bound", PLAIN, "CPU", EMPTY, "0-1,10", 2, "0,10"),
    "as many": ("cpu-bound", PLAIN, "CPU", EMPTY, "0,5", 2, "0,5"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "features", "level", "node", "own", "threads", "expected"), RESIZES.values(), ids=RESIZES
)
def test_a_pod_keeps_its_cpus_and_gets_more_near_them_or_gives_some_up(
    workload, features, level, node, own, threads, expected
):
    found = resize(node, to_mask(parse_cpu_list(own)), workload, threads, features, level)
    assert (None if found is None else format_cpu_list(bits(found.cpus))) == expected


@given(
    occupancies(),
    st.lists(st.tuples(st.sampled_from(WORKLOADS), st.integers(1, 6)), min_size=1, max_size=4),
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_whatever_it_is_resized_to_nobody_loses_a_cpu(node, others, sizes, physical, sockets):
    features = Features(physical_cores=physical, memory_bound_exclusive_sockets=sockets)
    claims: list[Claim] = []
    kinds: list[str] = []
    for workload, threads in others:
        now = Occupancy(node.index, node.reserved, node.kubelet_exclusive, tuple(claims))
        if (found := allocate(now, workload, threads, features)) is not None:
            claims.append(Claim(found.cpus, found.level, workload == "best-effort"))
            kinds.append(workload)
    if not claims:
        return
    own, *rest = claims
    alone = Occupancy(node.index, node.reserved, node.kubelet_exclusive, tuple(rest))
    for threads in sizes:
        found = resize(alone, own.cpus, kinds[0], threads, features, own.level)
        if found is None:
            continue
        if kinds[0] != "best-effort":
            assert found.cpus.bit_count() == threads
        assert found.cpus & own.cpus in (found.cpus, own.cpus), "it keeps what it has, or some of it"
        assert found.mems == node.index.mems(found.cpus)
        claim = Claim(found.cpus, found.level, own.best_effort)
        closed = node.index.closure(claim.cpus, claim.level) | claim.cpus
        assert not closed & (node.reserved | node.kubelet_exclusive) and not found.cpus & ~node.index.online
        assert own.best_effort or not any(conflict(node.index, claim, other) for other in rest)
        assert shared_pool(node.index, node.kubelet_exclusive, [claim, *rest])
        own = claim
