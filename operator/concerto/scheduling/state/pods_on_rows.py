"""The pods on each row, and the lowest of their priorities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

import numpy as np

from concerto.api.counters import add_count_of
from concerto.api.pod import PodView
from concerto.scheduling.state.columns import Columns, Floats
from concerto.scheduling.state.pod_index import PodIndex


class PodsOnRows(Columns, PodIndex):
    """Pods by row.

    Attributes:
        lowest_priority: of the pods on the row; infinity without any.
    """

    FILLS: ClassVar[Mapping[str, float]] = {"lowest_priority": np.inf}

    def __init__(self) -> None:
        self.lowest_priority: Floats = np.zeros(0)
        self._pods: dict[int, dict[str, PodView]] = {}
        # Whoever may create pods can name one node, which need not exist, in any number of them
        self._priorities: dict[int, Counter[int]] = {}

    def on(self, row: int) -> Collection[PodView]:
        """The pods on the row, as they were seen last."""
        return self._pods.get(row, {}).values()

    def latest(self, row: int) -> Iterator[PodView]:
        """The same, those first that came last."""
        return reversed(self._pods.get(row, {}).values())

    def highest_below(self, row: int, priority: int) -> tuple[float, int]:
        """Of the row's pods with a lower priority: the highest of their priorities, and how many they are.

        Minus infinity and 0 without any. It looks at no pod: a cluster may have 150,000.
        """
        lower = {each: count for each, count in self._priorities.get(row, {}).items() if each < priority}
        return max(lower, default=-np.inf), sum(lower.values())

    def get(self, row: int, uid: str) -> PodView | None:
        """The pod, if it is on the row."""
        return self._pods.get(row, {}).get(uid)

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on the row."""
        self._pods.setdefault(row, {})[pod.uid] = pod
        add_count_of(self._priorities, row, pod.priority, 1)
        self.lowest_priority[row] = min(self.lowest_priority[row], pod.priority)

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """The pod may have started, or its deletion may have begun."""
        self._pods[row][after.uid] = after
        if before.priority != after.priority:
            add_count_of(self._priorities, row, before.priority, -1)
            add_count_of(self._priorities, row, after.priority, 1)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod is not on the row any more."""
        pods = self._pods[row]
        del pods[pod.uid]
        add_count_of(self._priorities, row, pod.priority, -1)
        if pod.priority <= self.lowest_priority[row]:
            self.lowest_priority[row] = min(self._priorities.get(row, ()), default=np.inf)
        if not pods:
            del self._pods[row]
