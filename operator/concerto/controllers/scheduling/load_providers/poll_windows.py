"""Windows from single samples: means and deviations over the last minutes, as Trimaran's load watcher keeps them.

Source: docs/references.md, "Load-aware scores".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from concerto.api.prometheus_queries import Statistic
from concerto.scheduling.state.provided_load import RESOURCES, Series

Floats = NDArray[np.float64]


class PollWindows:
    """The samples of the last window, by resource and node. A sample counts once, however often it is polled."""

    def __init__(self, window_seconds: float) -> None:
        """Windows of that length, with nothing in them."""
        self._window = window_seconds
        self._columns: dict[str, int] = {}
        self._measured_at: Floats = np.full((len(RESOURCES), 0), np.nan)
        self._polls: deque[tuple[float, Floats]] = deque()  # when it arrived, and new samples by resource and column

    def add(self, latest: Iterable[Series], now: float) -> tuple[Series, ...]:
        """Take in what a poll returned.

        Args:
            latest: the latest sample of each resource, with the time of its measurement by whatever clock.
            now: when it arrived, by a clock that never jumps, seconds.

        Returns:
            What was passed in, and for each resource the mean and, from two samples on, the population standard
            deviation.
        """
        latest = tuple(latest)
        values = self._take(latest)
        self._polls.append((now, values))
        while self._polls[0][0] <= now - self._window:
            self._polls.popleft()
        made = [*latest]
        for series in latest:
            made += self._statistics(series, now)
        self._forget()
        return tuple(made)

    def _take(self, latest: tuple[Series, ...]) -> Floats:
        for series in latest:
            for name in series.values:
                self._columns.setdefault(name, len(self._columns))
        more = len(self._columns) - self._measured_at.shape[1]
        self._measured_at = np.pad(self._measured_at, [(0, 0), (0, more)], constant_values=np.nan)
        values = np.full((len(RESOURCES), len(self._columns)), np.nan)
        for series in latest:
            resource = RESOURCES.index(series.resource)
            for name, (value, measured_at) in series.values.items():
                column = self._columns[name]
                if np.isfinite(measured_at) and measured_at != self._measured_at[resource, column]:
                    values[resource, column], self._measured_at[resource, column] = value, measured_at
        return values

    def _statistics(self, series: Series, now: float) -> list[Series]:
        resource, width = RESOURCES.index(series.resource), len(self._columns)
        arrived = np.array([at for at, _ in self._polls])
        stacked = np.full((len(self._polls), width), np.nan)
        for row, (_, values) in zip(stacked, self._polls):
            row[: values.shape[1]] = values[resource]
        there = np.isfinite(stacked)
        counts = there.sum(axis=0)
        filled = np.where(there, stacked, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = filled.sum(axis=0) / counts
            deviations = np.sqrt((np.where(there, filled - means, 0.0) ** 2).sum(axis=0) / counts)
        first = arrived[there.argmax(axis=0)]
        covered = np.minimum(now - first + series.covered_seconds, self._window)
        made = []
        wanted: tuple[tuple[Statistic, Floats, int], ...] = (("average", means, 1), ("deviation", deviations, 2))
        for statistic, numbers, min_samples in wanted:
            known = {name: column for name in series.values if counts[column := self._columns[name]] >= min_samples}
            made.append(
                Series(
                    series.resource,
                    statistic,
                    {name: (float(numbers[column]), series.values[name][1]) for name, column in known.items()},
                    self._window,
                    series.amounts,
                    covered_by_node={name: float(covered[column]) for name, column in known.items()},
                )
            )
        return made

    def _forget(self) -> None:
        """Columns of nodes that are gone go once most of them are: names never come back."""
        width = len(self._columns)
        seen = np.zeros(width, dtype=np.bool_)
        for _, values in self._polls:
            seen[: values.shape[1]] |= ~np.isnan(values).all(axis=0)
        if np.count_nonzero(seen) * 2 >= width:
            return
        names = [name for name, column in self._columns.items() if seen[column]]
        columns = np.array([self._columns[name] for name in names], dtype=np.int64)
        padded = ((at, np.pad(v, [(0, 0), (0, width - v.shape[1])], constant_values=np.nan)) for at, v in self._polls)
        self._polls = deque((at, values[:, columns]) for at, values in padded)
        self._measured_at = self._measured_at[:, columns]
        self._columns = {name: index for index, name in enumerate(names)}
