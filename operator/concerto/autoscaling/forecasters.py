"""Models of demand. Each forecasts, at every moment of a series, how high demand will rise within the horizon.

All work on many objects at once: ``series`` is objects x samples on an even grid, newest last, NaN where there is no
sample (or one that is only a lower bound). The forecast at sample k comes from samples up to k alone, so that the
same pass over the history gives the forecast (at the last sample) and its backtest (at all others).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDED = 1e-6
"""Slope by which a line may be off that leads through equal samples, in parts of its level: they have no noise."""


@dataclass(frozen=True)
class Trend:
    """A level and a slope at each sample, and how far the slope may be followed.

    Attributes:
        level: objects x samples.
        slope: the same, per step.
        reach: steps after which the rise ends: a line is drawn out no further than it is long.
    """

    level: Floats
    slope: Floats
    reach: float

    def peak(self, steps: Floats, index: int | slice = slice(None)) -> Floats:
        """Highest point within ``steps`` (a column, or one per object): a falling trend peaks now.

        Source: McNaughton, 4.2.3 (docs/references.md).
        """
        rise = np.maximum(self.slope[:, index], 0.0) * np.minimum(steps, self.reach)
        return np.asarray(self.level[:, index] + rise)

    @property
    def rises(self) -> NDArray[np.bool_]:
        """Where the slope is above zero, objects x samples."""
        return np.asarray(self.slope > _ROUNDED * np.abs(self.level))

    def at_most(self, level: Floats) -> Trend:
        """The same with no level above this one."""
        return Trend(np.fmin(self.level, level), self.slope, self.reach)


@dataclass(frozen=True)
class Line:
    """Least squares over the last samples at each moment. Source: McNaughton, 4.2.3 (docs/references.md).

    Attributes:
        level: where it stands then, objects x samples; NaN with fewer than three samples, as is the slope.
        slope: the same, per step.
        count: samples it is drawn through.
        behind: steps from their middle to now.
        spread: sum of their squared distances from that middle.
        window: steps that the samples come from.
    """

    level: Floats
    slope: Floats
    count: Floats
    behind: Floats
    spread: Floats
    window: int

    def lower_end(self, steps: Floats, noise: Floats, max_level: Floats, errors: float, index: int | slice) -> Floats:
        """Lower end of where it leads within ``steps``: ``errors`` standard errors below; arguments as in `Onset`."""
        ahead = np.minimum(steps, self.window)
        error = self._standard_error(ahead, index)
        level = np.fmin(self.level[:, index], max_level[:, index])
        return np.asarray(level + np.maximum(self.slope[:, index], 0.0) * ahead - errors * noise[:, index] * error)

    def surely_falls(self, noise: Floats, errors: float) -> NDArray[np.bool_]:
        """Where the slope is below zero by more than ``errors`` standard errors, and no sample is missing."""
        with np.errstate(invalid="ignore", divide="ignore"):
            steepest = self.slope + errors * noise / np.sqrt(self.spread)
            falls = steepest < -_ROUNDED * np.abs(self.level)
        return np.asarray(falls & (self.count >= self.window))

    def upper_end(self, noise: Floats, errors: float) -> Floats:
        """Upper end of where it stands while it `surely_falls`: then nothing rises from there. Infinite elsewhere."""
        top = self.level + errors * noise * self._standard_error(0.0)
        return np.where(self.surely_falls(noise, errors), np.maximum(top, 0.0), np.inf)

    def _standard_error(self, ahead: Floats | float, index: int | slice = slice(None)) -> Floats:
        """Of where it stands so many steps from now, for noise of 1."""
        with np.errstate(invalid="ignore", divide="ignore"):
            far = (ahead + self.behind[:, index]) ** 2 / self.spread[:, index]
            return np.asarray(np.sqrt(1.0 / self.count[:, index] + far))

    def trend(self, series: Floats, *, whole: bool = False) -> Trend:
        """With fewer than three samples there is a level (their mean), but no slope.

        ``whole``: NaN where less than three quarters of the window are there.
        """
        level = np.where(self.count >= 3, self.level, recent_mean(series, self.window))
        if whole:
            level = np.where(self.count >= 0.75 * self.window, level, np.nan)
        return Trend(level, np.nan_to_num(self.slope), float(self.window))


def line(series: Floats, window: int) -> Line:
    """Through the last ``window`` steps; missing samples weigh nothing."""
    known = np.isfinite(series)
    x = np.arange(series.shape[1], dtype=float)
    y = np.where(known, series, 0.0)
    n, sx, sy = (_trailing(a, window) for a in (known.astype(float), known * x, y))
    sxx, sxy = _trailing(known * x * x, window), _trailing(y * x, window)
    with np.errstate(invalid="ignore", divide="ignore"):
        behind, spread = x - sx / n, sxx - sx * sx / n
        slope = np.where(n >= 3, (sxy - sx * sy / n) / spread, np.nan)
        level = sy / n + slope * behind
    return Line(level, slope, n, behind, spread, window)


def noise(series: Floats, window: int, least: int = 8) -> Floats:
    """Standard deviation of a single sample at each moment; NaN before there are ``least`` samples.

    It shows in how samples leave the line between their neighbours, which no trend explains, and grows with the root
    of the load, as the number of requests does.
    """
    bend, load = np.full(series.shape, np.nan), np.full(series.shape, np.nan)
    bend[:, 2:] = (series[:, 2:] - 2 * series[:, 1:-1] + series[:, :-2]) ** 2 / 6.0
    load[:, 2:] = (series[:, 2:] + series[:, 1:-1] + series[:, :-2]) / 3.0
    known = np.isfinite(bend)
    bends, loads = (_trailing(np.where(known, a, 0.0), window) for a in (bend, load))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(_trailing(known.astype(float), window) >= least, bends / loads, np.nan)
        return np.asarray(np.sqrt(share * recent_mean(series, 4)))


@dataclass(frozen=True)
class Onset:
    """A rise that the last minutes show beyond their noise, long before a line of five minutes has turned.

    Attributes:
        lines: short ones. The shortest sees a rise first, but only one that stands out of the noise.
        noise: of a sample, objects x samples.
        max_level: no level is above this, objects x samples; NaN: not known.
        errors: standard errors that are taken off where a line leads.
    """

    lines: tuple[Line, ...]
    noise: Floats
    max_level: Floats
    errors: float

    def peak(self, steps: Floats, index: int | slice = slice(None)) -> Floats:
        """The highest lower end of all lines within ``steps``; NaN without one (as `Trend.peak`)."""
        ends = [each.lower_end(steps, self.noise, self.max_level, self.errors, index) for each in self.lines]
        return np.asarray(np.fmax.reduce(ends))


def holt(series: Floats, alpha: float, beta: float, damping: float) -> Trend:
    """Holt's level and trend with a damped trend (Gardner and McKenzie 1985); gaps are bridged by the trend.

    Args:
        series: objects x samples.
        alpha: weight of a new sample in the level.
        beta: weight of its surprise in the trend, as a share of alpha.
        damping: share of the trend that is left after each step.
    """
    level, slope = np.full(series.shape, np.nan), np.zeros(series.shape)
    now, trend = np.full(len(series), np.nan), np.zeros(len(series))
    for k in range(series.shape[1]):
        sample, expected = series[:, k], now + damping * trend
        surprise = sample - expected
        surprise[np.isnan(surprise)] = 0.0
        now = np.where(np.isnan(expected), sample, expected + alpha * surprise)
        trend = damping * trend + alpha * beta * surprise
        level[:, k], slope[:, k] = now, trend
    return Trend(level, slope, 1.0 / (1.0 - damping))


@dataclass(frozen=True)
class Seasons:
    """Demand of earlier seasons, on a coarse grid.

    Attributes:
        values: objects x buckets, the newest last, NaN where nothing is known.
        first_at: start of the first bucket, seconds.
        step_seconds: length of a bucket.
        period_seconds: length of a season; where objects differ, a column with one for each.
        remembered: how many seasons back are averaged.
    """

    values: Floats
    first_at: float
    step_seconds: float
    period_seconds: float | Floats
    remembered: int = 3

    def before(self, at: Floats) -> Floats:
        """Mean demand one, two, ... seasons before ``at`` (objects x times); NaN where no season is known."""
        total, count = np.zeros(at.shape), np.zeros(at.shape)
        for season in range(1, self.remembered + 1):
            found = self._at(at - season * self.period_seconds)
            known = np.isfinite(found)
            total += np.where(known, found, 0.0)
            count += known
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(total / count)

    def _at(self, at: Floats) -> Floats:
        """Linear between the middles of the buckets."""
        place = (at - self.first_at) / self.step_seconds - 0.5
        low = np.floor(place).astype(int)
        inside = (low >= 0) & (low + 1 < self.values.shape[1])
        low = np.where(inside, low, 0)
        left, right = (np.take_along_axis(self.values, low + i, axis=1) for i in (0, 1))
        share = place - low
        return np.where(inside, left * (1 - share) + right * share, np.nan)


def seasonal_peak(level: Floats, at: Floats, ahead_seconds: Floats, seasons: Seasons, points: int = 4) -> Floats:
    """Today's level, and the highest rise that earlier seasons had within the horizon, scaled to today.

    Args:
        level: objects x samples, the load now.
        at: seconds of those samples, one row.
        ahead_seconds: length of the horizon, one per object (a column).
        seasons: what earlier seasons had.
        points: number of moments within the horizon that are compared.
    """
    at = np.broadcast_to(at, level.shape)
    then = seasons.before(at)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.clip(level / then, 0.5, 2.0)
    highest = np.max(np.stack([seasons.before(at + ahead_seconds * i / points) for i in range(1, points + 1)]), axis=0)
    return np.asarray(level + np.maximum(highest - then, 0.0) * scale)


def recent_mean(series: Floats, samples: int) -> Floats:
    """Mean of the last ``samples`` at each moment; NaN where there were none."""
    known = np.isfinite(series)
    total, count = _trailing(np.where(known, series, 0.0), samples), _trailing(known.astype(float), samples)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / count)


def _trailing(values: Floats, window: int) -> Floats:
    """Sums over the last ``window`` columns, by differences of cumulative sums."""
    sums = np.cumsum(values, axis=1)
    sums[:, window:] -= sums[:, :-window].copy()
    return sums
