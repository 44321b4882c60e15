from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.api.nodecputopology import Cache, Core, CPUTopology
from concerto.pinning.allocator import BEST_EFFORT_PODS_PER_CPU, allocate
from concerto.pinning.conflicts import Claim, conflict, shared_pool
from concerto.pinning.occupancy import Features, Occupancy, default_level
from concerto.pinning.scoring import allocatable, normalise, score
from concerto.pinning.topology import TopologyIndex, bits, to_mask
from support.topologies import machine, occupancies

SEED = machine(2, 5, 2)  # CPU n and n+10 share a core; 0-4 and 10-14 are socket 0
ONE_SOCKET = machine(1, 5, 2)
SUB_NUMA = machine(2, 8, 2, numa_per_socket=2)
CCX = machine(1, 16, 2, l3_cores=4)
PLAIN = Features()
PHYSICAL = Features(physical_cores=True)
WORKLOADS = ["cpu-bound", "memory-bound", "io-bound", "best-effort"]


def occupancy(topology, *claims: tuple[str, str], reserved: str = "", kubelet: str = "") -> Occupancy:
    return Occupancy(
        TopologyIndex.build(topology),
        to_mask(parse_cpu_list(reserved)),
        to_mask(parse_cpu_list(kubelet)),
        tuple(Claim(to_mask(parse_cpu_list(cpus)), level) for cpus, level in claims),
    )


def placed(node: Occupancy, workload: str, threads: int, features: Features = PLAIN) -> str | None:
    found = allocate(node, workload, threads, features)
    return None if found is None else format_cpu_list(bits(found.cpus))


# workload, threads, features, the node, CPUs
PLACEMENTS = {
    "cpu-bound: a core each, in one socket": ("cpu-bound", 4, PLAIN, occupancy(SEED), "0-3"),
    "cpu-bound: the socket with most idle cores": ("cpu-bound", 3, PLAIN, occupancy(SEED, ("0-1", "CPU")), "5-7"),
    "cpu-bound: another socket rather than two": ("cpu-bound", 4, PLAIN, occupancy(SEED, ("0-1", "CPU")), "5-8"),
    "cpu-bound: one socket and its siblings, if no socket has the cores": (
        "cpu-bound", 8, PLAIN, occupancy(SEED), "0-4,10-12",
    ),
    "cpu-bound: the whole socket, if the other is in use": (
        "cpu-bound", 8, PLAIN, occupancy(SEED, ("0", "CPU")), "5-9,15-17",
    ),
    "cpu-bound: idle cores of both sockets before siblings": (
        "cpu-bound", 4, PLAIN, occupancy(SEED, ("0-1,5-6", "CPU")), "2-3,7-8",
    ),
    "cpu-bound: a core of each socket rather than two siblings": (
        "cpu-bound", 2, PLAIN, occupancy(SEED, ("0-3,5-8", "CPU")), "4,9",
    ),
    "cpu-bound: own siblings before those of others": (
        "cpu-bound", 4, PLAIN, occupancy(SEED, ("0-3,5-8", "CPU")), "4,9,14,19",
    ),
    "cpu-bound: two sockets for more than a socket's CPUs": ("cpu-bound", 11, PLAIN, occupancy(SEED), "0-10"),
    "cpu-bound: both sockets evenly, where a core for each is asked for": (
        "cpu-bound", 7, PHYSICAL, occupancy(SEED), "0-3,5-7",
    ),
    "cpu-bound: siblings only when no core is idle": ("cpu-bound", 12, PLAIN, occupancy(SEED), "0-11"),
    "cpu-bound: one core complex": ("cpu-bound", 4, PLAIN, occupancy(CCX, ("0", "CPU")), "4-7"),
    "cpu-bound: one sub-NUMA cluster": ("cpu-bound", 4, PLAIN, occupancy(SUB_NUMA, ("1", "None")), "4-7"),
    "cpu-bound: a reserved CPU's core is not idle": ("cpu-bound", 2, PLAIN, occupancy(ONE_SOCKET, reserved="0"), "1-2"),
    "cpu-bound: a core with a reserved CPU is nobody's own": (
        "cpu-bound", 2, PHYSICAL, occupancy(ONE_SOCKET, reserved="0"), "1-2",
    ),
    "memory-bound: nor is a socket": (
        "memory-bound", 2, Features(memory_bound_exclusive_sockets=True), occupancy(machine(3, 2, 2), reserved="0"),
        "2,4",
    ),
    "cpu-bound: kubelet's CPUs are left alone": ("cpu-bound", 2, PHYSICAL, occupancy(ONE_SOCKET, kubelet="5"), "1-2"),
    "cpu-bound: more threads than physical cores": ("cpu-bound", 11, PHYSICAL, occupancy(SEED), None),
    "memory-bound: alternately on both memory nodes": ("memory-bound", 4, PLAIN, occupancy(SEED), "0-1,5-6"),
    "memory-bound: the odd thread where most is idle": (
        "memory-bound", 3, PLAIN, occupancy(SEED, ("0", "CPU")), "1,5-6",
    ),
    "memory-bound: siblings once the cores are out": ("memory-bound", 12, PLAIN, occupancy(SEED), "0-10,15"),
    "memory-bound: a socket of its own, of one": (
        "memory-bound", 2, Features(memory_bound_exclusive_sockets=True), occupancy(CCX), None,
    ),
    "memory-bound: two sockets cannot both be exclusive, and one would pack it": (
        "memory-bound", 2, Features(memory_bound_exclusive_sockets=True), occupancy(SEED), None,
    ),
    "memory-bound: one thread needs one socket": (
        "memory-bound", 1, Features(memory_bound_exclusive_sockets=True), occupancy(SEED), "0",
    ),
    "memory-bound: idle cores of one node before siblings of busy ones on the other": (
        "memory-bound", 4, PLAIN, occupancy(SEED, ("0-4", "CPU")), "5-8",
    ),
    "memory-bound: own siblings before those of others": (
        "memory-bound", 4, PLAIN, occupancy(SEED, ("0-3,5-8", "CPU")), "4,9,14,19",
    ),
    "memory-bound: all sockets that nobody is on": (
        "memory-bound", 2, Features(memory_bound_exclusive_sockets=True), occupancy(machine(3, 2, 2), ("0", "CPU")),
        "2,4",
    ),
    "io-bound: both threads of a core": ("io-bound", 2, PLAIN, occupancy(SEED), "0,10"),
    "io-bound: then the next": ("io-bound", 3, PLAIN, occupancy(SEED), "0-1,10"),
    "io-bound: the half core that is left": ("io-bound", 1, PLAIN, occupancy(SEED, ("2", "CPU")), "12"),
    "best-effort: one CPU for all threads": ("best-effort", 8, PLAIN, occupancy(SEED), "0"),
    "best-effort: beside the busy before an idle core": ("best-effort", 1, PLAIN, occupancy(SEED, ("7", "CPU")), "17"),
    "nothing is left for the others": ("cpu-bound", 20, PLAIN, occupancy(SEED), None),
    "all but one CPU": ("cpu-bound", 19, PLAIN, occupancy(SEED), "0-18"),
    "reserved CPUs are enough for the others": ("cpu-bound", 18, PLAIN, occupancy(SEED, reserved="0,10"), "1-9,11-19"),
    "one CPU, which the others need": ("cpu-bound", 1, PLAIN, occupancy(machine(1, 1, 1)), None),
    "a whole machine is somebody's": ("io-bound", 1, PLAIN, occupancy(SEED, ("0,5", "Socket")), None),
}  # fmt: skip


