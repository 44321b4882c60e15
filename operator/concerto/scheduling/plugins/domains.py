"""Counts of pods by topology domain: the nodes with the same value of a label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import NO_ROWS, Bools, Ints, Rows
from concerto.scheduling.state.pod_terms import Weighted
from concerto.scheduling.state.row_counts import RowCounts, weighted_sum

_FEW = 32
"""Rows that are added one by one; numpy takes as long for any number of them up to there."""


class DomainCounts:
    """A number for each domain of one topology key. The state of a plugin owns it, so that placements can be tried.

    Args:
        cluster: the cluster.
        topology_key: the label.
        by_row: what is counted on each row; None for nothing.
        counted: rows that count; None for those whose Node exists.

    Attributes:
        labelled: by row, whether its node has the label, and so is in a domain.
    """

    def __init__(
        self, cluster: ClusterState, topology_key: str, by_row: Ints | None = None, counted: Bools | None = None
    ) -> None:
        size = cluster.size
        self._column = cluster.nodes.labels.column(topology_key)
        # Labels of nodes change while pods to evict are searched for, and a domain that is new then has no number here
        self._codes = self._column.codes[:size].copy()
        self.labelled: Bools = self._codes >= 0
        self._counted = cluster.nodes.exists[:size] if counted is None else counted
        domains = int(self._codes.max(initial=-1)) + 1
        # Slot 0 is for rows without the label, and stays 0
        self._totals: Ints = np.zeros(domains + 1, dtype=np.int64)
        if by_row is not None:
            self.add_column(by_row)

    def by_row(self, rows: Rows) -> Ints:
        """The number of each row's domain; 0 for a row in no domain."""
        totals: Ints = self._totals[self._codes[rows] + 1]
        return totals

    def has(self, rows: Rows) -> Bools:
        """Whether the row's node has the label."""
        labelled: Bools = self.labelled[rows]
        return labelled

    @property
    def numbers(self) -> Ints:
        """By domain; the first is for rows without the label, and is 0."""
        return self._totals

    def any(self) -> bool:
        """Whether any domain's number is above 0."""
        return bool((self._totals > 0).any())

    def fewest(self) -> tuple[int, int]:
        """The least number of a domain with a row that counts, and how many such domains there are."""
        slots = self._slots_that_count
        return (int(self._totals[slots].min()) if len(slots) else 0), len(slots)

    @cached_property
    def _slots_that_count(self) -> Ints:
        return np.unique(self._codes[self._counted & self.labelled]) + 1

    def domains(self, rows: Bools) -> int:
        """How many domains these rows are in; rows without the label count as one."""
        return int(np.count_nonzero(np.bincount(self._codes[rows] + 1)))

    def add(self, row: int, count: int) -> bool:
        """Add to the number of the row's domain; False if the row is in none, or does not count."""
        if not (self.labelled[row] and self._counted[row]):
            return False
        self._totals[self._codes[row] + 1] += count
        return True

    def add_column(self, by_row: Ints, factor: int = 1) -> None:
        """Add to the numbers of all rows' domains: the factor times what is counted on each row."""
        self._add(slice(None), by_row[: len(self._codes)], factor)

    def add_rows(self, weighted: Sequence[tuple[RowCounts, int]]) -> None:
        """Add to the numbers of some rows' domains, likewise; several times for a row if need be."""
        if sum(len(counts) for counts, _ in weighted) < _FEW:
            for counts, weight in weighted:
                for row, number in counts.items():
                    self.add(row, weight * number)
            return
        self._add(*weighted_sum(weighted), 1)

    def _add(self, rows: Rows, numbers: Ints, factor: int) -> None:
        if len(self._totals) == 1:
            return  # no node has the label
        weights = np.where(self._counted[rows] & self.labelled[rows], numbers, 0)
        added = np.bincount(self._codes[rows] + 1, weights, minlength=len(self._totals)).astype(np.int64)
        self._totals += factor * added

    def rows_beside(self, row: int) -> Ints:
        """The rows of the row's domain."""
        if not self.labelled[row]:
            return NO_ROWS
        return self._column.rows_with(int(self._codes[row]))

    def of_rows(self, by_domain: Bools, rows: Rows) -> Bools:
        """What is true of each row's domain, of one array that `numbers` is compared to."""
        answer: Bools = by_domain[self._codes[rows] + 1]
        return answer

    def rows_of(self, by_domain: Bools) -> Ints:
        """The rows of the domains of which it is true."""
        codes = np.flatnonzero(by_domain[1:])
        if not len(codes):
            return NO_ROWS
        return self._column.rows_with(int(codes[0])) if len(codes) == 1 else np.flatnonzero(by_domain[self._codes + 1])

    def turn(self, row: int, count: int) -> Ints:
        """Add likewise; the rows of the domain if its number is above 0 now and was not before, or the other way."""
        if not self.add(row, count):
            return NO_ROWS
        number = self._totals[self._codes[row] + 1]
        return self.rows_beside(row) if (number > 0) != (number - count > 0) else NO_ROWS


class CountsByKey(dict[str, DomainCounts]):
    """Counts by domain of several topology keys; those of a key begin with nothing when they are first asked for.

    Keys that no node has as a label are not kept, and cost nothing: users can make any number of them.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: ClusterState) -> None:
        super().__init__()
        self._cluster = cluster
        self._nowhere: DomainCounts | None = None

    def __missing__(self, topology_key: str) -> DomainCounts:
        if not self._cluster.nodes.labels.is_on_nodes(topology_key):
            if self._nowhere is None:
                self._nowhere = DomainCounts(self._cluster, topology_key)
            return self._nowhere
        counts = self[topology_key] = DomainCounts(self._cluster, topology_key)
        return counts

    def add_terms(self, terms: Iterable[tuple[Weighted, RowCounts]]) -> None:
        """Add the weights of terms to the domains of the rows of those who have them."""
        by_key: dict[str, list[tuple[RowCounts, int]]] = {}
        for (weight, term), rows in terms:
            by_key.setdefault(term.topology_key, []).append((rows, weight))
        for topology_key, weighted in by_key.items():
            self[topology_key].add_rows(weighted)
