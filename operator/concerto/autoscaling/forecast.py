"""What to expect at the horizon, how sure that is, and whether it has earned a say.

Every candidate model is run over the kept history and judged by what it would have said. The loss is that of a
newsvendor: a replica too few costs more than one too many, and how much more depends on the horizon, as a surplus pod
is paid for at least as long as it takes to start. The same ratio is the quantile of the past errors that is added to
the forecast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.forecasters import Floats, Seasons, Trend, holt, linear, recent_mean, seasonal_peak


@dataclass(frozen=True)
class ForecastSettings:
    """How forecasts are made.

    Attributes:
        step_seconds: grid of the series.
        linear_windows: samples that lines are drawn through.
        holt: weight of a sample, of its surprise in the trend, and the share of the trend left after a step.
        shortage_seconds: a missing pod costs as much as a surplus pod that is kept for so long.
        half_life: samples after which an error counts half when models are compared ...
        margin_half_life: ... and when the margin is taken from them.
        surprise: replicas by which demand is expected to outgrow a forecast before any error has been seen ...
        surprise_samples: ... and how many seen errors that expectation weighs as much as.
        long_window: samples of the one line whose level may lie above what is seen now.
        least_samples: fewer are a warm-up.
        recent: samples whose mean no level may exceed: after a drop the past must not hold replicas up.
        plausible: a forecast is never higher than so many times the highest known demand, and one replica.
    """

    step_seconds: float = 15.0
    linear_windows: tuple[int, ...] = (20, 40)
    holt: tuple[float, float, float] = (0.4, 0.15, 0.97)
    shortage_seconds: float = 1800.0
    half_life: float = 40.0
    margin_half_life: float = 40.0
    surprise: float = 1.0
    surprise_samples: float = 4.0
    long_window: int = 160
    least_samples: int = 4
    recent: int = 4
    plausible: float = 2.5


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
    """A model's peaks: at each sample for the backtest's horizon, now for the real one; and which way it pointed."""

    name: str
    past: Floats
    now: Floats
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
        now: time of the newest sample, seconds, for ``seasons``.
    """
    count, length = series.shape
    steps = horizon_seconds / settings.step_seconds
    known = np.isfinite(series)
    # Early on the history is shorter than the horizon: judge by a nearer one rather than not at all.
    span = np.where(known.any(axis=1), length - np.argmax(known, axis=1), 0)
    tested = np.clip(np.round(np.minimum(steps, np.maximum(2, span // 2))), 1, None).astype(int)
    fractile = critical_fractile(horizon_seconds, settings.shortage_seconds)

    candidates = list(_candidates(series, steps, tested, settings, models, seasons, now))
    if not candidates:
        # Seasonal alone, before a season is over: a warm-up, not an error
        silent = np.full(series.shape, np.nan)
        candidates = [_Candidate(models[0], silent, silent[:, -1], np.zeros(series.shape, dtype=bool))]
    actual = _ahead(series, tested)
    age = np.arange(length)[::-1]
    weights, recency = 0.5 ** (age / settings.half_life), 0.5 ** (age / settings.margin_half_life)
    stretch = np.sqrt(steps / tested)

    uppers, losses, errors = [], [], []
    for candidate in candidates:
        error = actual - candidate.past
        margin = _margin(error, candidate.rising, fractile, recency, (settings.surprise, settings.surprise_samples))
        uppers.append(candidate.now + margin * stretch)
        losses.append(_pinball(error - margin[:, None], fractile, weights))
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
    steps: Floats,
    tested: NDArray[np.int64],
    settings: ForecastSettings,
    models: Sequence[str],
    seasons: Sequence[Seasons],
    now: float,
) -> Iterator[_Candidate]:
    recent = recent_mean(series, settings.recent)
    trends: list[tuple[str, Trend]] = []
    if "Linear" in models:
        trends += [("Linear", linear(series, window).at_most(recent)) for window in settings.linear_windows]
        # Load that jumps about is better met at its mean than followed
        trends.append(("Linear", linear(series, settings.long_window, whole=True)))
    if "Holt" in models:
        trends.append(("Holt", holt(series, *settings.holt).at_most(recent)))
    for name, trend in trends:
        past, now_ = trend.peak(tested[:, None].astype(float)), trend.peak(steps, -1)
        yield _Candidate(name, past, now_, trend.slope > 0)
    for season in seasons if "Seasonal" in models else ():
        at: Floats = now - settings.step_seconds * np.arange(series.shape[1], dtype=float)[::-1]
        past = seasonal_peak(recent, at, tested[:, None].astype(float) * settings.step_seconds, season)
        ahead = seasonal_peak(recent[:, -1:], at[-1:], steps[:, None] * settings.step_seconds, season)[:, 0]
        yield _Candidate("Seasonal", past, ahead, past > recent)


def _ahead(series: Floats, steps: NDArray[np.int64]) -> Floats:
    """What came ``steps`` after each sample, NaN where that is not known yet."""
    index = np.arange(series.shape[1]) + steps[:, None]
    known = index < series.shape[1]
    found = np.take_along_axis(series, np.where(known, index, 0), axis=1)
    return np.where(known, found, np.nan)


def _margin(
    error: Floats, rising: NDArray[np.bool_], fractile: Floats, weights: Floats, prior: tuple[float, float]
) -> Floats:
    """The weighted fractile of the errors made while the model pointed the way it points now; never below zero.

    Errors on the way up are of another kind than those on the way down, where a peak cannot be missed. Few errors say
    little about the rare ones: ``prior``, an error and its weight, stands beside them until there are many.
    """
    alike = np.where(rising == rising[:, -1:], error, np.nan)
    enough = np.isfinite(alike).sum(axis=1, keepdims=True) >= 4
    chosen = np.where(enough, alike, error)
    chosen = np.column_stack([chosen, np.full(len(chosen), prior[0])])
    order = np.argsort(chosen, axis=1)
    ranked = np.take_along_axis(chosen, order, axis=1)
    weighed = np.where(np.isfinite(chosen), np.append(weights, prior[1]), 0.0)
    share = np.cumsum(np.take_along_axis(weighed, order, axis=1), axis=1)
    index = (share < fractile[:, None] * share[:, -1:]).sum(axis=1)
    value = ranked[np.arange(len(ranked)), np.minimum(index, ranked.shape[1] - 1)]
    return np.asarray(np.maximum(np.nan_to_num(value), 0.0))


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
