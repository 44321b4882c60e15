"""How many of the pods on each row match selectors that pending pods ask about (affinity, topology spread).

A count is made from the pods of its namespaces when it is first asked for, and kept up to date from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.columns import Ints, widened
from concerto.scheduling.state.pod_index import PodIndex

MAX_COUNTS = 256
"""Questions whose counts are kept; the one that was not asked for longest goes first."""
MAX_PARTS = 10_000
"""Requirements and values of the selections that are kept, which each pod that comes or goes is compared with: 2 ms."""
MAX_COMPARISONS = 2_000_000
"""Pods times requirements and values that are compared for one count: 0.3 s."""


class TooManyComparisons(Exception):
    """A pod's selectors would be compared for too long with the pods that are there; the message says with how many."""


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods are counted: those that match each of its terms.

    Attributes:
        terms: (namespaces, selector); None stands for every namespace.
        terminating: whether pods count whose deletion has begun.
    """

    terms: tuple[tuple[tuple[str, ...] | None, LabelSelector], ...]
    terminating: bool = True

    @property
    def parts(self) -> int:
        """What a comparison with one pod costs."""
        return sum(selector.parts for _, selector in self.terms)

    def matches(self, pod: PodView) -> bool:
        """Whether the pod is counted."""
        if pod.deleting and not self.terminating:
            return False
        return all(
            (namespaces is None or pod.namespace in namespaces) and selector.matches(pod.labels)
            for namespaces, selector in self.terms
        )


@dataclass(slots=True)
class _Count:
    column: Ints
    version: int
    parts: int


class PodCounts(PodIndex):
    """The pods on the rows, and counts of those that somebody asks about."""

    def __init__(self) -> None:
        self._width = 0
        self._changes = 0
        self._pods: dict[str, dict[str, tuple[PodView, int]]] = {}  # by namespace and UID
        self._counts: OrderedDict[PodSelection, _Count] = OrderedDict()
        self._parts = 0  # of all of them

    def __bool__(self) -> bool:
        """Whether anybody has asked, so that a placement may change an answer."""
        return bool(self._counts)

    def in_namespace(self, namespace: str) -> Iterator[PodView]:
        """The pods of the namespace that are on nodes, those that came last first."""
        return (pod for pod, _ in reversed(self._pods.get(namespace, {}).values()))

    def by_row(self, selection: PodSelection) -> Ints:
        """How many such pods are on each row.

        Raises:
            TooManyComparisons: that would take too long.
        """
        return self._count(selection).column

    def version(self, selection: PodSelection) -> int:
        """Grows with each change of the counts."""
        return self._count(selection).version

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
                self._changes += 1
                count.version = self._changes

    def _count(self, selection: PodSelection) -> _Count:
        count = self._counts.get(selection)
        if count is not None:
            self._counts.move_to_end(selection)
            return count
        namespaces = selection.terms[0][0] if selection.terms else None
        parts, compared = selection.parts, self._pods if namespaces is None else namespaces
        pods = sum(len(self._pods.get(namespace, ())) for namespace in compared)
        if parts > MAX_PARTS or parts * pods > MAX_COMPARISONS:
            raise TooManyComparisons(
                f"selectors of the pod have {parts} requirements and values, to be compared with {pods} pods: "
                "use fewer, or select fewer namespaces"
            )
        while self._counts and (len(self._counts) >= MAX_COUNTS or self._parts + parts > MAX_PARTS):
            self._parts -= self._counts.popitem(last=False)[1].parts
        self._parts += parts
        self._changes += 1  # a count that was dropped and is made again has another version
        count = self._counts[selection] = _Count(np.zeros(self._width, dtype=np.int64), self._changes, parts)
        for namespace in compared:
            for pod, row in self._pods.get(namespace, {}).values():
                if selection.matches(pod):
                    count.column[row] += 1
        return count
