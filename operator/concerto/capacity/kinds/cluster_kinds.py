"""What all nodes know of kinds of pods, merged as it changes."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from concerto.api.subspacesnapshot import KindEntry
from concerto.capacity.kinds import merging
from concerto.capacity.kinds.earlier_kinds import EarlierKinds
from concerto.capacity.kinds.ranking import KindRanking
from concerto.capacity.kinds.sums import FIELDS, KindSums
from concerto.capacity.kinds.table import MAX_ENTRIES, Table, from_entries, weight_of

Floats = NDArray[np.float64]

ROWS_A_LOOK = 50_000
"""Rows that are added up at one look: 5,000 nodes with 30 pods each have 700,000."""
_ROWS_A_KEY = 10
"""Rows that a key counts for beside its own: pods without a Job in common have a key each."""
KEYS_A_TURN = 200
"""Keys that are added up before others get the event loop: a key that few nodes know takes up to 0.1 ms."""
MAX_KNOWN = 40_000
"""Kinds and groups that decisions use: those of 10,000 workloads. A published table holds fewer (``MAX_ENTRIES``)."""
_MAX_CORES = 1024.0
"""CPUs of a node that count where nodes decide which kinds are left out."""
_ENOUGH = 4.5
"""Evidence of a kind on the nodes of now, in pods, from which what nodes measured that have gone counts no more.

