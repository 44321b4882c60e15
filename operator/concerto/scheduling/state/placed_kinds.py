"""Kinds that have pods on nodes, together with those that cost the same because the same was measured. Pure.

A hundred thousand Jobs of one pod each are as many kinds. All of them cost what pods with their images cost, until a
pod of their own has ended. What is learned of the images is one change then, and not one for each Job.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from concerto.api.counters import add_count
from concerto.api.pod_kind import Kind
from concerto.capacity.kinds.cost import Cost, deciding_groups, estimate, groups_of, without_groups
from concerto.capacity.kinds.sums import KindSums
from concerto.capacity.kinds.table import Table
from concerto.scheduling.state.columns import Floats, Ints, Rows

MAX_CHANGED = 200
"""Costs that change at a time, and kinds that other entries decide on than before: 20 ms."""


@dataclass(slots=True, eq=False)
class _Alike:
    """Kinds whose cost the same entries decide.

    Attributes:
        kind: stands for them: it has the entries alone that decide.
        cost: of a pod of each of them.
        number: how many kinds.
        pods: of all of them, by row.
    """

    kind: Kind
    cost: Cost
    number: int = 0
    pods: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class PlacedKind:
    """A kind with pods on nodes.

    Attributes:
        kind: the kind.
        alike: it and those that cost the same.
        pods: how many of its pods are on each row.
    """

    kind: Kind
    alike: _Alike
    pods: dict[int, int] = field(default_factory=dict)

    @property
    def cost(self) -> Cost:
        """What a pod of the kind costs now."""
        return self.alike.cost

    def counts(self, rows: Rows, width: int) -> Floats:
        """How many of its pods are on each of these rows, of ``width`` rows in all."""
        if not isinstance(rows, slice):
            return np.array([self.pods.get(row, 0) for row in rows.tolist()], dtype=np.float64)
        counts = np.zeros(width)
        on, pods = columns(self.pods)
        counts[on] = pods
        return counts[rows]


@dataclass(slots=True)
class CostChange:
    """Pods that cost something else from now on.

    Attributes:
        before, after: what one of them costs.
        pods: how many are on each row.
    """

    before: Cost
    after: Cost
    pods: Mapping[int, int]


class _Changes:
    """Changes of costs, those with the same costs as one."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[Cost, Cost, Counter[int]]] = {}

    def add(self, before: Cost, after: Cost, pods: Mapping[int, int]) -> None:
        """So many pods by row cost something else."""
        if before != after:
            self._found.setdefault((id(before), id(after)), (before, after, Counter()))[2].update(pods)

    def found(self) -> list[CostChange]:
        """All of them."""
        return [CostChange(*each) for each in self._found.values()]