@pytest.mark.parametrize(("workload", "threads", "features", "node", "expected"), PLACEMENTS.values(), ids=PLACEMENTS)
def test_threads_go_where_their_kind_does_best(workload, threads, features, node, expected):
    assert placed(node, workload, threads, features) == expected


def test_the_default_exclusiveness_is_the_features():
    assert [default_level(w, PLAIN) for w in WORKLOADS] == ["CPU", "CPU", "CPU", "None"]
    assert [default_level(w, PHYSICAL) for w in WORKLOADS] == ["Core", "Core", "Core", "None"]
    every = Features(True, True, True)
    assert [default_level(w, every) for w in WORKLOADS] == ["Core", "Socket", "Core", "None"]


def test_best_effort_pods_share_a_cpu_with_each_other_and_with_nobody_else():
    features = Features(best_effort_shared_cpus=True)
    node = occupancy(SEED, ("0", "None"))
    first = allocate(node, "best-effort", 1, features)
    assert first is not None
    claim = Claim(first.cpus, first.level, best_effort=True)
    assert first.cpus & to_mask({0}) == 0, "0 is not a best-effort pod's"
    assert allocate(Occupancy(node.index, claims=(*node.claims, claim)), "best-effort", 1, features) == first


def test_without_the_feature_best_effort_pods_share_a_few_cpus_and_take_none_exclusively():
    claims: list[Claim] = []
    for _ in range(2 * BEST_EFFORT_PODS_PER_CPU):
        found = allocate(Occupancy(TopologyIndex.build(SEED), claims=tuple(claims)), "best-effort", 1, PLAIN)
        assert found is not None and found.level == "None"
        claims.append(Claim(found.cpus, found.level, best_effort=True))
    assert Counter(claim.cpus for claim in claims) == {1: BEST_EFFORT_PODS_PER_CPU, 1 << 10: BEST_EFFORT_PODS_PER_CPU}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, int, Features]:
    features = Features(draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))
    return draw(st.sampled_from(WORKLOADS)), draw(st.integers(1, 12)), features


