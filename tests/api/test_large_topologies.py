"""Topologies of the largest machines can be read, and those that no machine has can't: to choose CPUs takes seconds."""

from __future__ import annotations

import re

import pytest

from concerto.api.nodecputopology import Cache, Core, CPUTopology
from support.traced_memory import traced_memory


def machine(sockets: int, cores: int, *, caches: int = 0, nodes: int = 1, spread: int = 1) -> CPUTopology:
    """Cores of one CPU, dealt out to sockets, memory nodes and caches; CPUs have every ``spread``-th number."""
    each = cores // sockets
    cpus = [number * spread for number in range(cores)]
    return CPUTopology(
        tuple(Core(number // each, number % each, frozenset({cpu})) for number, cpu in enumerate(cpus)),
        {node: frozenset(cpus[node::nodes]) for node in range(nodes)},
        tuple(Cache(3, frozenset(cpus[cache::caches])) for cache in range(caches)),
    )


LARGE = {
    "512 virtual CPUs that are sockets": machine(512, 512),
    "32 sockets of 60 cores, with a memory node and a cache each": machine(32, 1920, caches=32, nodes=32),
    "the highest CPU of Linux": machine(1, 2, spread=8191),
}


@pytest.mark.parametrize("topology", LARGE.values(), ids=LARGE)
def test_the_largest_machines_are_read(topology):
    assert CPUTopology.from_raw(topology.to_raw()) == topology


TOO_LARGE = {
    "as many sockets and cores as the CRD allows": (machine(512, 4096), "4096 cores in 513 sockets"),
    "caches that share everything": (machine(1, 1024, caches=1024), "1024 cores in 1026 sockets, memory nodes and"),
    "a CPU that Linux does not have": (machine(1, 2, spread=8192), "CPU 8192 is beyond 8191"),
}


@pytest.mark.parametrize(("topology", "words"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_no_machine_has_is_refused(topology, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        CPUTopology.from_raw(topology.to_raw())


ALL = "0-8191"
NAMED_OFTEN = {
    "caches that have all CPUs each": {"caches": [{"level": 3, "cpus": ALL} for _ in range(1024)]},
    "kinds of cores that have all CPUs each": {"coreKinds": [{"name": f"k{n}", "cpus": ALL} for n in range(64)]},
    "a list that names all CPUs again and again": {"offlineCPUs": ",".join([ALL] * 3000)},
}


@pytest.mark.parametrize("parts", NAMED_OFTEN.values(), ids=NAMED_OFTEN)
def test_little_is_made_of_lists_that_name_cpus_again_and_again(parts):
    """1,024 caches in 30 KiB of a status would take 540 MiB."""
    with traced_memory() as memory, pytest.raises(ValueError, match="CPUs"):
        CPUTopology.from_raw(machine(1, 1).to_raw() | parts)
    assert memory.peak < 2**23


def test_a_machine_may_have_as_many_levels_of_caches_as_there_are():
    caches = [{"level": level, "cpus": ALL} for level in range(1, 5)]
    assert len(CPUTopology.from_raw(machine(1, 1).to_raw() | {"caches": caches}).caches) == 4
