"""A node's topology laid out for set arithmetic: a set of CPUs is an int whose bit n stands for CPU n.

A 256-CPU set then is one number, and whether two of them meet is one operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from concerto.api.nodecputopology import CPUTopology
from concerto.api.podcpubinding import Level

_WORD_BITS = 1024
_WORD = (1 << _WORD_BITS) - 1
"""A machine's CPUs: more is a mistake, or meant to take long."""
_SPEEDS = {"core": 2, "atom": 1, "lowpower": 0}
"""Order of Intel's kinds of core, by the kernel's names of their performance monitoring units."""


def to_mask(cpus: Iterable[int]) -> int:
    """The set as bits; takes time in proportion to their number and the highest of them."""
    numbers = list(cpus)
    found = bytearray(max(numbers, default=0) // 8 + 1)
    for cpu in numbers:
        found[cpu >> 3] |= 1 << (cpu & 7)
    return int.from_bytes(found, "little")


def bits(mask: int) -> Iterator[int]:
    """The numbers in the set, ascending; takes time in proportion to their number and the highest of them."""
    first = 0
    while mask:
        word = mask & _WORD
        while word:
            low = word & -word
            yield first + low.bit_length() - 1
            word ^= low
        mask >>= _WORD_BITS
        first += _WORD_BITS


def _speed(kind: str) -> int:
    """Sorts kinds of core: Arm's by their capacity, Intel's by name; unknown ones are slowest."""
    capacity = kind.removeprefix("capacity-")
    return int(capacity) if capacity.isdecimal() else _SPEEDS.get(kind, -1)


def _largest(groups: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return max(group.bit_count() for group in groups), groups


@dataclass(frozen=True)
class TopologyIndex:
    """Which CPUs go together; all sets are bits.

    Attributes:
        online: all online CPUs.
        cores: CPUs of each core, by the lowest of them.
        sockets: CPUs of each socket, by its number.
        numa: number and CPUs of each memory node.
        domains: groups of CPUs that are near each other, the smaller kind first: those that share a last-level cache,
            a memory node (with sub-NUMA clustering smaller than the cache), a socket, the whole node.
        kinds: CPUs of each kind of core, the fastest kind first; empty where all cores are alike.
    """

    online: int
    cores: tuple[int, ...]
    sockets: tuple[int, ...]
    numa: tuple[tuple[int, int], ...]
    domains: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...] = ()

    @cached_property
    def near_domains(self) -> tuple[tuple[int, ...], ...]:
        """``domains`` without the whole node, but on a node of one socket."""
        return self.domains[:-1] if len(self.sockets) > 1 else self.domains

    @classmethod
    def build(cls, topology: CPUTopology) -> Self:
        """The index of a topology; build it once for each topology."""
        online = to_mask(topology.cpus)
        sockets = tuple(to_mask(cpus) for _, cpus in sorted(topology.sockets.items()))
        numa = tuple((number, to_mask(cpus)) for number, cpus in sorted(topology.numa_nodes.items()))
        levels = sorted({cache.level for cache in topology.caches})
        caches = [tuple(to_mask(c.cpus) for c in topology.caches if c.level == level) for level in levels]
        groups = (*caches, tuple(mask for _, mask in numa), sockets, (online,))
        fastest_first = sorted(topology.core_kinds.items(), key=lambda kind: _speed(kind[0]), reverse=True)
        return cls(
            online,
            tuple(sorted((to_mask(core.cpus) for core in topology.cores), key=lambda core: core & -core)),
            sockets,
            numa,
            tuple(sorted({group for group in groups if group}, key=_largest)),
            tuple(to_mask(cpus) for _, cpus in fastest_first),
        )

    def groups(self, level: Level) -> tuple[int, ...]:
        """What is taken whole at a level: cores, sockets or memory nodes; single CPUs at None and CPU."""
        if level == "Core":
            return self.cores
        if level == "Socket":
            return self.sockets
        if level == "NUMA":
            return tuple(mask for _, mask in self.numa)
        return tuple(1 << cpu for cpu in bits(self.online))

    def closure(self, cpus: int, level: Level) -> int:
        """What a binding of ``cpus`` at this level keeps from others: nothing at None, whole groups above CPU."""
        if level == "None":
            return 0
        if level == "CPU":
            return cpus
        closed = 0
        for group in self.groups(level):
            if group & cpus:
                closed |= group
        return closed

    def mems(self, cpus: int) -> frozenset[int]:
        """The memory nodes that the CPUs belong to."""
        return frozenset(number for number, mask in self.numa if mask & cpus)
