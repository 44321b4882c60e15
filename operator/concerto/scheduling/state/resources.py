"""What nodes offer and what pods on them request, by resource and row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from concerto.api.node import NodeView
from concerto.api.pod import PodView
from concerto.scheduling.state.columns import Columns, Ints, Rows, widened
from concerto.scheduling.state.device_classes import DeviceClasses
from concerto.scheduling.state.pod_index import PodIndex

PODS = "pods"
"""The resource under which a node's number of pods is counted."""
MAX_COLUMNS = 256
"""Resources that have a column at a time; those beyond are kept by resource in dictionaries."""
_PERMANENT = ("cpu", "memory", PODS)

_Sparse = dict[str, dict[int, int]]


class ResourceTable(Columns, PodIndex):
    """Allocatable amounts and requests.

    A resource has a column while some node offers it. What pods request beyond that decides nothing, but is counted in
    dictionaries: a node may offer it later. So neither a pod nor a node can make the table large or slow.

    Attributes:
        device_classes: whose devices pods request as resources, too.
    """

    FILLS: ClassVar[Mapping[str, float]] = {"_allocatable": 0, "_used": 0}

    def __init__(self) -> None:
        self.device_classes = DeviceClasses()
        self._allocatable: Ints = np.zeros((len(_PERMANENT), 0), dtype=np.int64)
        self._used: Ints = np.zeros((len(_PERMANENT), 0), dtype=np.int64)
        self._index: dict[str, int] = {resource: index for index, resource in enumerate(_PERMANENT)}
        self._free_columns: list[int] = []
        self._offered: dict[int, Mapping[str, int]] = {}
        self._rows_offering: Counter[str] = Counter()
        self._sparse_allocatable: _Sparse = {}
        self._sparse_used: _Sparse = {}

    # --- what plugins ask

    def is_offered(self, resource: str) -> bool:
        """Whether any node offers it."""
        return resource in self._index or resource in self._rows_offering

    def allocatable(self, resource: str, rows: Rows) -> Ints:
        """Allocatable amounts; 0 where a node has none of it."""
        return self._amounts(self._allocatable, self._sparse_allocatable, resource)[rows]

    def used(self, resource: str, rows: Rows) -> Ints:
        """Amounts that pods on the nodes request."""
        return self._amounts(self._used, self._sparse_used, resource)[rows]

    def free(self, resources: Sequence[str], rows: Rows) -> Ints:
        """Allocatable less requested amounts, shape (resources, rows)."""
        indices = [self._index.get(r, -1) for r in resources]
        if -1 in indices:
            columns = [np.subtract(self.allocatable(r, rows), self.used(r, rows)) for r in resources]
            return np.array(columns, dtype=np.int64)
        at = (indices, rows) if isinstance(rows, slice) else (np.array(indices)[:, None], rows)
        free: Ints = self._allocatable[at] - self._used[at]
        return free

    # --- what is seen

    def node_changed(self, row: int, node: NodeView | None) -> None:
        """The row's Node offers what it says, or is gone."""
        self.set_allocatable(row, {} if node is None else node.allocatable)

    def set_allocatable(self, row: int, amounts: Mapping[str, int]) -> None:
        """The row's node offers these amounts, and nothing else."""
        amounts = {resource: amount for resource, amount in amounts.items() if amount}
        before = self._offered.pop(row, {})
        for resource in before.keys() - amounts.keys():
            self._put(resource, row, 0)
            self._rows_offering[resource] -= 1
            if not self._rows_offering[resource]:
                del self._rows_offering[resource]
                self._close(resource)
        for resource in amounts.keys() - before.keys():
            self._rows_offering[resource] += 1
        for resource, amount in amounts.items():
            if before.get(resource) != amount:
                self._put(resource, row, amount)
        if amounts:
            self._offered[row] = amounts

    def pod_added(self, pod: PodView, row: int) -> None:
        """Count the pod's requests on the row."""
        self._count(pod, row, 1)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """Take the pod's requests off the row."""
        self._count(pod, row, -1)

    # --- inside

    def _amounts(self, table: Ints, sparse: _Sparse, resource: str) -> Ints:
        index = self._index.get(resource)
        if index is not None:
            column: Ints = table[index]
            return column
        amounts: Ints = np.zeros(table.shape[-1], dtype=np.int64)
        for row, amount in sparse.get(resource, {}).items():
            amounts[row] = amount
        return amounts

    def _count(self, pod: PodView, row: int, sign: int) -> None:
        self._used[self._index[PODS], row] += sign
        for resource, amount in pod.requests.items():
            index = self._index.get(resource)
            if index is not None:
                self._used[index, row] += sign * amount
            else:
                _add(self._sparse_used, resource, row, sign * amount)

    def _put(self, resource: str, row: int, amount: int) -> None:
        if resource not in self._index and amount and len(self._index) < MAX_COLUMNS:
            self._open(resource)
        index = self._index.get(resource)
        if index is not None:
            self._allocatable[index, row] = amount
        else:
            before = self._sparse_allocatable.get(resource, {}).get(row, 0)
            _add(self._sparse_allocatable, resource, row, amount - before)

    def _open(self, resource: str) -> None:
        """Give the resource a column."""
        if self._free_columns:
            index = self._free_columns.pop()
        else:
            index = len(self._index)
            if index == len(self._used):
                self._allocatable = widened(self._allocatable.T, 2 * index).T
                self._used = widened(self._used.T, 2 * index).T
        self._index[resource] = index
        for table, sparse in ((self._allocatable, self._sparse_allocatable), (self._used, self._sparse_used)):
            table[index] = 0
            for row, amount in sparse.pop(resource, {}).items():
                table[index, row] = amount

    def _close(self, resource: str) -> None:
        """Free the resource's column: no node offers it any more."""
        if resource in _PERMANENT or resource not in self._index:
            return
        index = self._index.pop(resource)
        self._free_columns.append(index)
        for row in np.flatnonzero(self._used[index]):
            _add(self._sparse_used, resource, int(row), int(self._used[index, row]))


def _add(sparse: _Sparse, resource: str, row: int, amount: int) -> None:
    """Add to an entry, and keep none that is 0."""
    by_row = sparse.setdefault(resource, {})
    by_row[row] = by_row.get(row, 0) + amount
    if not by_row[row]:
        del by_row[row]
        if not by_row:
            del sparse[resource]
