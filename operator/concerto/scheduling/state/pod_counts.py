"""How many of the pods on each row match selectors that pending pods ask about (affinity, topology spread).

A count is made from the pods of its namespaces when it is first asked for, and kept up to date from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.columns import Ints, widened
from concerto.scheduling.state.comparisons import TooManyComparisons
from concerto.scheduling.state.pod_index import PodIndex

MAX_COUNTS = 256
"""Questions whose counts are kept; the one that was not asked for longest goes first."""
MAX_PARTS = 10_000
"""Requirements and values of the selections that are kept, which each pod that comes or goes is compared with: 2 ms."""
MAX_COMPARISONS = 3_000_000
"""For the required or preferred terms of one pod, or its spread constraints: 0.5 s."""
_TO_LOOK_AT_ONE, _TO_COLLECT_ONE = 4, 2
"""Comparisons that take as long as it takes to look at a pod at all, and to put it to those that share its labels."""


_NOBODY: Mapping[str, tuple[PodView, int]] = {}


_TOO_MANY = (
    f"selectors of the pod take more than {MAX_COMPARISONS} comparisons with pods: use fewer selectors, or select "
    "fewer namespaces"
)


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods are counted: those that match each of its terms.

    Attributes:
        terms: (namespaces, selector); None stands for every namespace.
        terminating: whether pods count whose deletion has begun.
    """

    terms: tuple[tuple[frozenset[str] | None, LabelSelector], ...]
    terminating: bool = True

    @property
    def parts(self) -> int:
        """What a comparison with one pod costs; namespaces count by the memory that they take."""
        named = sum(len(namespaces or ()) for namespaces, _ in self.terms)
        return sum(selector.parts for _, selector in self.terms) + named // 64

    @property
    def namespaces(self) -> frozenset[str] | None:
        """No pod of another namespace is counted; None stands for every namespace."""
        return self.terms[0][0] if self.terms else None

    @property
    def required_label(self) -> tuple[str, str] | None:
        """A label that each pod has that is counted; None if no single one is required."""
        return next((label for _, selector in self.terms if (label := selector.required_label) is not None), None)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether pods with these labels are counted, wherever they are."""
        return all(selector.matches(labels) for _, selector in self.terms)

    @property
    def counts_all_selected(self) -> bool:
        """Whether, of the pods of `namespaces`, all are counted that it selects by their labels."""
        return len(self.terms) == 1 and self.terminating

    def matches(self, pod: PodView) -> bool:
        """Whether the pod is counted."""
        if pod.deleting and not self.terminating:
            return False
        for namespaces, selector in self.terms:  # not all(): this runs for every pod
            if (namespaces is not None and pod.namespace not in namespaces) or not selector.matches(pod.labels):
                return False
        return True


@dataclass(slots=True)
class _Count:
    """One selection's pods.

    Attributes:
        column: how many are on each row.
        parts: of the selection.
        comparisons: that it took.
    """

    column: Ints
    parts: int
    comparisons: int


class PodCounts(PodIndex):
    """The pods on the rows, and counts of those that somebody asks about."""

    def __init__(self) -> None:
        self._width = 0
        self._pods: dict[str, dict[str, tuple[PodView, int]]] = {}  # by namespace and UID
        self._counts: OrderedDict[PodSelection, _Count] = OrderedDict()
        self._parts = 0  # of all of them

    def __bool__(self) -> bool:
        """Whether anybody has asked, so that a placement may change an answer."""
        return bool(self._counts)

    def in_namespace(self, namespace: str) -> Iterator[PodView]:
        """The pods of the namespace that are on nodes, those that came last first."""
        return (pod for pod, _ in reversed(self._pods.get(namespace, {}).values()))

    def by_row(self, selections: Iterable[PodSelection]) -> list[Ints]:
        """How many such pods are on each row, for each selection of one pod.

        Raises:
            TooManyComparisons: to count all of them would take too long, whether or not some are counted already.
        """
        left, columns = MAX_COMPARISONS, []
        for selection in selections:
            count = self._count(selection, left)
            left -= count.comparisons
            if left < 0:
                raise TooManyComparisons(_TOO_MANY)
            columns.append(count.column)
        return columns

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self._width = width
        for count in self._counts.values():
            count.column = widened(count.column, width)

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on the row."""
        self._pods.setdefault(pod.namespace, {})[pod.uid] = (pod, row)
        self._change(pod, row, 1)

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """Other selections may match the pod now."""
        if (before.labels, before.deleting) != (after.labels, after.deleting):
            self.pod_removed(before, row)
            self.pod_added(after, row)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod is not on the row any more."""
        in_namespace = self._pods[pod.namespace]
        del in_namespace[pod.uid]
        if not in_namespace:
            del self._pods[pod.namespace]
        self._change(pod, row, -1)

    def _change(self, pod: PodView, row: int, sign: int) -> None:
        for selection, count in self._counts.items():
            if selection.matches(pod):
                count.column[row] += sign

    def _count(self, selection: PodSelection, max_comparisons: int) -> _Count:
        count = self._counts.get(selection)
        if count is not None:
            self._counts.move_to_end(selection)
            return count
        parts = selection.parts
        compared, comparisons = self._to_compare(selection, max_comparisons)
        if parts > MAX_PARTS or comparisons > max_comparisons:
            raise TooManyComparisons(_TOO_MANY)
        while self._counts and (len(self._counts) >= MAX_COUNTS or self._parts + parts > MAX_PARTS):
            self._parts -= self._counts.popitem(last=False)[1].parts
        self._parts += parts
        column = np.zeros(self._width, dtype=np.int64)
        count = self._counts[selection] = _Count(column, parts, comparisons)
        rows: list[int] = []
        every = selection.counts_all_selected
        for alike in compared:
            if selection.selects(alike[0][0].labels):
                rows += [row for pod, row in alike if every or selection.matches(pod)]
        if rows:
            column += np.bincount(rows, minlength=self._width)
        return count

    def _to_compare(
        self, selection: PodSelection, max_comparisons: int
    ) -> tuple[Collection[list[tuple[PodView, int]]], int]:
        """Pods, with their rows, that the selection has to be compared with, and how many comparisons that takes.

        Those that share their labels are together. Most selections require a label that few pods have: all others are
        looked at, and not compared any further.
        """
        namespaces = self._pods if selection.namespaces is None else selection.namespaces
        in_each = [self._pods.get(namespace, _NOBODY).values() for namespace in namespaces]
        candidates: Iterable[tuple[PodView, int]] = chain.from_iterable(in_each)
        number = sum(map(len, in_each))
        comparisons = _TO_LOOK_AT_ONE * number + len(in_each)
        if comparisons > max_comparisons:
            return (), comparisons
        if (label := selection.required_label) is not None:
            key, value = label
            candidates = found = [each for each in candidates if each[0].labels.get(key) == value]
            number = len(found)
        comparisons += _TO_COLLECT_ONE * number
        if comparisons > max_comparisons:
            return (), comparisons
        alike: dict[int, list[tuple[PodView, int]]] = {}
        for each in candidates:
            labels = id(each[0].labels)
            if (group := alike.get(labels)) is None:
                alike[labels] = [each]
            else:
                group.append(each)
        return alike.values(), comparisons + len(alike) * selection.parts
