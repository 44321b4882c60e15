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

from concerto.autoscaling.forecasters import (
    Floats,
    Onset,
    Seasons,
    Trend,
    holt,
    line,
    linear,
    noise,
    recent_mean,
    seasonal_peak,
)


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
        surprise: times the root of the load, in replicas, by which it is expected to grow before any error has been
            seen (as staffing has it; forecast growth is a part of that) ...
        surprise_samples: ... and how many seen errors that expectation weighs as much as.
        long_window: samples of the one line whose level may lie above what is seen now.
        least_samples: fewer are a warm-up.
        recent: samples of which no mean may be exceeded by a level: after a drop the past must not hold replicas up.
        noise_window: samples that the noise of one is taken from.
        onset_windows: samples of the lines that a sudden rise is looked for with ...
        onset_errors: ... and standard errors that are taken off what they promise.
    """

    step_seconds: float = 15.0
    linear_windows: tuple[int, ...] = (20, 40)
    holt: tuple[float, float, float] = (0.4, 0.15, 0.97)
    shortage_seconds: float = 1800.0
    surplus_seconds: float = 60.0
    half_life: float = 40.0
    margin_half_life: float = 40.0
    surprise: float = 1.3
    surprise_samples: float = 6.0
    long_window: int = 160
    least_samples: int = 4
    recent: int = 4
    noise_window: int = 60
    onset_windows: tuple[int, ...] = (3, 4, 6, 8)
    onset_errors: float = 1.0
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
    """A model's peaks: at each sample for the backtest's horizon, now for the real one; its level now; and which way
    it pointed.
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
    fractile = critical_fractile(np.maximum(horizon_seconds, settings.surplus_seconds), settings.shortage_seconds)

    spread = noise(series, settings.noise_window)
    candidates = list(_candidates(series, spread, steps, tested, settings, models, seasons, now))
    if not candidates:
        # Seasonal alone, before a season is over: a warm-up, not an error
        silent = np.full(series.shape, np.nan)
        candidates = [_Candidate(models[0], silent, silent[:, -1], silent[:, -1], np.zeros(series.shape, dtype=bool))]
    actual = _ahead(series, tested)
    age = np.arange(length)[::-1]
    weights, recency = 0.5 ** (age / settings.half_life), 0.5 ** (age / settings.margin_half_life)
    stretch = np.sqrt(steps / tested)

    uppers, losses, errors = [], [], []
    for candidate in candidates:
        error = actual - candidate.past
        level, rise = np.maximum(candidate.level, 0.0), np.maximum(candidate.now - candidate.level, 0.0)
        surprise = np.maximum(settings.surprise * np.sqrt(level) - rise, 0.0)
        margin = _margin(error, candidate.rising, fractile, recency, np.nan_to_num(surprise), settings.surprise_samples)
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
    spread: Floats,
    steps: Floats,
    tested: NDArray[np.int64],
    settings: ForecastSettings,
    models: Sequence[str],
    seasons: Sequence[Seasons],
    now: float,
) -> Iterator[_Candidate]:
    recent = _most_now(series, spread, settings.recent)
    onset = Onset(tuple(line(series, w) for w in settings.onset_windows), spread, recent, settings.onset_errors)
    ahead = tested[:, None].astype(float)
    sudden_past, sudden = onset.peak(ahead), onset.peak(steps, -1)
    trends: list[tuple[str, Trend]] = []
    if "Linear" in models:
        trends += [("Linear", linear(series, window).at_most(recent)) for window in settings.linear_windows]
        # Load that jumps about is better met at its mean than followed
        trends.append(("Linear", linear(series, settings.long_window, whole=True)))
    if "Holt" in models:
        trends.append(("Holt", holt(series, *settings.holt).at_most(recent)))
    for name, trend in trends:
        past, now_ = _at_least(trend.peak(ahead), sudden_past), _at_least(trend.peak(steps, -1), sudden)
        yield _Candidate(name, past, now_, trend.level[:, -1], trend.slope > 0)
    for season in seasons if "Seasonal" in models else ():
        at: Floats = now - settings.step_seconds * np.arange(series.shape[1], dtype=float)[::-1]
        past = seasonal_peak(recent, at, ahead * settings.step_seconds, season)
        now_ = seasonal_peak(recent[:, -1:], at[-1:], steps[:, None] * settings.step_seconds, season)[:, 0]
        yield _Candidate("Seasonal", past, now_, recent[:, -1], past > recent)


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


def _margin(
    error: Floats,
    rising: NDArray[np.bool_],
    fractile: Floats,
    weights: Floats,
    prior: Floats,
    prior_weight: float,
) -> Floats:
    """The weighted fractile of the errors made while the model pointed the way it points now; never below zero.

    Errors on the way up are of another kind than those on the way down, where a peak cannot be missed. Few errors say
    little about the rare ones: ``prior``, an error of each object, stands beside them until there are many.
    """
    alike = np.where(rising == rising[:, -1:], error, np.nan)
    enough = np.isfinite(alike).sum(axis=1, keepdims=True) >= 4
    chosen = np.where(enough, alike, error)
    chosen = np.column_stack([chosen, prior])
    order = np.argsort(chosen, axis=1)
    ranked = np.take_along_axis(chosen, order, axis=1)
    weighed = np.where(np.isfinite(chosen), np.append(weights, prior_weight), 0.0)
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
