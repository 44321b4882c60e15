"""Limits the syncs of one namespace's PredictiveHPAs in a period, so that no namespace takes the time of others."""

from __future__ import annotations

from collections import Counter


class SyncBudget:
    """Counts syncs by namespace and period."""

    def __init__(self, max_syncs: int, period_seconds: float) -> None:
        self._max_syncs = max_syncs
        self._period = period_seconds
        self._index = 0
        self._used: Counter[str] = Counter()

    def take(self, namespace: str, now: float) -> bool:
        """Whether one more sync of this namespace may start now; counts it if so."""
        self._begin(now)
        if self._used[namespace] >= self._max_syncs:
            return False
        self._used[namespace] += 1
        return True

    def charge(self, namespace: str, syncs: int, now: float) -> None:
        """Count that a sync of this namespace takes as long as so many more."""
        self._begin(now)
        self._used[namespace] += syncs

    def _begin(self, now: float) -> None:
        """Begin to count anew if another period has begun."""
        index = int(now // self._period)
        if index != self._index:
            self._index = index
            self._used.clear()
