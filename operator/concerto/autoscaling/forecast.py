"""Demand to expect at the horizon, how sure that is, and whether the forecast may act.

Every candidate model is run over the history, and judged by what it would have forecast there.
Source: docs/references.md, "Forecasts".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.forecast_settings import ForecastSettings
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
from concerto.autoscaling.margins import (
    SMALL_LOAD,
    Past,
    critical_fractile,
    decision_cost,
    margins,
    share_that_came,
    share_under,
    surprise,
    weighted_error,
)


@dataclass(frozen=True)
class Forecasts:
    """One entry per object.

    Attributes:
        expected: demand within the horizon, in replicas; NaN during warm-up.
        upper: the same with the margin for past errors; part of it may use the room above the target.
        noise: standard deviation of a sample; 0 where it is not known, and while the load falls for certain.
        expected_before: the highest demand as forecast one sample earlier; NaN where it is not known.
        model: index into ``names``.
        names: candidates, e.g. ``Linear``.
        warm: enough samples were there.
        better_than_no_change: the load changes, and what the model asked for cost no more over the history than to
            follow the load alone.
        error_percent: weighted mean absolute error at the horizon, percent of the load.
        under_percent: share of that error that was too low, percent.
        persistence_percent: the same error of the assumption that nothing changes.
        samples: errors these figures are taken from.
    """

    expected: Floats
    upper: Floats
    noise: Floats
    expected_before: Floats
    model: NDArray[np.int64]
    names: tuple[str, ...]
    warm: NDArray[np.bool_]
    better_than_no_change: NDArray[np.bool_]
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


@dataclass(frozen=True)
class _Basis:
    """What all candidates are made of and judged by; one entry per object.

    Attributes:
        series: demand, objects x samples.
        steps: steps of the horizon.
        tested: steps of the backtest's horizon.
        fractile: quantile of the past errors that is added.
        surprise: replicas that a load of one replica may grow by without warning.
        spread: noise of a sample, objects x samples.
        lines: least-squares lines by window.
        falls: whether the load falls for certain now.
        settings: constants.
    """

    series: Floats
    steps: Floats
    tested: NDArray[np.int64]
    fractile: Floats
    surprise: Floats
    spread: Floats
    lines: Mapping[int, Line]
    falls: NDArray[np.bool_]
    settings: ForecastSettings


@dataclass(frozen=True)
class _Judged:
    """A candidate's upper end, loss and errors over the history."""

    upper: Floats
    loss: Floats
    error: Floats


@dataclass(frozen=True)
class Earlier:
    """What is known from before the series.

    Attributes:
        highest: highest demand, one per object; None if nothing is known.
        seasons: one for each period that may repeat; without any, Seasonal is no candidate.
        past: the long history, for how fast such loads have risen.
    """

    highest: Floats | None = None
    seasons: Sequence[Seasons] = ()
    past: Past | None = None


def forecast(
    series: Floats,
    horizon_seconds: Floats,
    settings: ForecastSettings,
    *,
    models: Sequence[str] = ("Linear", "Holt"),
    earlier: Earlier | None = None,
    now: float = 0.0,
) -> Forecasts:
    """Forecast many objects at once.

    Args:
        series: demand in replicas, objects x samples, the newest last; NaN where there is no sample.
        horizon_seconds: from the newest sample to when new pods would be ready, one per object.
        settings: constants.
        models: which of Linear, Holt and Seasonal to choose from.
        earlier: what is known from before the series.
        now: time of the newest sample, seconds, for ``earlier.seasons``.
    """
    earlier = earlier or Earlier()
    basis = _basis(series, horizon_seconds, settings, earlier.past)
    candidates = list(_candidates(basis, models, earlier.seasons, now))
    if not candidates:
        # Seasonal alone, before a season is over: a warm-up, not an error
        empty = np.full(series.shape, np.nan)
        candidates = [_Candidate(models[0], empty, empty[:, -1], empty, np.zeros(series.shape, dtype=bool))]
    known = np.isfinite(series)
    ceiling = np.fmax(np.max(np.where(known, series, 0.0), axis=1), 0.0 if earlier.highest is None else earlier.highest)
    return _best(basis, candidates, settings.plausible * ceiling + 1.0)


