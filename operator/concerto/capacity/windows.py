"""Averages and deviations over the last minutes, for load-aware scores (docs/references.md, "Load watcher").

1-second means go into a ring that is as long as the longest window. Statistics are computed from the ring when they are
asked for: no running sums, so nothing drifts, and a gap is a gap rather than a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WINDOW_SECONDS = {"5m": 300, "10m": 600, "15m": 900}
"""The windows that load-watcher knows, by the name it gives them."""

_RING = max(WINDOW_SECONDS.values())


@dataclass(frozen=True)
class WindowStatistics:
    """One window of every series; all arrays (N, m), NaN where nothing is covered.

    Attributes:
        average: mean of the 1-second means.
        standard_deviation: their population standard deviation.
        latest: the last 1-second mean of the window.
        covered_seconds: how many seconds of the window hold a measurement.
    """

    average: Floats
    standard_deviation: Floats
    latest: Floats
    covered_seconds: Ints


class Windows:
    """Rings of 1-second means of N x m series that are sampled together."""

    def __init__(self, n_nodes: int, n_resources: int) -> None:
        """Nothing measured yet."""
        self._ring: Floats = np.full((_RING, n_nodes, n_resources), np.nan)
        self._sum: Floats = np.zeros((n_nodes, n_resources))
        self._count: Floats = np.zeros((n_nodes, n_resources))
        self._second: int | None = None

    def add(self, now: float, y: Floats, ok: Bools | None = None) -> None:
        """Take one sample of every series.

        Args:
            now: monotonic seconds. A time before the present second counts to the present second: the ring cannot go
                back, and a clock that jumped must not erase what was measured.
            y: (N, m) samples.
            ok: (N, m); what is False is left out; None means all are valid.
        """
        self._advance(now)
        if ok is None:
            self._sum += y
            self._count += 1.0
        else:
            np.add(self._sum, y, out=self._sum, where=ok)
            self._count += ok

    def statistics(self, now: float, nodes: NDArray[np.intp] | None = None) -> dict[str, WindowStatistics]:
        """Every window that ends with the last completed second before ``now``, by its name in WINDOW_SECONDS.

        Args:
            now: monotonic seconds.
            nodes: indices of the nodes, and the order of the result's rows; None: all of them.
        """
        self._advance(now)
        ring = self._ring if nodes is None else self._ring[:, nodes]
        newest_first = ring[((self._second or 0) - 1 - np.arange(_RING)) % _RING]
        measured = ~np.isnan(newest_first)
        filled = np.where(measured, newest_first, 0.0)
        newest = measured.argmax(axis=0)
        latest = np.take_along_axis(filled, newest[None], axis=0)[0]
        return {
            name: _statistics(filled[:seconds], measured[:seconds], latest) for name, seconds in WINDOW_SECONDS.items()
        }

    def _advance(self, now: float) -> None:
        second = floor(now)
        if self._second is None:
            self._second = second
        if second <= self._second:
            return
        with np.errstate(invalid="ignore"):
            # 0/0 is NaN: a second without a sample is a gap.
            self._ring[self._second % _RING] = self._sum / self._count
        self._sum[:] = 0.0
        self._count[:] = 0.0
        skipped = min(second - self._second - 1, _RING)
        if skipped:
            self._ring[(self._second + 1 + np.arange(skipped)) % _RING] = np.nan
        self._second = second


def _statistics(filled: Floats, measured: Bools, latest: Floats) -> WindowStatistics:
    """Statistics over axis 0, newest first; two passes, so that a small deviation of a large mean survives."""
    covered = measured.sum(axis=0)
    with np.errstate(invalid="ignore"):
        average = filled.sum(axis=0) / covered
        deviations = np.where(measured, filled - average, 0.0)
        deviation = np.sqrt((deviations * deviations).sum(axis=0) / covered)
    # What is measured at all in the window has its newest there
    return WindowStatistics(average, deviation, np.where(covered > 0, latest, np.nan), covered.astype(np.int64))
