"""Machines to simulate, of regular shape."""

from __future__ import annotations

from concerto.api.nodecputopology import Cache, Core, CPUTopology


def regular(sockets: int, cores: int, threads: int) -> CPUTopology:
    """Sockets of so many cores of so many threads each; a socket is a memory node with one last-level cache.

    CPUs are numbered as Linux does on x86: the first threads of all cores first.
    """
    total = sockets * cores
    made = tuple(
        Core(s, c, frozenset(t * total + s * cores + c for t in range(threads)))
        for s in range(sockets)
        for c in range(cores)
    )
    nodes = {s: frozenset(cpu for core in made if core.socket == s for cpu in core.cpus) for s in range(sockets)}
    return CPUTopology(made, nodes, tuple(Cache(3, cpus) for cpus in nodes.values()))
