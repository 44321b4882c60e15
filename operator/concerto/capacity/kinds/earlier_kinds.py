"""What nodes measured of kinds that they do not know any more: those nodes have gone, or know other kinds now."""

from __future__ import annotations

import math
from collections.abc import Iterator

from concerto.capacity.kinds.sums import FORGET_PER_POD, KindSums
from concerto.capacity.kinds.table import MAX_ENTRIES, Table, bounded, weight_of

_MAX_PODS = 1.0 / FORGET_PER_POD
"""Pods of a kind that what several nodes leave behind counts for, unless one of them left more."""
_NO_NODE = ""
_MERGED_CORES = 1024.0
"""CPUs that an earlier process's table counts for, where it is decided what is forgotten for want of space."""


class EarlierKinds:
    """Sums by key, each kept for the node that was the first to leave it behind.

    Where there are too many, each node decides by its CPUs which are forgotten. So a node makes others' knowledge
    forgotten by no more than its part, however often it changes what it knows.
    """

    def __init__(self) -> None:
        self._sums: dict[str, KindSums] = {}
        self._node_of: dict[str, str] = {}
        self._parts: dict[str, dict[str, float]] = {}  # by node, of each of its keys; oldest first
        self._cores: dict[str, float] = {}  # by node

    def __len__(self) -> int:
        """How many keys are kept."""
        return len(self._sums)

    def __iter__(self) -> Iterator[str]:
        """Each key of which something is kept."""
        return iter(self._sums)

    def __contains__(self, key: str) -> bool:
        """Whether something of the key is kept."""
        return key in self._sums

    def get(self, key: str) -> KindSums | None:
        """What is kept of the key."""
        return self._sums.get(key)

    def begin_with(self, table: Table) -> None:
        """Keep what an earlier process has merged of all nodes."""
        found = bounded(table, MAX_ENTRIES)
        total = math.fsum(weight_of(sums) for sums in found.values()) or 1.0
        for key, sums in found.items():
            self.forget(key)
            self.keep(key, sums, _NO_NODE, _MERGED_CORES * weight_of(sums) / total, _MERGED_CORES)

    def merged_before(self) -> Iterator[tuple[str, KindSums]]:
        """What is kept of `begin_with`; it may be changed meanwhile."""
        for key in list(self._parts.get(_NO_NODE, ())):
            yield key, self._sums[key]

    def keep(self, key: str, sums: KindSums, node: str, part: float, cores: float) -> list[str]:
        """Keep what a node knew of a key.

        Args:
            key: the key.
            sums: what the node adds to what the others know.
            node: its name.
            part: CPUs of the node, divided among what it knew.
            cores: CPUs of the node.

        Returns:
            Keys of the same node that are forgotten for it: no node leaves more behind than a table holds.
        """
        if (known := self._sums.get(key)) is not None:
            both = known.only_ended().plus(sums)
            most = max(_MAX_PODS, known.ended, sums.ended)
            self._sums[key] = both.scaled(most / both.ended) if both.ended > most else both
            return []
        self._sums[key], self._node_of[key], self._cores[node] = sums, node, cores
        parts = self._parts.setdefault(node, {})
        parts[key] = part
        oldest = list(parts)[: max(0, len(parts) - MAX_ENTRIES)]
        for each in oldest:
            self.forget(each)
        return oldest

    def keep_part(self, key: str, part: float) -> None:
        """Only that part of the pods that have ended still counts."""
        self._sums[key] = self._sums[key].only_ended().scaled(part)

    def forget(self, key: str) -> None:
        """Others have measured enough, or there is no space."""
        if self._sums.pop(key, None) is None:
            return
        node = self._node_of.pop(key)
        del self._parts[node][key]
        if not self._parts[node]:
            del self._parts[node], self._cores[node]

    def forget_least(self) -> list[str]:
        """The keys that are forgotten so that as many are left as a table holds; none up to twice as many."""
        if len(self._sums) <= 2 * MAX_ENTRIES:
            return []
        matters: dict[str, float] = {}
        for node, parts in self._parts.items():
            # A node that has left behind more than once counts no more than if it had done so at once
            counts = min(1.0, self._cores[node] / max(math.fsum(parts.values()), 1e-300))
            matters |= {key: counts * part for key, part in parts.items()}
        kept = bounded(self._sums, MAX_ENTRIES, matters)
        gone = [key for key in self._sums if key not in kept]
        for key in gone:
            self.forget(key)
        return gone
