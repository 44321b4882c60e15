"""One count of selected pods, made in parts: there may be more pods than can be compared in one piece. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.state.columns import Ints, widened
from concerto.scheduling.state.pod_selection import PodSelection

_TO_LOOK_AT_ONE, _TO_COLLECT_ONE = 4, 2
"""Comparisons that take as long as it takes to look at a pod at all, and to put it to those that share its labels."""
_A_PART = 20_000
"""Comparisons after which it is looked at whether there may be more."""


def comparisons_at_least(pods: int, namespaces: int) -> int:
    """What it takes to look at so many pods of so many namespaces, whatever they are compared with."""
    return _TO_LOOK_AT_ONE * pods + namespaces


def comparisons_at_most(pods: int, namespaces: int, parts: int) -> int:
    """What it takes to compare a selection of so many parts with each of them."""
    return comparisons_at_least(pods, namespaces) + (_TO_COLLECT_ONE + parts) * pods


class PodCount:
    """How many pods of one selection are on each row.

    Pods that come and go are counted from the beginning, those that were there before as `go_on` comes to them.

    Args:
        selection: the selection.
        width: rows.
        pods: those that are there, and may be selected, with their rows; by UID.
        begun_with: comparisons that it took to begin.

    Attributes:
        column: how many are on each row; less than that until it is finished.
        parts: of the selection.
        comparisons: that it took so far.
    """

    def __init__(
        self, selection: PodSelection, width: int, pods: dict[str, tuple[PodView, int]], begun_with: int
    ) -> None:
        self.column: Ints = np.zeros(width, dtype=np.int64)
        self.parts = selection.parts
        self.comparisons = begun_with
        self._selection = selection
        self._left = pods
        # By the labels that pods share, with these: others may have the same identity once they are gone
        self._selects: dict[int, tuple[Mapping[str, str], bool]] = {}

    @property
    def is_finished(self) -> bool:
        """Whether all pods are counted."""
        return not self._left

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self.column = widened(self.column, width)

    def go_on(self, max_comparisons: int) -> int:
        """Count more of the pods; returns the comparisons that it took, which may be some more than that."""
        before, rows = self.comparisons, list[int]()
        while self._left and self.comparisons - before < max_comparisons:
            pods = max(1, _A_PART // (_TO_LOOK_AT_ONE + _TO_COLLECT_ONE + self.parts))
            self._compare([self._left.popitem()[1] for _ in range(min(pods, len(self._left)))], rows)
        if rows:
            self.column += np.bincount(rows, minlength=len(self.column))
        if not self._left:
            self._selects.clear()
        return self.comparisons - before

    def add(self, pod: PodView, row: int) -> None:
        """The pod has come."""
        if self._selection.matches(pod):
            self.column[row] += 1

    def remove(self, pod: PodView, row: int) -> None:
        """The pod has gone."""
        if self._left and self._left.pop(pod.uid, None) is not None:
            return
        if self._selection.matches(pod):
            self.column[row] -= 1

    def _compare(self, pods: list[tuple[PodView, int]], rows: list[int]) -> None:
        """Put the rows of those that are selected to these rows.

        Most selections require a label that few pods have: all others are looked at, and not compared any further.
        """
        self.comparisons += _TO_LOOK_AT_ONE * len(pods)
        if (label := self._selection.required_label) is not None:
            key, value = label
            pods = [each for each in pods if each[0].labels.get(key) == value]
        self.comparisons += _TO_COLLECT_ONE * len(pods)
        selection, verdicts, every = self._selection, self._selects, self._selection.counts_all_selected
        for pod, row in pods:
            if (verdict := verdicts.get(id(pod.labels))) is None:
                verdict = verdicts[id(pod.labels)] = (pod.labels, selection.selects(pod.labels))
                self.comparisons += self.parts
            if verdict[1] and (every or selection.matches(pod)):
                rows.append(row)