def _basis(series: Floats, horizon_seconds: Floats, settings: ForecastSettings, past: Past | None) -> _Basis:
    length = series.shape[1]
    steps = horizon_seconds / settings.step_seconds
    known = np.isfinite(series)
    # Early on the history is shorter than the horizon: judge by a nearer one rather than not at all.
    span = np.where(known.any(axis=1), length - np.argmax(known, axis=1), 0)
    tested = np.clip(np.round(np.minimum(steps, np.maximum(2, span // 2))), 1, None).astype(int)
    paid_seconds = np.maximum(horizon_seconds, settings.surplus_seconds)
    spread = noise(series, settings.noise_window)
    windows = {*settings.onset_windows, *settings.turn_windows, *settings.linear_windows, settings.long_window}
    lines = {window: line(series, window) for window in windows}
    falls = _falls(lines, spread, settings)
    return _Basis(
        series,
        steps,
        tested,
        critical_fractile(paid_seconds, settings.shortage_seconds),
        surprise(falls, horizon_seconds, paid_seconds, past, settings),
        spread,
        lines,
        falls,
        settings,
    )


def _falls(lines: Mapping[int, Line], spread: Floats, settings: ForecastSettings) -> NDArray[np.bool_]:
    """Whether the load falls for certain now, by one of the lines; a longer one falls on once the load is at rest."""
    surely = [lines[window].surely_falls(spread, settings.falling_errors)[:, -1] for window in settings.linear_windows]
    sinks = [lines[window].slope[:, -1] < 0.0 for window in settings.linear_windows]
    return np.asarray(np.any([surely[i] & np.all(sinks[:i], axis=0) for i in range(len(surely))], axis=0))


def _best(basis: _Basis, candidates: Sequence[_Candidate], plausible: Floats) -> Forecasts:
    """Each object's forecast from the candidate with the least loss; none is above ``plausible`` replicas."""
    series, settings = basis.series, basis.settings
    age = np.arange(series.shape[1])[::-1]
    weights = 0.5 ** (age / settings.half_life)
    actual = _ahead(series, basis.tested)
    candidates = [_with_rises_that_came(basis, candidate, actual, weights) for candidate in candidates]
    judged = [_judge(basis, candidate, actual, weights) for candidate in candidates]
    # A candidate that has no forecast now is left out, however good it was
    has_forecast = np.array([np.isfinite(c.now) for c in candidates])
    losses = np.where(has_forecast, np.array([j.loss for j in judged]), np.nan)
    best = np.argmin(np.nan_to_num(losses, nan=np.inf), axis=0)
    rows = np.arange(len(series))
    error = np.array([j.error for j in judged])[best, rows]
    upper = np.minimum(np.array([j.upper for j in judged])[best, rows], plausible)
    expected = np.minimum(np.array([c.now for c in candidates])[best, rows], plausible)
    warm = (np.isfinite(series).sum(axis=1) >= settings.min_samples) & np.isfinite(upper)
    unchanged = np.where(np.isfinite(error), actual - series, np.nan)
    no_change = _cost(basis, np.where(np.isfinite(error), series, np.nan), actual, weights)
    changes = np.nan_to_num(np.abs(unchanged)).any(axis=1)
    return Forecasts(
        expected=np.where(warm, np.maximum(expected, 0.0), np.nan),
        upper=np.where(warm, np.maximum(upper, 0.0), np.nan),
        noise=np.where(basis.falls, 0.0, np.nan_to_num(basis.spread[:, -1])),
        expected_before=np.minimum(np.array([_before(c.past) for c in candidates])[best, rows], plausible),
        model=best,
        names=tuple(c.name for c in candidates),
        warm=warm,
        better_than_no_change=warm & changes & (losses[best, rows] <= no_change),
        error_percent=weighted_error(error, actual),
        under_percent=share_under(error),
        persistence_percent=weighted_error(unchanged, actual),
        samples=np.isfinite(error).sum(axis=1),
    )


def _before(past: Floats, samples: int = 4) -> Floats:
    """The last forecast made before the newest sample, within the last ``samples``; NaN where there was none."""
    found = np.full(len(past), np.nan)
    for back in range(2, min(samples + 1, past.shape[1]) + 1):
        found = np.where(np.isnan(found), past[:, -back], found)
    return found


def _with_rises_that_came(basis: _Basis, candidate: _Candidate, actual: Floats, weights: Floats) -> _Candidate:
    """The candidate with each rise as high as its rises came to be: after steps, no line leads on."""
    level = np.maximum(candidate.level, 0.0)
    rise, rise_now = np.maximum(candidate.past - level, 0.0), np.maximum(candidate.now - level[:, -1], 0.0)
    prior = (basis.settings.rise_prior * np.fmax(level[:, -1], SMALL_LOAD)) ** 2
    missed = 1.0 - share_that_came(rise, actual - level, weights, prior)
    return replace(candidate, past=candidate.past - missed[:, None] * rise, now=candidate.now - missed * rise_now)


def _judge(basis: _Basis, candidate: _Candidate, actual: Floats, weights: Floats) -> _Judged:
    settings = basis.settings
    error = actual - candidate.past
    level, rise = np.maximum(candidate.level[:, -1], 0.0), np.maximum(candidate.now - candidate.level[:, -1], 0.0)
    feared = np.maximum(basis.surprise * level ** settings.surprise_powers[0] - rise, 0.0)
    with np.errstate(invalid="ignore"):
        # The errors of a burst do not apply to the small load that it leaves behind
        scale = np.minimum(np.fmax(level, SMALL_LOAD)[:, None] / np.fmax(candidate.level, SMALL_LOAD), 1.0)
    recency = 0.5 ** (np.arange(error.shape[1])[::-1] / settings.margin_half_life)
    seen, margin = margins(
        error * scale, candidate.rising, basis.fractile, recency, np.nan_to_num(feared), settings.surprise_samples
    )
    stretch = np.sqrt(basis.steps / basis.tested)
    # The margin for what was never seen does not count against the model
    upper = (candidate.past + seen[:, None]) / (1.0 + settings.upper_room)
    asked = np.fmax(candidate.past / (1.0 + settings.expected_room), upper)
    return _Judged(candidate.now + margin * stretch, _cost(basis, asked, actual, weights), error)


def _cost(basis: _Basis, asked: Floats, actual: Floats, weights: Floats) -> Floats:
    return decision_cost(asked, basis.series, actual, basis.settings.room, basis.fractile, weights)


def _candidates(basis: _Basis, models: Sequence[str], seasons: Sequence[Seasons], now: float) -> Iterator[_Candidate]:
    series, spread, steps, tested = basis.series, basis.spread, basis.steps, basis.tested
    lines, settings = basis.lines, basis.settings
    recent = _max_level(series, spread, settings.recent)
    onset = Onset(tuple(lines[w] for w in settings.onset_windows), spread, recent, settings.onset_errors)
    ahead = tested[:, None].astype(float)
    sudden_past, sudden = onset.peak(ahead), onset.peak(steps, -1)
    most = np.minimum.reduce([lines[w].upper_end(spread, settings.turn_errors) for w in settings.turn_windows])
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
        yield _Candidate(name, past, now_, trend.level, trend.rises)
    for season in seasons if "Seasonal" in models else ():
        at: Floats = now - settings.step_seconds * np.arange(series.shape[1], dtype=float)[::-1]
        past = seasonal_peak(recent, at, ahead * settings.step_seconds, season)
        now_ = seasonal_peak(recent[:, -1:], at[-1:], steps[:, None] * settings.step_seconds, season)[:, 0]
        yield _Candidate("Seasonal", past, now_, recent, past > recent)


def _max_level(series: Floats, spread: Floats, samples: int) -> Floats:
    """The most that load can be at each moment: the lowest mean of the last 1 to ``samples``, a standard error added.

    NaN where the newest is missing: it may be because pods are at their limits, and then load is above what was seen.
    """
    most = recent_mean(series, samples)
    for count in range(1, samples):
        most = np.fmin(most, recent_mean(series, count) + spread / np.sqrt(count))
    return np.where(np.isfinite(series), most, np.nan)


def _at_least(peak: Floats, other: Floats) -> Floats:
    """The higher one; NaN where the first is: a model without a forecast yet."""
    return np.where(np.isnan(peak), peak, np.fmax(peak, other))


def _ahead(series: Floats, steps: NDArray[np.int64]) -> Floats:
    """What came ``steps`` after each sample, NaN where that is not known yet."""
    index = np.arange(series.shape[1]) + steps[:, None]
    known = index < series.shape[1]
    found = np.take_along_axis(series, np.where(known, index, 0), axis=1)
    return np.where(known, found, np.nan)