@given(occupancies(), st.lists(st.tuples(requests(), st.booleans()), max_size=12))
def test_whatever_comes_and_goes_nobody_meets_another_and_the_others_have_a_cpu(node, steps):
    claims: list[Claim] = []
    for (workload, threads, features), goes in steps:
        if goes and claims:
            claims.pop(0)
        now = Occupancy(node.index, node.reserved, node.kubelet_exclusive, tuple(claims))
        found = allocate(now, workload, threads, features)
        assert allocate(now, workload, threads, features) == found
        if found is None:
            continue
        assert found.cpus & (node.reserved | node.kubelet_exclusive) == 0
        assert found.cpus & ~node.index.online == 0
        assert found.cpus.bit_count() == (1 if workload == "best-effort" else threads)
        assert found.mems == node.index.mems(found.cpus)
        claim = Claim(found.cpus, found.level, workload == "best-effort")
        assert not any(conflict(node.index, claim, other) for other in claims)
        closed = node.index.closure(found.cpus, found.level)
        assert closed & (node.kubelet_exclusive | node.reserved) == 0
        claims.append(claim)
        assert shared_pool(node.index, node.kubelet_exclusive, claims)


@given(occupancies(), st.lists(requests(), max_size=6), st.integers(1, 12), st.booleans())
def test_a_cpu_bound_pod_shares_no_core_while_there_are_idle_ones(node, others, threads, physical):
    node = _filled(node, others)
    found = allocate(node, "cpu-bound", threads, Features(physical_cores=physical))
    largest = max(sum(1 for core in node.index.cores if core & socket) for socket in node.index.sockets)
    if found is None or threads > largest:
        return  # a pod of more threads than a socket's cores takes the siblings of one socket
    busy = node.taken() | node.reserved
    idle = [c for c in node.index.cores if c & node.candidates(found.level) and not c & busy]
    left = [core for core in idle if not core & found.cpus]
    shares = any(
        (core & found.cpus).bit_count() > 1 or (core & found.cpus and core & busy) for core in node.index.cores
    )
    # One idle core may have to stay as the last of the shared pool
    assert not shares or len(left) <= (0 if shared_pool_without(node, left, found) else 1)


def shared_pool_without(node: Occupancy, cores: list[int], found) -> int:
    claims = (*node.claims, Claim(found.cpus, found.level), *(Claim(core, "CPU") for core in cores))
    return shared_pool(node.index, node.kubelet_exclusive, claims)


@given(occupancies(), st.lists(requests(), max_size=6), st.integers(1, 12))
def test_a_memory_bound_pod_takes_idle_cores_first_and_evenly_from_its_memory_nodes(node, others, threads):
    node = _filled(node, others)
    found = allocate(node, "memory-bound", threads, PLAIN)
    if found is None:
        return
    busy = node.taken() | node.reserved
    idle = [core for core in node.index.cores if core & node.candidates(found.level) and not core & busy]
    left = [core for core in idle if not core & found.cpus]
    if found.cpus & ~sum(idle):
        assert len(left) <= 1, "siblings of others only when no core is idle, but for the last of the shared pool"
    counts = [sum(1 for core in idle if core & cpus & found.cpus) for _, cpus in node.index.numa]
    roomy = [n for n, (_, cpus) in zip(counts, node.index.numa) if sum(1 for core in left if core & cpus) > 1]
    assert all(max(counts) - count <= 1 for count in roomy)


def _filled(node: Occupancy, others) -> Occupancy:
    claims: list[Claim] = []
    for workload, threads, features in others:
        now = Occupancy(node.index, node.reserved, node.kubelet_exclusive, tuple(claims))
        if found := allocate(now, workload, threads, features):
            claims.append(Claim(found.cpus, found.level, workload == "best-effort"))
    return Occupancy(node.index, node.reserved, node.kubelet_exclusive, tuple(claims))