Five pods have it, and four do not: each counts a little less once others have ended after it.
"""
_FEWEST = 0.5
"""Pods that have ended on nodes that have gone, of which something is left behind: less may be a rounded number."""
_ENDED = FIELDS.index("ended")


@dataclass(slots=True, eq=False)
class _Key:
    """A kind or group that nodes know.

    Attributes:
        name: its key.
        place: among those that are ranked by how much they matter.
        rows: of the nodes that know it.
    """

    name: str
    place: int
    rows: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class _Node:
    """What one node knows: a row for each key."""

    keys: list[_Key]
    rows: NDArray[np.intp]
    places: NDArray[np.intp]
    parts: Floats
    cores: float = 0.0


class _Rows:
    """Rows of sums: one for each node and each key that it knows, about 150 bytes each.

    Attributes:
        sums: (R, F) by row; NaN in a row that has just been taken.
    """

    def __init__(self) -> None:
        self.sums: Floats = np.zeros((0, len(FIELDS)))
        self._place = array("q")  # of each row in its key's rows
        self._free: list[int] = []

    def take(self, keys: Sequence[_Key]) -> list[int]:
        """For each key a row, for one more node that knows it."""
        if len(self._free) < len(keys):
            count = len(self.sums)
            more = max(1024, count // 4, len(keys))
            self.sums = np.concatenate([self.sums, np.zeros((more, len(FIELDS)))])
            self._place.extend([0] * more)
            self._free[:0] = range(count + more - 1, count - 1, -1)
        rows = [self._free.pop() for _ in keys]
        self.sums[rows] = np.nan
        for key, row in zip(keys, rows):
            self._place[row] = len(key.rows)
            key.rows.append(row)
        return rows

    def free(self, key: _Key, row: int) -> None:
        """The node does not know the key any more."""
        last, place = key.rows.pop(), self._place[row]
        if last != row:
            key.rows[place] = last
            self._place[last] = place
        self._free.append(row)

    def of(self, key: _Key) -> Floats:
        """(N, F) a copy of what the nodes say that know the key."""
        found: Floats = self.sums[np.frombuffer(key.rows, dtype=np.int64)]
        return found

    def of_others(self, key: _Key, row: int) -> Floats:
        """(N - 1, F) a copy of the same without that row."""
        rows = np.frombuffer(key.rows, dtype=np.int64)
        found: Floats = self.sums[rows[rows != row]]
        return found

    def ended(self, key: _Key) -> float:
        """Pods that have ended, of all nodes that know the key; copies nothing else of them."""
        return float(self.sums[np.frombuffer(key.rows, dtype=np.int64), _ENDED].sum())


class ClusterKinds:
    """The tables of many nodes as one: the order in which nodes come makes no difference.

    What one node says is bounded. Where three nodes know a kind, a node counts for no more than three times the pods of
    the median node, and its pods take and hold no more than four times what the median node's do. A pod takes no more
    CPUs than its node has, and no more memory. Where there are more kinds than the table holds, each node decides by
    its part of the cluster's CPUs which are left out. Only kinds of which something changed are added up again.

    What nodes measured that have gone since still counts, as long as few pods of the kind have ended on other nodes: an
    autoscaler that takes all of a Job's nodes away must not make the cluster forget what the Job's pods cost.

    Attributes:
        version: greater each time that the merged table has changed.
    """

    def __init__(self) -> None:
        self.version = 0
        self._rows = _Rows()
        self._keys: dict[str, _Key] = {}
        self._nodes: dict[str, _Node] = {}
        self._merged: dict[str, KindSums] = {}
        self._ranking = KindRanking()
        # To be added up, first come, first served: a dict would be searched for its first key
        self._changed: OrderedDict[str, None] = OrderedDict()
        self._unmerged: OrderedDict[str, None] = OrderedDict()  # the same of what never was: pods may wait for it
        self._earlier = EarlierKinds()

    @property
    def has_changes(self) -> bool:
        """Whether something has not been added up yet."""
        return bool(self._changed or self._unmerged)

    def begin_with(self, table: Table) -> None:
        """What an earlier process has merged, before all nodes' tables are read: some of its nodes may have gone."""
        self._earlier.begin_with(table)
        for key in table:
            self._change(key)

    def all_read(self) -> None:
        """Every node's table has been read: what they know was in what the earlier process merged."""
        for name, before in self._earlier.merged_before():
            if (key := self._keys.get(name)) is None or not (ended := self._rows.ended(key)):
                continue
            of_gone = before.ended - ended
            if ended >= _ENOUGH or of_gone < _FEWEST:
                self._earlier.forget(name)
            else:
                self._earlier.keep_part(name, of_gone / before.ended)
            self._change(name)

    def set_entries(
        self, node: str, entries: Sequence[KindEntry], cores: float, memory_bytes: float = math.inf
    ) -> None:
        """`set_node` with a published table; an entry that cannot be read costs only itself."""
        found = merging.read_rows(entries) if entries else None
        if found is None:
            self.set_node(node, from_entries(entries), cores, memory_bytes)
        else:
            self._set_rows(node, *found, cores, memory_bytes)

    def set_node(self, node: str, table: Table, cores: float, memory_bytes: float = math.inf) -> None:
        """What a node knows now, in place of what it knew before.

        Args:
            node: its name.
            table: what it has measured.
            cores: CPUs that it has.
            memory_bytes: memory that it has; infinity where that is unknown.
        """
        sums = np.array([*table.values()], dtype=float).reshape(len(table), len(FIELDS))
        self._set_rows(node, [*table], sums, cores, memory_bytes)

    def _set_rows(self, name: str, keys: list[str], sums: Floats, cores: float, memory_bytes: float) -> None:
        known = self._nodes.get(name)
        if known is None or [key.name for key in known.keys] != keys:
            known = self._nodes[name] = self._arranged(name, known, keys)
        sums = merging.possible(sums, cores, memory_bytes)
        for index in np.flatnonzero((self._rows.sums[known.rows] != sums).any(axis=1)):
            self._change(keys[index])
        self._rows.sums[known.rows] = sums
        weights = merging.weights(sums)
        parts = weights * (min(cores, _MAX_CORES) / max(math.fsum(weights.tolist()), 1e-300))
        self._ranking.add(known.places, parts - known.parts)
        known.parts, known.cores = parts, min(cores, _MAX_CORES)

    def _arranged(self, name: str, before: _Node | None, keys: list[str]) -> _Node:
        """The node with a row for each of these keys, in their order, and no others."""
        rows, parts, cores = {}, {}, 0.0
        if before is not None:
            names = [key.name for key in before.keys]
            rows, parts = dict(zip(names, before.rows.tolist())), dict(zip(names, before.parts.tolist()))
            cores = before.cores
            gone = parts.keys() - {*keys}
            self._take_off(name, {key: (rows[key], parts[key]) for key in sorted(gone)}, cores)
        found = [self._keys.get(key) or self._new_key(key) for key in keys]
        new = [key for key in found if key.name not in rows]
        rows |= zip([key.name for key in new], self._rows.take(new))
        indices = np.array([rows[key] for key in keys], dtype=np.intp)
        places = np.array([key.place for key in found], dtype=np.intp)
        return _Node(found, indices, places, np.array([parts.get(key, 0.0) for key in keys]), cores)

    def _new_key(self, name: str) -> _Key:
        key = self._keys[name] = _Key(name, self._ranking.take(name))
        return key

    def remove_node(self, node: str) -> None:
        """The node is gone, or has not reported for too long."""
        if (known := self._nodes.pop(node, None)) is not None:
            names = (key.name for key in known.keys)
            self._take_off(node, dict(zip(names, zip(known.rows.tolist(), known.parts.tolist()))), known.cores)

    def _take_off(self, node: str, rows: Mapping[str, tuple[int, float]], cores: float) -> None:
        """A node does not know these keys any more, of which it had these rows and parts."""
        for name, (row, part) in rows.items():
            key = self._keys[name]
            if (left := self._left_behind(key, row)) is not None:
                for forgotten in self._earlier.keep(name, left, node, part, cores):
                    self._change(forgotten)
            self._ranking.add(key.place, -part)
            self._rows.free(key, row)
            if not key.rows:
                self._ranking.free(key.place)
                del self._keys[name]
            self._change(name)

    def _left_behind(self, key: _Key, row: int) -> KindSums | None:
        """What a row adds to what other nodes know of the key, as long as they know little; else None."""
        if len(key.rows) == 1:
            return merging.merged(self._rows.of(key))
        ended = float(self._rows.sums[row, _ENDED])
        if not ended or self._rows.ended(key) - ended >= _ENOUGH:
            return None
        others = self._rows.of_others(key, row)
        left = merging.merged(self._rows.of(key)).without(merging.merged(others))
        return left if left.ended >= _FEWEST else None

    def _change(self, key: str) -> None:
        (self._changed if key in self._merged else self._unmerged)[key] = None

    def table(self, max_rows: int | None = None) -> dict[str, KindSums]:
        """All of them together, as decisions use them.

        Args:
            max_rows: what changed is added up first, to so many rows; see `add_up`. None: all of it.
        """
        self.add_up(max_rows, None if max_rows is None else KEYS_A_TURN)
        return self._bounded(MAX_KNOWN)

    def published(self, max_rows: int | None = None) -> dict[str, KindSums]:
        """As many of them as a SubspaceSnapshot can hold; see `table`."""
        self.add_up(max_rows, None if max_rows is None else KEYS_A_TURN)
        return self._bounded(MAX_ENTRIES)

    def _bounded(self, max_entries: int) -> dict[str, KindSums]:
        if len(self._merged) <= max_entries:
            return dict(self._merged)
        earlier = {name for name in self._earlier if name not in self._keys}
        left_behind = {name: weight_of(sums) for name in earlier if (sums := self._merged.get(name)) is not None}
        return {name: self._merged[name] for name in self._ranking.most(max_entries, left_behind)}

    def add_up(self, max_rows: int | None = None, max_keys: int | None = None) -> int:
        """Add up what has changed, of one key after another; the others stay as they were until the next call.

        Args:
            max_rows: no further key once so many rows were added up, a row for each node and each key that it knows.
            max_keys: no more keys than these.

        Returns:
            The rows that were added up, each key with the time that it takes by itself.
        """
        for key in self._earlier.forget_least():
            self._change(key)
        rows = keys = 0
        for changed in (self._unmerged, self._changed):
            while changed and (max_rows is None or rows < max_rows) and (max_keys is None or keys < max_keys):
                rows += self._merge(changed.popitem(last=False)[0]) + _ROWS_A_KEY
                keys += 1
        return rows

    def _merge(self, name: str) -> int:
        """Add up what nodes say of a key; returns how many do."""
        self.version += 1
        key, earlier = self._keys.get(name), self._earlier.get(name)
        if key is None:
            if earlier is None:
                self._merged.pop(name, None)
            else:
                self._merged[name] = earlier
            return 1
        sums = merging.merged(self._rows.of(key))
        if earlier is not None and sums.ended >= _ENOUGH:
            self._earlier.forget(name)
        elif earlier is not None:
            sums = earlier.only_ended().plus(sums)
        self._merged[name] = sums
        self._ranking.rank(key.place, weight_of(sums))
        return len(key.rows)
