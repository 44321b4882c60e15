"""Topologies for the tests of pinning: of known shape, and of any."""

from __future__ import annotations

from hypothesis import strategies as st

from concerto.api.nodecputopology import Cache, Core, CPUTopology
from concerto.pinning.occupancy import Occupancy
from concerto.pinning.topology import TopologyIndex, bits


def machine(sockets: int, cores: int, threads: int, *, numa_per_socket: int = 1, l3_cores: int = 0) -> CPUTopology:
    """CPUs numbered as Linux does on x86: first threads first. ``l3_cores``: cores that share an L3; 0: a socket's."""
    total = sockets * cores
    made = [
        Core(s, c, frozenset(t * total + s * cores + c for t in range(threads)))
        for s in range(sockets)
        for c in range(cores)
    ]

    def chunks(size: int) -> list[frozenset[int]]:
        return [
            frozenset(cpu for core in made[s * cores + i : s * cores + min(i + size, cores)] for cpu in core.cpus)
            for s in range(sockets)
            for i in range(0, cores, size)
        ]

    nodes = chunks(-(-cores // numa_per_socket))
    caches = tuple(Cache(3, cpus) for cpus in chunks(l3_cores or cores))
    return CPUTopology(tuple(made), dict(enumerate(nodes)), caches)


@st.composite
def topologies(draw: st.DrawFn) -> CPUTopology:
    """Small machines of any shape: offline siblings, sub-NUMA clusters and core complexes included."""
    sockets, cores, threads = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    whole = machine(
        sockets, cores, threads, numa_per_socket=draw(st.integers(1, 2)), l3_cores=draw(st.integers(0, cores))
    )
    offline = draw(st.sets(st.sampled_from(sorted(whole.cpus)), max_size=len(whole.cpus) - 1))
    return whole.only(whole.cpus - offline)


@st.composite
def occupancies(draw: st.DrawFn) -> Occupancy:
    """A node nobody is bound on yet; some CPUs are reserved or kubelet's."""
    index = TopologyIndex.build(draw(topologies()))
    cpus = list(bits(index.online))
    reserved = draw(st.sets(st.sampled_from(cpus), max_size=2))
    exclusive = draw(st.sets(st.sampled_from(cpus), max_size=2)) - reserved
    if len(exclusive) == len(cpus):
        exclusive = set()
    return Occupancy(index, sum(1 << c for c in reserved), sum(1 << c for c in exclusive))
