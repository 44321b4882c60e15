"""How much more a filled node may be given because its CPUs idle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_WIDEN_PER_SECOND = 0.1
"""Head room that a node is given in a second for CPUs that all idle."""
_MAX_BETWEEN_REPORTS_SECONDS = 10.0
"""Time between two reports of a busy node's agent, at most; what a longer silence was like is unknown."""
_FULL, _AT_WORK = 0.97, 0.5
"""Utilisation that a filled node should have, and from which its pods have begun to work."""

_RISES = 0.03
"""By how much utilisation is above that of before where pods have only begun to work: soon there will be less idle."""


class Idleness:
    """CPU utilisation of N nodes over their last reports, by row."""

    def __init__(self) -> None:
        self._used: Floats = np.zeros(0)
        self._at: Floats = np.zeros(0)  # of the last report; NaN before the first

    def grow(self, width: int) -> None:
        """Make room for that many nodes."""
        more = max(0, width - len(self._used))
        self._used = np.concatenate([self._used, np.zeros(more)])
        self._at = np.concatenate([self._at, np.full(more, np.nan)])

    def clear(self, row: int) -> None:
        """The row stands for another node from now on."""
        self._used[row], self._at[row] = 0.0, np.nan

    def report(self, row: int, used: float, now: float) -> float:
        """Take a report; returns the head room that the node is to be given if it is filled, negative if it is busy.

        Args:
            row: the node.
            used: its CPU utilisation, in parts of it.
            now: seconds.
        """
        if np.isnan(self._at[row]):
            self._at[row], self._used[row] = now, used
        seconds = min(_MAX_BETWEEN_REPORTS_SECONDS, max(0.0, now - self._at[row]))
        self._at[row] = now
        rises = used > self._used[row] + _RISES
        self._used[row] += min(1.0, 0.2 * seconds) * (used - self._used[row])
        idle = _idle(float(self._used[row]))
        growth: float = _WIDEN_PER_SECOND * seconds * (min(idle, 0.0) if rises else idle)
        return growth


def _idle(used: float) -> float:
    """Part of a node's CPUs that idles more than it should, of which so much is used; negative where less does.

    A node that idles for the most part has pods that have not begun to work, and head room does not help those.
    """
    return _FULL - used if used >= _AT_WORK else 0.0
