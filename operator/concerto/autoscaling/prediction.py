"""Forecast many objects at once: from their histories to the floors that `decision.decide` takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from concerto.autoscaling.decision import Floor
from concerto.autoscaling.forecast import Forecasts, forecast
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.forecasters import Floats, Seasons
from concerto.autoscaling.history import Ring, as_matrix
from concerto.autoscaling.margins import Past
from concerto.autoscaling.replicas import MAX_REPLICAS
from concerto.autoscaling.settings import Bounds

PERIODS_SECONDS = (3600.0, 86400.0, 604800.0)
"""Seasons that are tried where none is given: an hour, a day, a week."""

UNLIKELY = 3.0
"""Tolerances above the target that are borne where demand is as high as the forecast's upper end."""

MODELS = ("Linear", "Seasonal")
"""What Auto chooses from. Holt follows a turn later than the lines do, and was chosen just before one too often."""


@dataclass(frozen=True)
class HoldSettings:
    """How long a recommendation holds replicas up while the forecast is active: a share of the horizon, within bounds.

    autoscaling/v2 holds them for 300 s, because it cannot know what comes. A forecast keeps what will be needed within
    the horizon, so what is left to bridge is noise, and what it costs to be wrong: the time that pods take to start.
    """

    share: float = 0.05
    least_seconds: float = 15.0
    most_seconds: float = 300.0

    def seconds(self, horizon_seconds: float) -> float:
        """For this horizon."""
        return min(max(self.share * horizon_seconds, self.least_seconds), self.most_seconds)


@dataclass(frozen=True)
class Subject:
    """One object, as far as forecasts go.

    Attributes:
        fine: its demand of the last hour.
        coarse: its demand of the last days.
        horizon_seconds: from now to when pods made now will have to be ready.
        observed_at: middle of the window of the newest readings, seconds.
        least_demand: demand that is certain, where the pods are at their limits; 0 otherwise.
        models: to choose from.
        period_seconds: length of a season; None: `PERIODS_SECONDS`.
        season_start: nothing before counts for a season; None: all does.
        shortage_seconds: see `ForecastSettings`.
    """

    fine: Ring
    coarse: Ring
    horizon_seconds: float
    observed_at: float
    least_demand: float = 0.0
    models: tuple[str, ...] = MODELS
    period_seconds: float | None = None
    season_start: float | None = None
    shortage_seconds: float = 1800.0


@dataclass(frozen=True)
class ForecastResult:
    """The forecast of one object.

    Attributes:
        reason: ForecastActive, WarmingUp, NotBetterThanNoChange or Expired.
        model: the model that the backtest prefers.
        expected: demand within the horizon, in replicas; None while there is no forecast.
        upper: the same with the margin for past errors.
        horizon_seconds: how far ahead, from now.
        error_percent: weighted mean absolute error over the history, at that horizon; None if nothing could be tested.
        under_percent: share of the error that was too low.
        persistence_percent: error of the assumption that nothing changes.
        samples: forecasts that were tested.
    """

    reason: str
    model: str
    expected: float | None
    upper: float | None
    horizon_seconds: float
    error_percent: float | None = None
    under_percent: float | None = None
    persistence_percent: float | None = None
    samples: int = 0

    @property
    def is_active(self) -> bool:
        """Whether it may move replicas."""
        return self.reason == "ForecastActive"

    def floor(self, bounds: Bounds, *, replaces: bool) -> Floor | None:
        """Replicas for the expected load, and for the upper end within `UNLIKELY` tolerances; None unless it is active.

        What is unlikely may use up some of the room that the target leaves: that is what it is for.
        """
        if not self.is_active or self.upper is None or self.expected is None:
            return None
        borne = 1.0 + UNLIKELY * bounds.tolerances.scale_up
        replicas = math.ceil(max(self.expected, self.upper / borne) - 1e-9)
        return Floor(min(replicas, MAX_REPLICAS), self.model, replaces)