HALF_TAKEN = occupancy(SEED, ("0-9", "CPU"))
EXCLUSIVE_SOCKETS = Features(memory_bound_exclusive_sockets=True)
# workload, threads, features, level, node, (allocatable, total), score
SCORES = {
    "memory-bound counts sockets": ("memory-bound", 2, PLAIN, None, occupancy(SEED), (2, 2), 102),
    "memory-bound: with idle cores for its threads": ("memory-bound", 12, PLAIN, None, occupancy(SEED), (0, 2), 0),
    "memory-bound: none with every core half taken": ("memory-bound", 2, PLAIN, None, HALF_TAKEN, (0, 2), 0),
    "of which one may be full": (
        "memory-bound", 2, EXCLUSIVE_SOCKETS, None, occupancy(SEED, ("0", "CPU")), (1, 2), 51,
    ),
    "or exclusive by the pod's own label": (
        "memory-bound", 2, PLAIN, "Socket", occupancy(SEED, ("0", "CPU")), (1, 2), 51,
    ),
    "cpu-bound counts idle cores": ("cpu-bound", 2, PHYSICAL, None, occupancy(SEED, ("0", "CPU")), (9, 10), 99),
    "cpu-bound: no half of a core is idle": ("cpu-bound", 2, PLAIN, None, HALF_TAKEN, (0, 10), 0),
    "io-bound counts cores": ("io-bound", 2, PLAIN, None, occupancy(SEED, ("0,10", "CPU")), (9, 10), 99),
    "io-bound: two threads find no core": ("io-bound", 2, PLAIN, None, HALF_TAKEN, (0, 10), 0),
    "io-bound: one thread does": ("io-bound", 1, PLAIN, None, HALF_TAKEN, (10, 10), 110),
    "best-effort counts CPUs": ("best-effort", 1, PLAIN, None, occupancy(SEED, ("0", "CPU")), (19, 20), 114),
    "best-effort counts cores, too": ("best-effort", 1, PHYSICAL, None, occupancy(SEED, ("0", "CPU")), (9, 10), 99),
    "rounded up": ("cpu-bound", 1, PHYSICAL, None, occupancy(machine(1, 3, 1), ("0", "CPU")), (2, 3), 69),
}  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "threads", "features", "level", "node", "counts", "expected"), SCORES.values(), ids=SCORES
)
def test_a_node_scores_by_what_of_it_could_take_the_pod(workload, threads, features, level, node, counts, expected):
    assert allocatable(node, workload, threads, features, level) == counts
    assert score(*counts) == expected


def test_scores_are_normalised_and_reversed_to_fill_nodes_up():
    assert normalise([102, 51, 0], "Balanced") == [100.0, 50.0, 0.0]
    assert normalise([102, 51, 0], "MaximumUtilization") == [0.0, 50.0, 100.0]
    assert normalise([0, 0], "Balanced") == [0.0, 0.0]
    assert normalise([], "Balanced") == []


# Four performance cores of two threads (CPUs 0-7) and eight efficient cores (8-15) in two L2 clusters, as Alder Lake
HYBRID = CPUTopology(
    tuple(Core(0, n, frozenset({2 * n, 2 * n + 1}) if n < 4 else frozenset({n + 4})) for n in range(12)),
    {0: frozenset(range(16))},
    (Cache(2, frozenset(range(8, 12))), Cache(2, frozenset(range(12, 16))), Cache(3, frozenset(range(16)))),
    {"atom": frozenset(range(8, 16)), "core": frozenset(range(8))},
)  # fmt: skip
KINDS = {
    "cpu-bound: performance cores": ("cpu-bound", 3, occupancy(HYBRID), "0,2,4"),
    "memory-bound: performance cores": ("memory-bound", 2, occupancy(HYBRID), "0,2"),
    "cpu-bound: one kind, with siblings, rather than two kinds": ("cpu-bound", 5, occupancy(HYBRID), "0-2,4,6"),
    "cpu-bound: efficient cores, once the others are out": ("cpu-bound", 3, occupancy(HYBRID, ("0-7", "CPU")), "8-10"),
    "cpu-bound: no mixture": ("cpu-bound", 9, occupancy(HYBRID), None),
    "io-bound: efficient cores of one L2 cluster": ("io-bound", 4, occupancy(HYBRID, ("8", "CPU")), "12-15"),
    "best-effort: an efficient core": ("best-effort", 1, occupancy(HYBRID), "8"),
}


@pytest.mark.parametrize(("workload", "threads", "node", "expected"), KINDS.values(), ids=KINDS)
def test_a_pod_gets_cores_of_one_kind(workload, threads, node, expected):
    assert placed(node, workload, threads) == expected


def test_kinds_of_core_are_ordered_by_speed():
    arm = CPUTopology(
        tuple(Core(0, n, frozenset({n})) for n in range(3)),
        {0: frozenset(range(3))},
        (),
        {"capacity-446": frozenset({0}), "capacity-1024": frozenset({2}), "capacity-871": frozenset({1})},
    )
    assert TopologyIndex.build(arm).kinds == (1 << 2, 1 << 1, 1 << 0)