class PlacedKinds:
    """The kinds of the pods on nodes, by key.

    Attributes:
        table: what is known of all kinds.
    """

    def __init__(self) -> None:
        self.table: Table = {}
        self._kinds: dict[str, PlacedKind] = {}
        # By the workload's key and theirs: the pods of one may all have different images
        self._of_workload: dict[str, dict[str, PlacedKind]] = {}
        # Of those that the table has an entry of, or of their workloads: by the keys of their images
        self._known: dict[str, dict[str, PlacedKind]] = {}
        self._alike: dict[Kind, _Alike] = {}
        self._behind: dict[_Alike, None] = {}  # more is known of them than their costs say
        self._to_move: OrderedDict[str, PlacedKind] = OrderedDict()  # by key: others may be alike to them now

    @property
    def are_behind(self) -> bool:
        """Whether more is known of some than their costs say: see `catch_up`."""
        return bool(self._behind or self._to_move)

    def __len__(self) -> int:
        """How many kinds."""
        return len(self._kinds)

    def __iter__(self) -> Iterator[PlacedKind]:
        """Each of them."""
        return iter(self._kinds.values())

    def get(self, key: str) -> PlacedKind | None:
        """The kind of that key; None if none of its pods is on a node."""
        return self._kinds.get(key)

    def add_pod(self, kind: Kind, row: int) -> PlacedKind:
        """A pod of the kind is on the row."""
        known = self._kinds.get(kind.key)
        if known is None:
            known = self._kinds[kind.key] = PlacedKind(kind, self._join(kind))
            for key in _workload(kind):
                self._of_workload.setdefault(key, {})[kind.key] = known
            self._note_known(known)
        known.pods[row] = known.pods.get(row, 0) + 1
        known.alike.pods[row] += 1
        return known

    def remove_pod(self, kind: Kind, row: int) -> Cost | None:
        """A pod of the kind is on the row no more; returns what it cost, or None if no pod was there."""
        known = self._kinds.get(kind.key)
        if known is None or row not in known.pods:
            return None
        add_count(known.alike.pods, row, -1)
        known.pods[row] -= 1
        if not known.pods[row]:
            del known.pods[row]
            if not known.pods:
                self._remove(known)
        return known.cost

    def set_table(self, table: Table) -> tuple[bool, list[CostChange]]:
        """More is known; returns whether anything is, and what changes by it on nodes, as `catch_up`."""
        before, self.table = self.table, table
        # Most entries are the same objects as before, and there may be 40,000
        changed = {key for key, sums in table.items() if (known := before.get(key)) is not sums and known != sums}
        changed |= before.keys() - table.keys()
        self._to_move |= self._users({key for key in changed if not _have_same_role(before.get(key), table.get(key))})
        self._behind |= dict.fromkeys(each for each in self._alike.values() if not changed.isdisjoint(each.kind.keys))
        return bool(changed), self.catch_up()

    def catch_up(self) -> list[CostChange]:
        """What changes on nodes by what is known: of some kinds, if it would take long for all of them."""
        changes, costs = _Changes(), dict[Kind, Cost]()
        left = MAX_CHANGED
        while self._to_move and left:
            self._move(self._to_move.popitem(last=False)[1], changes)
            left -= 1
        for alike in list(islice(self._behind, left)):
            del self._behind[alike]
            known = Kind(tuple(key if key in self.table else "" for key in alike.kind.keys), alike.kind.endless)
            if (after := costs.get(known)) is None:
                after = costs[known] = estimate(self.table, known)
            changes.add(alike.cost, after, alike.pods)
            alike.cost = after
        return changes.found()

    # --- inside

    def _move(self, known: PlacedKind, changes: _Changes) -> None:
        """Other entries may decide what the kind costs; notes what that changes."""
        self._note_known(known)
        before = known.alike
        if before.kind == self._standing_for(known.kind):
            return
        known.alike = after = self._join(known.kind)
        for row, pods in known.pods.items():
            after.pods[row] += pods
            add_count(before.pods, row, -pods)
        self._leave(before)
        changes.add(before.cost, after.cost, known.pods)

    def _users(self, keys: set[str]) -> dict[str, PlacedKind]:
        """By key, each of the kinds for which it may matter what entries of these keys there are."""
        users: dict[str, PlacedKind] = {}
        for key in keys:
            if (known := self._kinds.get(key)) is not None:
                users[key] = known
            users |= self._of_workload.get(key, {})
            users |= self._known.get(key, {})
        return users

    def _standing_for(self, kind: Kind) -> Kind:
        return without_groups(kind, deciding_groups(self.table, kind))

    def _join(self, kind: Kind) -> _Alike:
        """What is alike to the kind, which is one of them from now on."""
        stands_for = self._standing_for(kind)
        alike = self._alike.get(stands_for)
        if alike is None:
            alike = self._alike[stands_for] = _Alike(stands_for, estimate(self.table, stands_for))
        alike.number += 1
        return alike

    def _leave(self, alike: _Alike) -> None:
        alike.number -= 1
        if not alike.number:
            del self._alike[alike.kind]
            self._behind.pop(alike, None)

    def _note_known(self, known: PlacedKind) -> None:
        kind = known.kind
        is_known = any(key in self.table for key in (kind.key, *_workload(kind)))
        for key in _images(kind):
            if is_known:
                self._known.setdefault(key, {})[kind.key] = known
            else:
                _take_off(self._known, key, kind.key)

    def _remove(self, known: PlacedKind) -> None:
        """The kind has no pods on nodes any more."""
        kind = known.kind
        del self._kinds[kind.key]
        self._to_move.pop(kind.key, None)
        for key in _workload(kind):
            _take_off(self._of_workload, key, kind.key)
        for key in _images(kind):
            _take_off(self._known, key, kind.key)
        self._leave(known.alike)


def _take_off(groups: dict[str, dict[str, PlacedKind]], group: str, key: str) -> None:
    """The kind of that key is not of the group any more."""
    if (kinds := groups.get(group)) is not None:
        kinds.pop(key, None)
        if not kinds:
            del groups[group]


def _workload(kind: Kind) -> tuple[str, ...]:
    """Key of its workload's group."""
    return groups_of(kind)[1:2]


def _images(kind: Kind) -> tuple[str, ...]:
    """Keys of the groups of its images, which any number of other kinds may have."""
    return groups_of(kind)[2:]


def columns(pods: Mapping[int, int]) -> tuple[Ints, Floats]:
    """The rows that pods are on, and how many are on each."""
    return np.fromiter(pods.keys(), np.int64, len(pods)), np.fromiter(pods.values(), np.float64, len(pods))


def _have_same_role(before: KindSums | None, after: KindSums | None) -> bool:
    """Whether all is equal on which it depends whether an entry decides what pods cost."""
    if before is None or after is None:
        return before is after
    return before.of_ended_pods == after.of_ended_pods and before.of_running_pods == after.of_running_pods