def predict(
    subjects: Sequence[Subject], now: float, settings: ForecastSettings, *, stale_seconds: float
) -> list[ForecastResult]:
    """Forecast results in the order of the subjects; those with the same settings are computed together.

    Args:
        subjects: any number of objects.
        now: seconds.
        settings: constants.
        stale_seconds: a forecast from samples older than this has expired.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, s in enumerate(subjects):
        grids = (s.fine.step, s.fine.length, s.coarse.step, s.coarse.length)
        groups[s.models, s.period_seconds, s.shortage_seconds, *grids].append(index)
    results: dict[int, ForecastResult] = {}
    for members in groups.values():
        chosen = [subjects[i] for i in members]
        results |= zip(members, _together(chosen, now, settings, stale_seconds), strict=True)
    return [results[i] for i in range(len(subjects))]


def with_hold(bounds: Bounds, result: ForecastResult, hold: HoldSettings, given_seconds: float | None) -> Bounds:
    """The bounds with the hold that applies while the forecast is active; a behaviour's own window always wins."""
    if not result.is_active:
        return bounds
    seconds = hold.seconds(result.horizon_seconds) if given_seconds is None else given_seconds
    return replace(bounds, controller=replace(bounds.controller, downscale_stabilization_seconds=seconds))


def _together(
    subjects: list[Subject], now: float, settings: ForecastSettings, stale_seconds: float
) -> list[ForecastResult]:
    first = subjects[0]
    step, width = first.fine.step, first.fine.length
    series = np.vstack([s.fine.until(s.observed_at, width) for s in subjects])
    ahead = np.array([now - s.observed_at + s.horizon_seconds for s in subjects])
    past = as_matrix([s.coarse for s in subjects], now, first.coarse.length)
    found = forecast(
        series,
        ahead,
        replace(settings, step_seconds=step, shortage_seconds=first.shortage_seconds),
        models=first.models,
        highest=np.array([max(s.coarse.highest(), s.least_demand) for s in subjects]),
        seasons=_seasons(subjects, past, now) if "Seasonal" in first.models else (),
        past=Past(past, first.coarse.step),
        # Who is far behind has expired, and must not turn the others' clock back
        now=max(s.observed_at for s in subjects),
    )
    return [_result(s, found, row, now, stale_seconds) for row, s in enumerate(subjects)]


def _seasons(subjects: list[Subject], past: Floats, now: float) -> list[Seasons]:
    first = subjects[0].coarse
    if first.length < 2:  # nothing lies between the middles of one
        return []
    values = past.copy()
    first_at = (int(now // first.step) - first.length + 1) * first.step
    for row, subject in enumerate(subjects):
        if subject.season_start is not None:
            values[row, : max(0, int((subject.season_start - first_at) // first.step))] = np.nan
    periods = PERIODS_SECONDS if subjects[0].period_seconds is None else (subjects[0].period_seconds,)
    known = np.isfinite(values).any(axis=0)
    span = now - first_at - first.step * int(np.argmax(known)) if known.any() else 0.0
    return [Seasons(values, first_at, first.step, p) for p in periods if p < span]


def _result(subject: Subject, found: Forecasts, row: int, now: float, stale_seconds: float) -> ForecastResult:
    reason = "ForecastActive" if found.earned[row] else "NotBetterThanNoChange"
    if now - subject.observed_at > stale_seconds:
        reason = "Expired"
    elif not found.warm[row]:
        reason = "WarmingUp"
    known = reason not in ("WarmingUp", "Expired")
    return ForecastResult(
        reason,
        found.names[found.model[row]],
        max(float(found.expected[row]), subject.least_demand) if known else None,
        max(float(found.upper[row]), subject.least_demand) if known else None,
        subject.horizon_seconds,
        _finite(found.error_percent[row]),
        _finite(found.under_percent[row]),
        _finite(found.persistence_percent[row]),
        int(found.samples[row]),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
