"""Which nodes are feasible for pods of one signature in one cycle, kept up to date by the cycle's own placements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.framework import Filter, Plugin, Query, Reach
from concerto.scheduling.nominated_room import insufficient_beside, refusal_beside
from concerto.scheduling.state.columns import NO_ROWS, Bools, Ints, Rows, compact, union

Placement = tuple[PodView | None, int]
"""A pod that the cycle has placed and its row; without a pod, a row that has changed in another way."""


class Feasibility:
    """Which rows the filters let pass.

    Args:
        query: the first such pod.
        filters: the profile's.

    Attributes:
        filters: those that concern the pod, with what they prepared, in order.
        feasible: by row, whether every filter lets it pass.
    """

    def __init__(self, query: Query, filters: Iterable[Filter]) -> None:
        self.filters = [(f, state) for f in filters if (state := f.prepare(query)) is not None]
        self._by_row = [(f, state) for f, state in self.filters if f.reach is Reach.ROW]
        self._by_domain = [(f, state) for f, state in self.filters if f.reach is Reach.DOMAIN]
        every = slice(0, query.cluster.size)
        self._fixed: Bools = query.cluster.nodes.exists[every].copy()
        for plugin, state in self.filters:
            if plugin.reach is Reach.NOWHERE:
                self._fixed &= plugin.check(state, every) == 0
        self._alone: Bools = self._fixed.copy()  # and of those whose answer for a row depends on the row alone
        self._ask_alone(every)
        self._passes = [plugin.check(state, every) == 0 for plugin, state in self._by_domain]
        self._cluster, self._pod = query.cluster, query.pod
        nominated = query.cluster.nominations.of_priority(query.pod.priority) if query.cluster.nominations else {}
        row_of = query.cluster.row_of
        self._nominated = {row_of[node]: pods for node, pods in nominated.items() if node in row_of}
        self.feasible: Bools = self._alone.copy()
        self._combine(every)

    @property
    def may_grow(self) -> bool:
        """Whether a placement may let more nodes pass than before."""
        return bool(self._by_domain or self._nominated)

    @property
    def ignores_alike(self) -> bool:
        """Whether a pod like the first one changes at most whether its own row passes."""
        return not self._nominated and all(plugin.ignores_alike(state) for plugin, state in self._by_domain)

    def update(self, placements: Sequence[Placement], rows: Ints) -> Ints:
        """Look again after these placements, on these rows; returns the rows that pass now or do not any more."""
        again = self._nominated_rows_of(placements)
        for (plugin, state), passes in zip(self._by_domain, self._passes):
            asked = rows_to_ask(plugin, state, placements)
            if len(asked):
                passes[asked] = plugin.check(state, asked) == 0
                again = union(again, asked)
        self._ask_alone(rows)
        changed = self._combine(rows)
        return union(changed, self._combine(again)) if len(again) else changed

    def _ask_alone(self, rows: Rows) -> None:
        rows = compact(rows)
        mask = self._fixed[rows].copy()
        for plugin, state in self._by_row:
            mask &= plugin.check(state, rows) == 0
        self._alone[rows] = mask

    def _combine(self, rows: Rows) -> Ints:
        """Put together what filters have answered for these rows; returns those that pass now or do not any more."""
        before = self.feasible[rows].copy()
        mask = self._alone[rows].copy()
        for passes in self._passes:
            mask &= passes[rows]
        self.feasible[rows] = mask
        nominated = self._nominated and (self._nominated if isinstance(rows, slice) else rows.tolist())
        for row in nominated:
            if self.feasible[row] and row in self._nominated:
                waiting = [pod for pod in self._nominated[row] if not self._cluster.is_placed(pod.uid)]
                self.feasible[row] = self._takes_beside(row, waiting)
        turned: Ints = np.flatnonzero(self.feasible[rows] != before)
        return turned if isinstance(rows, slice) else rows[turned]

    def _nominated_rows_of(self, placements: Sequence[Placement]) -> Ints:
        """Rows on which room was kept for pods that the cycle has placed since, there or elsewhere."""
        if not self._nominated:
            return NO_ROWS
        node_of, row_of = self._cluster.nominations.node_of, self._cluster.row_of
        nodes = (node_of(pod.uid) for pod, _ in placements if pod is not None)
        rows = {row_of[node] for node in nodes if node in row_of}
        return np.array(sorted(rows & self._nominated.keys()), dtype=np.int64)

    def _takes_beside(self, row: int, nominated: Sequence[PodView]) -> bool:
        if not nominated:
            return True
        if insufficient_beside(self._cluster, self._pod, row, self.filters, nominated):
            return False
        return not refusal_beside(self._cluster, row, self.filters, nominated)

    def passes(self, row: int) -> bool:
        """Whether the filters let the row pass, whatever pods are nominated for it."""
        return bool(self._alone[row]) and all(passes[row] for passes in self._passes)

    def takes_nominated(self, pod: PodView, row: int) -> bool:
        """Whether the row takes a pod that is nominated for it, beside the others that go before it there."""
        pods = self._cluster.nominations.beside(pod, self._cluster.names[row])
        if any(plugin.check(state, np.array([row]))[0] for plugin, state in self.filters):
            return False
        return self._takes_beside(row, pods)


def rows_to_ask(plugin: Plugin, state: Any, placements: Iterable[Placement]) -> Ints:
    """The rows whose answers of a plugin with reach DOMAIN have changed by these placements."""
    rows = NO_ROWS
    if plugin.reach is Reach.DOMAIN:
        for pod, row in placements:
            if pod is not None:
                rows = union(rows, plugin.add_pod(state, pod, row))
    return rows
