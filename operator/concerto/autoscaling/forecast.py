"""What to expect at the horizon, how sure that is, and whether it has earned a say.

Every candidate model is run over the kept history and judged by what it would have said. The loss is that of a
newsvendor: a replica too few costs more than one too many, and how much more depends on the horizon, as a surplus pod
is paid for at least as long as it takes to start. The same ratio is the quantile of the past errors that is added to
the forecast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.forecasters import (
    Floats,
    Line,
    Onset,
    Seasons,
    Trend,
    holt,
    line,
    noise,
    recent_mean,
    seasonal_peak,
)

_SMALL = 0.25
"""Replicas: loads below are taken for this one where errors or rises are set in relation to the load."""


@dataclass(frozen=True)
class ForecastSettings:
    """How forecasts are made.

    Attributes:
        step_seconds: grid of the series.
        linear_windows: samples that lines are drawn through.
        holt: weight of a sample, of its surprise in the trend, and the share of the trend left after a step.
        shortage_seconds: a missing pod costs as much as a surplus pod that is kept for so long.
        surplus_seconds: a surplus pod is paid for at least so long, however soon it is ready.
        half_life: samples after which an error counts half when models are compared ...
        margin_half_life: ... and when the margin is taken from them.
        surprise: replicas by which a load of one replica is expected to grow within `surprise_seconds` before any error
            has been seen; forecast growth is a part of that ...
        surprise_powers: ... it grows with these powers of the load (a small one can more easily double) and of the
            horizon ...
        surprise_samples: ... and weighs as much as so many seen errors.
        falling: share of it that is left while load falls for certain ...
        falling_errors: ... by so many standard errors, over the first of the linear windows.
        risen: quantile of the rises in the long history that stands in for `surprise` where it is less ...
        risen_least: ... down to this share of it ...
        risen_samples: ... and wholly so once the history holds so many.
        long_window: samples of the one line whose level may lie above what is seen now.
        least_samples: fewer are a warm-up.
        recent: samples of which no mean may be exceeded by a level: after a drop the past must not hold replicas up.
        noise_window: samples that the noise of one is taken from.
        onset_windows: samples of the lines that a sudden rise is looked for with ...
        onset_errors: ... and standard errors that are taken off what they promise.
        turn_windows: samples of the lines that show that a rise is over ...
        turn_errors: ... and standard errors by which they have to fall.
        plausible: no forecast is above so many times the highest known demand, and one replica.
    """

    step_seconds: float = 15.0
    linear_windows: tuple[int, ...] = (20, 40)
    holt: tuple[float, float, float] = (0.4, 0.15, 0.97)
    shortage_seconds: float = 1800.0
    surplus_seconds: float = 60.0
    half_life: float = 40.0
    margin_half_life: float = 40.0
    surprise: float = 2.5
    surprise_seconds: float = 135.0
    surprise_powers: tuple[float, float] = (0.25, 0.15)
    surprise_samples: float = 12.0
    falling: float = 0.25
    falling_errors: float = 2.5
    risen: float = 0.95
    risen_least: float = 0.5
    risen_samples: int = 72
    long_window: int = 160
    least_samples: int = 4
    recent: int = 4
    noise_window: int = 60
    onset_windows: tuple[int, ...] = (3, 4, 6, 8)
    onset_errors: float = 1.0
    turn_windows: tuple[int, ...] = (4, 6, 8)
    turn_errors: float = 1.5
    plausible: float = 2.0


@dataclass(frozen=True)
class Past:
    """Demand of the last days, coarsely.

    Attributes:
        values: objects x buckets, in replicas, the newest last; NaN where nothing is known.
        step_seconds: length of a bucket.
    """

    values: Floats
    step_seconds: float


@dataclass(frozen=True)
class Forecasts:
    """One entry per object.

    Attributes:
        expected: demand within the horizon, in replicas; NaN during warm-up.
        upper: the same with the margin for past errors; it may use three tolerances of the room above the target.
        model: index into ``names``.
        names: candidates, e.g. ``Linear``.
        warm: enough samples were there.
        earned: the model did better over the history than the assumption that nothing changes.
        error_percent: weighted mean absolute error at the horizon, percent of the load.
        under_percent: share of that error that was too low, percent.
        persistence_percent: the same error of the assumption that nothing changes.
        samples: errors these figures are taken from.
    """

    expected: Floats
    upper: Floats
    model: NDArray[np.int64]
    names: tuple[str, ...]
    warm: NDArray[np.bool_]
    earned: NDArray[np.bool_]
    error_percent: Floats
    under_percent: Floats
    persistence_percent: Floats
    samples: NDArray[np.int64]


@dataclass(frozen=True)
class _Candidate:
    """A model's peaks: at each sample for the backtest's horizon, now for the real one; its level and which way it
    pointed at each sample.
    """

    name: str
    past: Floats
    now: Floats
    level: Floats
    rising: NDArray[np.bool_]


def critical_fractile(horizon_seconds: Floats, shortage_seconds: float) -> Floats:
    """Newsvendor: cost of too few over the sum of both, where the cost of too many grows with the horizon."""
    return np.asarray(shortage_seconds / (shortage_seconds + horizon_seconds))


def forecast(
    series: Floats,
    horizon_seconds: Floats,
    settings: ForecastSettings,
    *,
    models: Sequence[str] = ("Linear", "Holt"),
    highest: Floats | None = None,
    seasons: Sequence[Seasons] = (),
    past: Past | None = None,
    now: float = 0.0,
) -> Forecasts:
    """Forecast many objects at once.

    Args:
        series: demand in replicas, objects x samples, the newest last; NaN where there is none.
        horizon_seconds: from the newest sample to when new pods would be ready, one per object.
        settings: constants.
        models: which of Linear, Holt and Seasonal to choose from.
        highest: highest demand known from before the series, one per object.
        seasons: one for each period that may repeat; without any, Seasonal is no candidate.
        past: the long history, for how fast such loads have risen.
        now: time of the newest sample, seconds, for ``seasons``.
    """
    count, length = series.shape
    steps = horizon_seconds / settings.step_seconds
    known = np.isfinite(series)
    # Early on the history is shorter than the horizon: judge by a nearer one rather than not at all.
    span = np.where(known.any(axis=1), length - np.argmax(known, axis=1), 0)
    tested = np.clip(np.round(np.minimum(steps, np.maximum(2, span // 2))), 1, None).astype(int)
    paid_seconds = np.maximum(horizon_seconds, settings.surplus_seconds)
    fractile = critical_fractile(paid_seconds, settings.shortage_seconds)

    spread = noise(series, settings.noise_window)
    windows = {*settings.onset_windows, *settings.turn_windows, *settings.linear_windows, settings.long_window}
    lines = {window: line(series, window) for window in windows}
    candidates = list(_candidates(series, lines, spread, steps, tested, settings, models, seasons, now))
    if not candidates:
        # Seasonal alone, before a season is over: a warm-up, not an error
        silent = np.full(series.shape, np.nan)
        candidates = [_Candidate(models[0], silent, silent[:, -1], silent, np.zeros(series.shape, dtype=bool))]
    actual = _ahead(series, tested)
    age = np.arange(length)[::-1]
    weights, recency = 0.5 ** (age / settings.half_life), 0.5 ** (age / settings.margin_half_life)
    stretch = np.sqrt(steps / tested)
    surprise = _surprise(lines, spread, horizon_seconds, paid_seconds, past, settings)

    uppers, losses, errors = [], [], []
    for candidate in candidates:
        error = actual - candidate.past
        level, rise = np.maximum(candidate.level[:, -1], 0.0), np.maximum(candidate.now - candidate.level[:, -1], 0.0)
        feared = np.maximum(surprise * level ** settings.surprise_powers[0] - rise, 0.0)
        with np.errstate(invalid="ignore"):
            # A burst's errors do not stay with the small load that it leaves behind
            scale = np.minimum(np.fmax(level, _SMALL)[:, None] / np.fmax(candidate.level, _SMALL), 1.0)
        seen, margin = _margins(
            error * scale, candidate.rising, fractile, recency, np.nan_to_num(feared), settings.surprise_samples
        )
        uppers.append(candidate.now + margin * stretch)
        # What was never seen says nothing of the model
        losses.append(_pinball(error - seen[:, None], fractile, weights))
        errors.append(error)
    unchanged = actual - series
    best = np.argmin(np.nan_to_num(np.array(losses), nan=np.inf), axis=0)
    rows = np.arange(count)
    error = np.array(errors)[best, rows]

    warm = known.sum(axis=1) >= settings.least_samples
    ceiling = np.fmax(np.max(np.where(known, series, 0.0), axis=1), 0.0 if highest is None else highest)
    upper = np.minimum(np.array(uppers)[best, rows], settings.plausible * ceiling + 1.0)
    expected = np.minimum(np.array([c.now for c in candidates])[best, rows], settings.plausible * ceiling + 1.0)
    warm &= np.isfinite(upper)
    comparable = np.where(np.isfinite(error), unchanged, np.nan)
    lost = np.array(losses)[best, rows]
    return Forecasts(
        expected=np.where(warm, np.maximum(expected, 0.0), np.nan),
        upper=np.where(warm, np.maximum(upper, 0.0), np.nan),
        model=best,
        names=tuple(c.name for c in candidates),
        warm=warm,
        earned=warm & (lost < _pinball(comparable, fractile, weights)),
        error_percent=_wmape(error, actual),
        under_percent=_share_under(error),
        persistence_percent=_wmape(comparable, actual),
        samples=np.isfinite(error).sum(axis=1),
    )


def _candidates(
    series: Floats,
    lines: Mapping[int, Line],
    spread: Floats,
    steps: Floats,
    tested: NDArray[np.int64],
    settings: ForecastSettings,
    models: Sequence[str],
    seasons: Sequence[Seasons],
    now: float,
) -> Iterator[_Candidate]:
    recent = _most_now(series, spread, settings.recent)
    onset = Onset(tuple(lines[w] for w in settings.onset_windows), spread, recent, settings.onset_errors)
    ahead = tested[:, None].astype(float)
    sudden_past, sudden = onset.peak(ahead), onset.peak(steps, -1)
    most = np.minimum.reduce([lines[w].most(spread, settings.turn_errors) for w in settings.turn_windows])
    trends: list[tuple[str, Trend]] = []
    if "Linear" in models:
        trends += [("Linear", lines[window].trend(series).at_most(recent)) for window in settings.linear_windows]
        # Load that jumps about is better met at its mean than followed
        trends.append(("Linear", lines[settings.long_window].trend(series, whole=True)))
    if "Holt" in models:
        trends.append(("Holt", holt(series, *settings.holt).at_most(recent)))
    for name, trend in trends:
        past, now_ = _at_least(trend.peak(ahead), sudden_past), _at_least(trend.peak(steps, -1), sudden)
        if trend.reach < settings.long_window:
            past, now_ = np.minimum(past, most), np.minimum(now_, most[:, -1])
        yield _Candidate(name, past, now_, trend.level, trend.slope > 0)
    for season in seasons if "Seasonal" in models else ():
        at: Floats = now - settings.step_seconds * np.arange(series.shape[1], dtype=float)[::-1]
        past = seasonal_peak(recent, at, ahead * settings.step_seconds, season)
        now_ = seasonal_peak(recent[:, -1:], at[-1:], steps[:, None] * settings.step_seconds, season)[:, 0]
        yield _Candidate("Seasonal", past, now_, recent, past > recent)


def _most_now(series: Floats, spread: Floats, samples: int) -> Floats:
    """The most that load can be at each moment: the lowest mean of the last 1 to ``samples``, a standard error added.

    NaN where the newest is missing: it may be because pods are at their limits, and then load is above what was seen.
    """
    most = recent_mean(series, samples)
    for count in range(1, samples):
        most = np.fmin(most, recent_mean(series, count) + spread / np.sqrt(count))
    return np.where(np.isfinite(series), most, np.nan)


def _at_least(peak: Floats, other: Floats) -> Floats:
    """The higher one; NaN where the first is: a model that says nothing yet."""
    return np.where(np.isnan(peak), peak, np.fmax(peak, other))


def _ahead(series: Floats, steps: NDArray[np.int64]) -> Floats:
    """What came ``steps`` after each sample, NaN where that is not known yet."""
    index = np.arange(series.shape[1]) + steps[:, None]
    known = index < series.shape[1]
    found = np.take_along_axis(series, np.where(known, index, 0), axis=1)
    return np.where(known, found, np.nan)


def _surprise(
    lines: Mapping[int, Line],
    spread: Floats,
    horizon_seconds: Floats,
    paid_seconds: Floats,
    past: Past | None,
    settings: ForecastSettings,
) -> Floats:
    """Replicas that a load of one may grow by within the horizon without anything having told of it; per object."""
    power, by_horizon = settings.surprise_powers
    surprise = settings.surprise * (paid_seconds / settings.surprise_seconds) ** by_horizon
    left = np.full(len(surprise), settings.falling)
    if past is not None:
        known, risen = _risen(past, horizon_seconds, power, settings.risen)
        share = np.minimum(known / settings.risen_samples, 1.0)
        surprise += share * np.nan_to_num(np.clip(risen, settings.risen_least * surprise, surprise) - surprise)
        left += share * (1.0 - settings.falling)  # what was learned comes from falls, too
    falls = lines[settings.linear_windows[0]].surely_falls(spread, settings.falling_errors)[:, -1]
    return np.asarray(np.where(falls, left * surprise, surprise))


def _risen(past: Past, horizon_seconds: Floats, power: float, quantile: float) -> tuple[Floats, Floats]:
    """How many rises within the horizon the long history holds, and that quantile of them for a load of one replica.

    A rise within a part of a bucket is taken for the root of that part, as in a random walk. NaN without any.
    """
    values = past.values
    buckets = np.maximum(np.ceil(horizon_seconds / past.step_seconds), 1).astype(int)
    count, found = np.zeros(len(values)), np.full(len(values), np.nan)
    for ahead in np.unique(buckets[buckets < values.shape[1]]):
        rows = np.flatnonzero(buckets == ahead)
        base = values[rows, :-ahead]
        highest = np.fmax.reduce([values[rows, i : i + base.shape[1]] for i in range(1, ahead + 1)])
        rise = np.sort(np.maximum(highest - base, 0.0) / np.fmax(base, _SMALL) ** power, axis=1)  # NaN is sorted last
        known = np.isfinite(rise).sum(axis=1)
        last = np.maximum(np.ceil(quantile * known).astype(int) - 1, 0)
        part = np.sqrt(np.minimum(horizon_seconds[rows] / (ahead * past.step_seconds), 1.0))
        count[rows], found[rows] = known, rise[np.arange(len(rows)), last] * part
    return count, found


def _margins(
    error: Floats,
    rising: NDArray[np.bool_],
    fractile: Floats,
    weights: Floats,
    prior: Floats,
    prior_weight: float,
) -> tuple[Floats, Floats]:
    """The weighted fractile of the errors made while the model pointed the way it points now; never below zero.

    Errors on the way up are of another kind than those on the way down, where a peak cannot be missed. Few errors say
    little about the rare ones: ``prior``, an error of each object, stands beside them until there are many. First
    without, then with it.
    """
    alike = np.where(rising == rising[:, -1:], error, np.nan)
    enough = np.isfinite(alike).sum(axis=1, keepdims=True) >= 4
    chosen = np.column_stack([np.where(enough, alike, error), prior])
    order = np.argsort(chosen, axis=1)
    ranked = np.take_along_axis(chosen, order, axis=1)
    rows = np.arange(len(ranked))
    found = []
    for weight in (0.0, prior_weight):
        weighed = np.where(np.isfinite(chosen), np.append(weights, weight), 0.0)
        share = np.cumsum(np.take_along_axis(weighed, order, axis=1), axis=1)
        index = (share < fractile[:, None] * share[:, -1:]).sum(axis=1)
        value = ranked[rows, np.minimum(index, ranked.shape[1] - 1)]
        found.append(np.asarray(np.maximum(np.nan_to_num(value), 0.0)))
    return found[0], found[1]


def _pinball(error: Floats, fractile: Floats, weights: Floats) -> Floats:
    """Mean cost of being wrong: ``fractile`` a replica too few, the rest of 1 a replica too many."""
    known = np.isfinite(error)
    miss = np.where(known, error, 0.0)
    tau = fractile[:, None]
    cost = np.where(miss > 0, tau * miss, (tau - 1) * miss)
    total = (known * weights).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((cost * weights).sum(axis=1) / total)


def _wmape(error: Floats, actual: Floats) -> Floats:
    known = np.isfinite(error)
    load = np.where(known, actual, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.asarray(100.0 * np.where(known, np.abs(error), 0.0).sum(axis=1) / load)


def _share_under(error: Floats) -> Floats:
    missed = np.where(np.isfinite(error), error, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(100.0 * np.maximum(missed, 0.0).sum(axis=1) / np.abs(missed).sum(axis=1))
