"""What a metric provider says of nodes: joined to their rows, examined, and kept with its age.

Ages are by the operator's steady clock, from the arrival of a number whose time is another than before. Times are never
compared with each other: metrics-server passes on those of each node's own clock, and one that is an hour ahead must
not make all the others old. So a clock that is wrong or jumps makes nothing fresh or stale, and a provider that repeats
one answer for ever ages as one that gives no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from concerto.api.metric_provider import STATISTICS
from concerto.api.prometheus_queries import Statistic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = slice | Ints

RESOURCES = ("cpu", "memory")
"""What load is measured of, in the order of the arrays' first axis."""

AVERAGE, DEVIATION, LATEST = range(3)
INDEX: dict[Statistic, int] = {"average": AVERAGE, "deviation": DEVIATION, "latest": LATEST}

MAX_OVERSHOOT = 1.1
"""A rate over a short time can come out somewhat above what there is, as when both ends of the time are rounded: up to
here it is taken for all of the machine, and beyond for a mistake."""
_MAX_SHOWN = 10
_MAX_SHOWN_LENGTH = 256


@dataclass(frozen=True)
class Series:
    """What a provider says of one resource by one statistic.

    Attributes:
        resource: cpu or memory.
        statistic: which.
        values: (value, seconds by whatever clock) by node, as the provider calls nodes.
        covered_seconds: over how long it was measured.
        covered_by_node: the same of nodes that were measured for less long.
        amounts: whether values are amounts (millicores, bytes) and not parts of the machine.
        ambiguous: nodes of which it has more than one value, and which values lack therefore.
    """

    resource: str
    statistic: Statistic
    values: Mapping[str, tuple[float, float]]
    covered_seconds: float
    amounts: bool = False
    ambiguous: frozenset[str] = frozenset()
    covered_by_node: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As a profile's ``queries`` call it: ``cpu.average``, say."""
        return f"{self.resource}.{next(k for k, v in STATISTICS.items() if v == self.statistic)}"


@dataclass(frozen=True)
class Joined:
    """What became of an answer.

    Attributes:
        unmatched: names in the answer that belong to no node, the first few by name, and of long ones the beginning.
        unmatched_count: how many there are.
        rejected: values that cannot be, by what is wrong with them: NotANumber, Negative, AboveOne, Ambiguous.
    """

    unmatched: tuple[str, ...] = ()
    unmatched_count: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


class Provided:
    """One provider's numbers, by resource, statistic and row."""

    def __init__(self, width: int) -> None:
        """Nothing was said yet."""
        self._values: Floats = np.full((len(RESOURCES), len(INDEX), width), np.nan)
        self._ends: Floats = np.full((len(RESOURCES), len(INDEX), width), -np.inf)
        self._times: Floats = np.full_like(self._ends, np.nan)  # by the clocks of those that measured
        self._covered: Floats = np.zeros_like(self._ends)

    def grow(self, width: int) -> None:
        """There are rows up to that number."""
        more = width - self._values.shape[-1]
        self._values = np.pad(self._values, [(0, 0), (0, 0), (0, more)], constant_values=np.nan)
        self._ends = np.pad(self._ends, [(0, 0), (0, 0), (0, more)], constant_values=-np.inf)
        self._times = np.pad(self._times, [(0, 0), (0, 0), (0, more)], constant_values=np.nan)
        self._covered = np.pad(self._covered, [(0, 0), (0, 0), (0, more)])

    def vacate(self, row: int) -> None:
        """The row's node is gone: what was said of it is not said of the next one there."""
        self._values[..., row] = self._times[..., row] = np.nan
        self._ends[..., row] = -np.inf

    def take(self, answer: Sequence[Series], row_of: Mapping[str, int], machine: Ints, now: float) -> Joined:
        """An answer. What it does not mention stays as it was, and grows old.

        Args:
            answer: any part of what was asked for.
            row_of: by name or address, the nodes there are.
            machine: millicores and bytes that nodes have; shape (2, rows).
            now: when it was asked for, seconds.
        """
        unmatched: set[str] = set()
        rejected: Counter[str] = Counter()
        for series in answer:
            unmatched |= self._take_one(series, row_of, machine, rejected, now)
        shown = tuple(name[:_MAX_SHOWN_LENGTH] for name in nsmallest(_MAX_SHOWN, unmatched))
        return Joined(shown, len(unmatched), rejected)

    def _take_one(
        self, series: Series, row_of: Mapping[str, int], machine: Ints, rejected: Counter[str], now: float
    ) -> set[str]:
        at = RESOURCES.index(series.resource), INDEX[series.statistic]
        matched = [(row, name) for name in series.values if (row := row_of.get(name)) is not None]
        rows = np.array([row for row, _ in matched], dtype=np.int64)
        values, times = np.array([series.values[name] for _, name in matched], dtype=np.float64).reshape(-1, 2).T
        if series.amounts:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = values / machine[at[0], rows]
        finite = np.isfinite(values) & np.isfinite(times)
        wrong = {
            "NotANumber": ~finite,
            "Negative": finite & (values < 0.0),
            "AboveOne": finite & (values > MAX_OVERSHOOT),
        }
        for reason, which in wrong.items():
            rejected[reason] += int(np.count_nonzero(which))
        values = np.where(np.logical_or.reduce([*wrong.values()]), np.nan, np.minimum(values, 1.0))
        self._values[at][rows] = values
        self._ends[at][rows] = np.where(times == self._times[at][rows], self._ends[at][rows], now)
        self._times[at][rows] = times
        self._covered[at][rows] = [series.covered_by_node.get(n, series.covered_seconds) for _, n in matched]
        # A node's name and its address, or two of its addresses, are two series of it as well
        distinct, counts = np.unique(rows, return_counts=True)
        twice = {*distinct[counts > 1].tolist(), *(row_of[name] for name in series.ambiguous if name in row_of)}
        self._values[at][[*twice]] = np.nan
        unmatched_twice = sum(name not in row_of for name in series.ambiguous)
        rejected["Ambiguous"] += len(twice) + unmatched_twice
        return {name for name in (*series.values, *series.ambiguous) if name not in row_of}

    def measured(self, resource: str, statistic: Statistic, rows: Rows, oldest: float) -> Floats:
        """Parts of the machine, 0 to 1; NaN where nothing usable was said since ``oldest``, in seconds."""
        at = RESOURCES.index(resource), INDEX[statistic]
        return np.where(self._ends[at][rows] >= oldest, self._values[at][rows], np.nan)

    def span(self, rows: Rows) -> tuple[Floats, Floats]:
        """When the mean loads (or else the latest) were measured: their ends, and over how long; shapes (2, rows)."""
        latest = np.isnan(self._values[:, AVERAGE][:, rows])
        ends = np.where(latest, self._ends[:, LATEST][:, rows], self._ends[:, AVERAGE][:, rows])
        covered = np.where(latest, self._covered[:, LATEST][:, rows], self._covered[:, AVERAGE][:, rows])
        return ends, covered

    def measured_at(self, rows: Rows) -> Floats:
        """When a usable mean or latest value of the cpu, else of the memory, was measured; -inf without one."""
        shown = np.where(np.isnan(self._values[:, (AVERAGE, LATEST)]), -np.inf, self._ends[:, (AVERAGE, LATEST)])
        measured_at: Floats = shown.max(axis=(0, 1))[rows]
        return measured_at
