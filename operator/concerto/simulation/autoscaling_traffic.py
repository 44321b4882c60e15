"""Traffic that the autoscaling experiments are driven by: the phases of seed 002 §5.4, two more, and public traces.

A `Traffic` is a piecewise linear rate of requests per second. Traces are cut into windows, scaled so that the busiest
part of the whole trace is at `PEAK_RATE`, and carry the days before the window as history that is known at its start.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PEAK_RATE = 20.0
"""Requests per second at the top of every pattern (002 §5.4.2)."""

Phase = tuple[float, float, float]

PHASES: dict[str, tuple[Phase, ...]] = {
    "increase-decrease": ((1, 1, 300), (1, 20, 900), (20, 1, 900), (1, 1, 300)),
    "flash-crowd": ((1, 1, 300), (1, 5, 660), (5, 20, 240), (20, 5, 240), (5, 1, 660), (1, 1, 300)),
    "jagged-edge": (
        (1, 1, 300),
        (1, 10, 300),
        (10, 5, 120),
        (5, 15, 300),
        (15, 10, 120),
        (10, 20, 300),
        (20, 1, 300),
        (1, 1, 300),
    ),
    "step-ladder": (
        (1, 1, 180),
        (4, 4, 180),
        (7, 7, 180),
        (10, 10, 180),
        (13, 13, 180),
        (16, 16, 180),
        (19, 19, 180),
        (1, 1, 240),
    ),
}
"""(requests/s at the start, at the end, seconds) one after the other."""


@dataclass(frozen=True)
class Traffic:
    """A rate over time.

    Attributes:
        name: for tables and file names.
        times: seconds, ascending; the rate is linear in between and constant outside.
        rates: requests per second at ``times``.
        start: when the experiment starts; what lies before is history.
        end: when it ends.
    """

    name: str
    times: NDArray[np.float64]
    rates: NDArray[np.float64]
    start: float
    end: float

    def rate(self, at: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Requests per second at ``at`` (seconds)."""
        return np.asarray(np.interp(at, self.times, self.rates), dtype=float)


def from_phases(name: str, phases: tuple[Phase, ...]) -> Traffic:
    """A pattern of the seeds; a step is two points at the same instant."""
    times, rates, now = [], [], 0.0
    for first, last, seconds in phases:
        times += [now, now + seconds]
        rates += [first, last]
        now += seconds
    return Traffic(name, np.array(times), np.array(rates, dtype=float), 0.0, now)


def read_trace(path: Path) -> tuple[float, NDArray[np.float64]]:
    """(seconds between samples, values) of a CSV whose first column is a time, an epoch or a count of minutes.

    Gaps are filled by the neighbours.

    Raises:
        ValueError: fewer than two rows.
    """
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if row][1:]
    if len(rows) < 2:
        raise ValueError(f"{path}: a trace needs at least two rows")
    stamps = [_seconds(row[0], minutes="minute" in path.name) for row in rows]
    values = np.array([float(row[1]) if row[1] else np.nan for row in rows])
    step = float(np.median(np.diff(stamps)))
    grid = np.arange(stamps[0], stamps[-1] + step / 2, step)
    known = np.isfinite(values)
    return step, np.interp(grid, np.array(stamps)[known], values[known])


def _seconds(text: str, *, minutes: bool) -> float:
    if text.replace(".", "", 1).isdigit():
        return float(text) * (60.0 if minutes else 1.0)
    return datetime.fromisoformat(text).timestamp()


def from_trace(path: Path, *, hours: float, history_days: float, windows: int) -> list[Traffic]:
    """Windows spread evenly over the trace, each with the days before it as history."""
    step, values = read_trace(path)
    rates = values * (PEAK_RATE / np.quantile(values, 0.999))
    times = np.arange(len(values)) * step
    first, last = history_days * 86400, times[-1] - hours * 3600
    starts = np.linspace(first, last, windows) if windows > 1 else np.array([first])
    return [Traffic(path.stem, times, rates, float(s), float(s + hours * 3600)) for s in starts]
