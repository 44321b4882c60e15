import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.pinning.conflicts import Claim, conflict, shared_pool
from concerto.pinning.topology import TopologyIndex, bits, to_mask
from support.topologies import machine, topologies

SEED = TopologyIndex.build(machine(2, 5, 2))  # CPU n and n+10 share a core; 0-4 and 10-14 a socket
LEVELS = ["None", "CPU", "Core", "Socket", "NUMA"]

# (CPUs, level) of two bindings, whether they conflict
PAIRS = {
    "two that share": (({0, 1}, "None"), ({1, 2}, "None"), False),
    "one that shares, on a CPU that another has": (({0}, "CPU"), ({0}, "None"), True),
    "a sibling of an exclusive CPU": (({0}, "CPU"), ({10}, "CPU"), False),
    "a sibling of an exclusive core": (({0}, "Core"), ({10}, "None"), True),
    "the next core": (({0}, "Core"), ({1}, "Core"), False),
    "a CPU in an exclusive socket": (({0}, "Socket"), ({14}, "CPU"), True),
    "two exclusive sockets": (({0}, "Socket"), ({5}, "Socket"), False),
    "a CPU near an exclusive memory node": (({19}, "NUMA"), ({5}, "None"), True),
    "one over both sockets and one exclusive in one of them": (({0, 5}, "CPU"), ({9}, "Socket"), True),
}


@pytest.mark.parametrize(("a", "b", "expected"), PAIRS.values(), ids=PAIRS)
def test_two_bindings_conflict_if_one_keeps_what_the_other_names(a, b, expected):
    first, second = (Claim(to_mask(cpus), level) for cpus, level in (a, b))
    assert conflict(SEED, first, second) is expected
    assert conflict(SEED, second, first) is expected


@given(topologies(), st.data())
def test_a_closure_holds_its_cpus_grows_with_its_level_and_is_closed(topology, data):
    index = TopologyIndex.build(topology)
    cpus = to_mask(data.draw(st.sets(st.sampled_from(sorted(topology.cpus)), min_size=1)))
    none, cpu, core, socket, numa = (index.closure(cpus, level) for level in LEVELS)
    assert (none, cpu) == (0, cpus)
    assert cpu & ~core == core & ~socket == core & ~numa == 0
    for level, closed in zip(LEVELS[1:], (cpu, core, socket, numa)):
        assert index.closure(closed, level) == closed
        assert closed & ~index.online == 0


def test_pods_without_a_binding_run_where_nobody_is_alone():
    claims = [Claim(to_mask({0}), "Core"), Claim(to_mask({1, 2}), "None"), Claim(to_mask({3}), "CPU")]
    assert list(bits(shared_pool(SEED, to_mask({4}), claims))) == [1, 2, *range(5, 10), *range(11, 20)]


def test_memory_comes_from_the_nodes_of_the_cpus():
    assert SEED.mems(to_mask({0, 13})) == {0}
    assert SEED.mems(to_mask({0, 5})) == {0, 1}
