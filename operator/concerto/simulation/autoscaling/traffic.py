"""Traffic that the autoscaling experiments are driven by: McNaughton's phases (5.4), two more, and public traces.

A `Traffic` is a piecewise linear rate of requests per second. Traces are cut into windows, scaled so that the busiest
part of the whole trace is at `PEAK_RATE`, and carry the days before the window as history that is known at its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from concerto.simulation.autoscaling.trace import read_trace

PEAK_RATE = 20.0
"""Requests per second at the top of every pattern (McNaughton, 5.4.2)."""
MAX_RATE = 10 * PEAK_RATE
"""More than 40 pods, the most that an experiment has, can serve; what a trace has above it is cut off."""
MIN_SECONDS = 300.0
"""A shorter trace is no test of pods that take minutes to start."""

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


STEADY_RATE, STEADY_SECONDS = 16.0, 3600.0


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


def _steady(name: str, history_hours: float) -> Traffic:
    start = history_hours * 3600.0
    end = start + STEADY_SECONDS
    return Traffic(name, np.array([0.0, end]), np.array([STEADY_RATE, STEADY_RATE]), start, end)


STEADY: dict[str, Traffic] = {each.name: each for each in (_steady("steady", 0.0), _steady("steady-72h", 72.0))}
"""A constant rate, of which an autoscaler knows nothing before, or three days."""


def from_phases(name: str, phases: tuple[Phase, ...]) -> Traffic:
    """A pattern; a step is two points at the same instant."""
    times, rates, now = [], [], 0.0
    for first, last, seconds in phases:
        times += [now, now + seconds]
        rates += [first, last]
        now += seconds
    return Traffic(name, np.array(times), np.array(rates, dtype=float), 0.0, now)


def from_trace(path: Path, *, hours: float, history_days: float, windows: int) -> list[Traffic]:
    """Windows spread evenly over the trace, each with what comes before it as history.

    The first begins after ``history_days``, or earlier where the trace is too short for that: windows that overlap
    would be counted twice. There are fewer of them then; the only one there is room for is given ``windows`` times, as
    a pattern is to its seeds. A trace that is shorter than a window is one.

    Raises:
        ValueError: it cannot be understood (see `read_trace`), or is too short for anything.
    """
    step, values = read_trace(path)
    times = np.arange(len(values), dtype=np.float64) * step
    span = float(times[-1])
    if span < MIN_SECONDS:
        raise ValueError(f"{path}: {span:g} s of load are too little: at least {MIN_SECONDS:g} s are needed")
    length = min(hours * 3600.0, span // 60.0 * 60.0)
    last = span - length
    count = min(windows, int(last / length + 1e-9) + 1)
    first = max(0.0, min(history_days * 86400.0, last - (count - 1) * length))
    starts = np.linspace(first, last, count).tolist() if count > 1 else [min(history_days * 86400.0, last)] * windows
    rates = _scaled(values)
    return [Traffic(path.stem, times, rates, s, s + length) for s in starts]


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """With the busiest thousandth at `PEAK_RATE`, and no burst beyond `MAX_RATE`."""
    top = float(np.quantile(values, 0.999)) or float(values.max())
    return np.minimum(values / top * PEAK_RATE, MAX_RATE) if top > 0 else values
