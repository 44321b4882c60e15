"""Forecast many objects at once: from their histories to the floors that `decision.decide` takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from concerto.autoscaling.daylight_saving import by_todays_clock
from concerto.autoscaling.decision import Floor
from concerto.autoscaling.exceptions import Span
from concerto.autoscaling.forecast import Earlier, Forecasts, forecast
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.forecasters import Floats, Seasons
from concerto.autoscaling.history import Ring, as_matrix
from concerto.autoscaling.margins import Past
from concerto.autoscaling.own_period import own_seasons
from concerto.autoscaling.recurring_rise import recurring_peak, with_recurring_rise
from concerto.autoscaling.replicas import MAX_REPLICAS
from concerto.autoscaling.settings import Bounds, Release, Tolerances

_DAY = 86400.0
ROOM_SECONDS = 135.0
"""Horizon for which `ActionSettings.rise_room` is given."""
PERIODS_SECONDS = (3600.0, 86400.0, 604800.0)
"""Seasons that are tried where none is given, beside the load's own period: an hour, a day, a week."""

MODELS = ("Linear", "Seasonal")
"""What Auto chooses from. Holt follows a turn later than the lines do, and was chosen just before one too often."""


@dataclass(frozen=True)
class ActionSettings:
    """How an active forecast acts on replicas.

    It raises them when the rise is worth a rescale. Past recommendations hold for the whole down window, as in
    autoscaling/v2, but no higher than what the forecast's upper end needs. The constants are chosen on families of
    traffic: `concerto evaluate-autoscaling --families` shows what they do there, and `--cross-validate` leaves families
    out.

    Attributes:
        expected_room: the load may use up some of the room that the target leaves, until current metrics ask for more:
            tolerances above the target that are borne where demand is as high as expected, before replicas rise ...
        rise_room: ... and where it is as high as the forecast's upper end, for a horizon of `ROOM_SECONDS` ...
        rise_room_power: ... it grows with this power of the horizon: the longer that is, the longer replicas for what
            is unlikely are kept ...
        min_rise: ... and tolerances by which demand must exceed the present replicas for a rise ...
        min_rise_before: ... and by which the forecast one sample earlier must have exceeded them, because one wrong
            reading must not cause a rescale.
        min_drop: replicas that are released before the window is over, as a share of the present ones, at least: a
            rescale that was wrong costs a start-up ...
        min_drop_replicas: ... and at least so many: of few replicas one is a large share, and noise takes it away.
        release_errors: unless load falls for certain, replicas that carry what is expected and so many standard
            deviations of a sample are not released, or metrics would soon ask for them again; 0: they are.
        hold_share: recommendations of the last part of the horizon hold in any case ...
        hold_min_seconds: ... for at least this time ...
        hold_max_seconds: ... and at most this time.
    """

    expected_room: float = 1.0
    rise_room: float = 4.0
    rise_room_power: float = 0.25
    min_rise: float = 1.0
    min_rise_before: float = 0.5
    min_drop: float = 0.25
    min_drop_replicas: float = 2.0
    release_errors: float = 2.0
    hold_share: float = 0.15
    hold_min_seconds: float = 45.0
    hold_max_seconds: float = 300.0

    def upper_room(self, horizon_seconds: float) -> float:
        """Tolerances above the target that are borne at the forecast's upper end, for this horizon."""
        return self.rise_room * math.pow(horizon_seconds / ROOM_SECONDS, self.rise_room_power)

    def hold_seconds(self, horizon_seconds: float) -> float:
        """How long recommendations hold in any case, for this horizon."""
        return min(max(self.hold_share * horizon_seconds, self.hold_min_seconds), self.hold_max_seconds)


@dataclass(frozen=True)
class Subject:
    """One object, as far as forecasts go.

    Attributes:
        fine: its demand of the last hour.
        coarse: its demand of the last days.
        horizon_seconds: from now to when pods made now will have to be ready.
        observed_at: middle of the window of the newest readings, seconds.
        min_demand: demand that is certain, where the pods are at their limits; 0 otherwise.
        models: to choose from.
        period_seconds: length of a season; None: `PERIODS_SECONDS`, and the load's own period.
        season_start: nothing before counts for a season; None: all does.
        shortage_seconds: see `ForecastSettings`.
        weekly: its demand of the last weeks, where ``coarse`` is shorter than two weeks; None otherwise.
        exceptions: times that do not follow seasons of a day or longer, and do not count for them.
        time_zone: IANA name of the zone by whose clock such seasons repeat.
    """

    fine: Ring
    coarse: Ring
    horizon_seconds: float
    observed_at: float
    min_demand: float = 0.0
    models: tuple[str, ...] = MODELS
    period_seconds: float | None = None
    season_start: float | None = None
    shortage_seconds: float = 1800.0
    weekly: Ring | None = None
    exceptions: tuple[Span, ...] = ()
    time_zone: str = "UTC"


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
        expected_before: expected demand as forecast one sample earlier; None if it is not known.
        noise: standard deviation of a sample, in replicas; 0 while the load falls for certain.
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
    expected_before: float | None = None
    noise: float = 0.0

    @property
    def is_active(self) -> bool:
        """Whether it may move replicas."""
        return self.reason == "ForecastActive"

    def floor(self, bounds: Bounds, current: int, action: ActionSettings, *, replaces: bool) -> Floor | None:
        """Replicas for the expected load, and for the upper end within its room; None unless it is active.

        A need that is too near to the present replicas changes nothing, as for metrics. Neither does one that only the
        newest sample shows.
        """
        if not self.is_active or self.upper is None or self.expected is None:
            return None
        tolerances = bounds.tolerances
        room = 1.0 + action.upper_room(self.horizon_seconds) * tolerances.scale_up
        # Demand that is certain is carried at the target, and so is all of it where no metrics are asked
        likely = 1.0 if replaces or self.expected_before is None else 1.0 + action.expected_room * tolerances.scale_up
        need = max(self.expected / likely, self.upper / room)
        replicas = min(math.ceil(need - 1e-9), MAX_REPLICAS)
        worth = Tolerances(action.min_rise * tolerances.scale_up, tolerances.scale_down)
        if current > 0 and (replicas > current or replaces) and worth.contain(need / current):
            replicas = current
        if replicas > current > 0 and self.expected_before is not None:
            margin = self.upper - self.expected
            before = max(self.expected_before / likely, (self.expected_before + margin) / room)
            if before <= current * (1.0 + action.min_rise_before * tolerances.scale_up):
                replicas = current
        return Floor(replicas, self.model, replaces)


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
        rings = (s.fine, s.coarse) if s.weekly is None else (s.fine, s.coarse, s.weekly)
        grids = tuple((ring.step, ring.length) for ring in rings)
        groups[s.models, s.period_seconds, s.shortage_seconds, grids].append(index)
    results: dict[int, ForecastResult] = {}
    for members in groups.values():
        chosen = [subjects[i] for i in members]
        results |= zip(members, _together(chosen, now, settings, stale_seconds), strict=True)
    return [results[i] for i in range(len(subjects))]


def with_hold(
    bounds: Bounds, result: ForecastResult, action: ActionSettings, given_seconds: float | None, current: int
) -> Bounds:
    """The bounds with what applies while the forecast is active; a behaviour's own window always wins.

    ``given_seconds`` is the object's own window for this case, which then holds as it is.
    """
    if not result.is_active or result.upper is None:
        return bounds
    if given_seconds is not None:
        controller = replace(bounds.controller, downscale_stabilization_seconds=given_seconds)
        return replace(bounds, controller=controller)
    release = Release(
        min(math.ceil(_released_to(result, action, bounds.tolerances.scale_up) - 1e-9), MAX_REPLICAS),
        max(action.min_drop_replicas, action.min_drop * current),
        action.hold_seconds(result.horizon_seconds),
    )
    return replace(bounds, release=release)


def _released_to(result: ForecastResult, action: ActionSettings, tolerance: float) -> float:
    """Replicas that are needed in any case: for the upper end, and so that noise makes metrics ask for no more."""
    if result.upper is None or result.expected is None:
        return 0.0
    unlikely = result.upper / (1.0 + action.upper_room(result.horizon_seconds) * tolerance)
    if not result.noise or not action.release_errors:
        return unlikely
    return max(unlikely, (result.expected + action.release_errors * result.noise) / (1.0 + tolerance))


def _together(
    subjects: list[Subject], now: float, settings: ForecastSettings, stale_seconds: float
) -> list[ForecastResult]:
    first = subjects[0]
    step, width = first.fine.step, first.fine.length
    series = np.vstack([s.fine.until(s.observed_at, width) for s in subjects])
    ahead = np.array([now - s.observed_at + s.horizon_seconds for s in subjects])
    past = as_matrix([s.coarse for s in subjects], now, first.coarse.length)
    seasons = _seasons(subjects, past, now) if "Seasonal" in first.models else []
    highest = np.array([max(s.coarse.highest(), s.min_demand) for s in subjects])
    settings = replace(settings, step_seconds=step, shortage_seconds=first.shortage_seconds)
    # Who is far behind has expired, and must not turn the others' clock back
    newest = max(s.observed_at for s in subjects)
    finds_period = "Seasonal" in first.models and first.period_seconds is None
    own = own_seasons(_since_start(series, subjects), newest, settings, ahead) if finds_period else []
    earlier = Earlier(highest=highest, seasons=[*seasons, *own], past=Past(past, first.coarse.step))
    found = forecast(series, ahead, settings, models=first.models, earlier=earlier, now=newest)
    if seasons:
        horizons = np.array([s.horizon_seconds for s in subjects])
        times = (now, now - step)
        # By half hours, weeks show which days are alike, and hardly how a load rises: they are no candidate
        known = [*seasons, *_weeks(subjects, now)]
        peaks = [recurring_peak(at, horizons, known, settings.recurring_rise) for at in times]
        found = with_recurring_rise(found, *(np.minimum(p, settings.plausible * highest + 1.0) for p in peaks))
    return [_result(s, found, row, now, stale_seconds) for row, s in enumerate(subjects)]


def _since_start(series: Floats, subjects: list[Subject]) -> Floats:
    """The series without what was before each subject's `season_start`."""
    since = series.copy()
    for row, subject in enumerate(subjects):
        if subject.season_start is not None:
            count = max(0, math.ceil((subject.observed_at - subject.season_start) / subject.fine.step))
            since[row, : max(0, series.shape[1] - count)] = np.nan
    return since


def _seasons(subjects: list[Subject], past: Floats, now: float) -> list[Seasons]:
    """By the coarse rings."""
    periods = PERIODS_SECONDS if subjects[0].period_seconds is None else (subjects[0].period_seconds,)
    return _of_periods(periods, subjects, subjects[0].coarse, past, now)


def _weeks(subjects: list[Subject], now: float) -> list[Seasons]:
    """By the weekly rings, where there are any: seasons of which the coarse rings do not hold two."""
    rings = [s.weekly for s in subjects if s.weekly is not None]
    if not rings:
        return []
    values = as_matrix(rings, now, rings[0].length)
    return _of_periods(PERIODS_SECONDS[-1:], subjects, rings[0], values, now)


def _of_periods(
    periods: Sequence[float], subjects: list[Subject], ring: Ring, past: Floats, now: float
) -> list[Seasons]:
    if ring.length < 2:  # nothing lies between the middles of one
        return []
    values = past.copy()
    first_at = (int(now // ring.step) - ring.length + 1) * ring.step
    for row, subject in enumerate(subjects):
        if subject.season_start is not None:
            values[row, : max(0, int((subject.season_start - first_at) // ring.step))] = np.nan
    known = np.isfinite(values).any(axis=0)
    span = now - first_at - ring.step * int(np.argmax(known)) if known.any() else 0.0
    regular = _regular(values, subjects, first_at, ring.step, now)
    regular = by_todays_clock(regular, [s.time_zone for s in subjects], first_at // ring.step, ring.step)
    return [Seasons(values if p < _DAY else regular, first_at, ring.step, p) for p in periods if p < span]


def _regular(values: Floats, subjects: list[Subject], first_at: float, step: float, now: float) -> Floats:
    """The values without those of exceptional times; nothing at all for a subject in such a time."""
    if not any(subject.exceptions for subject in subjects):
        return values
    regular = values.copy()
    for row, subject in enumerate(subjects):
        for begin, end in subject.exceptions:
            first, last = (max(0, math.floor((at - first_at) / step)) for at in (begin, end - 1.0))
            regular[row, first : last + 1 if end > first_at else 0] = np.nan
            if begin <= now < end:
                regular[row] = np.nan
    return regular


def _result(subject: Subject, found: Forecasts, row: int, now: float, stale_seconds: float) -> ForecastResult:
    reason = "ForecastActive" if found.better_than_no_change[row] else "NotBetterThanNoChange"
    if now - subject.observed_at > stale_seconds:
        reason = "Expired"
    elif not found.warm[row]:
        reason = "WarmingUp"
    known = reason not in ("WarmingUp", "Expired")
    return ForecastResult(
        reason,
        found.names[found.model[row]],
        max(float(found.expected[row]), subject.min_demand) if known else None,
        max(float(found.upper[row]), subject.min_demand) if known else None,
        subject.horizon_seconds,
        _finite(found.error_percent[row]),
        _finite(found.under_percent[row]),
        _finite(found.persistence_percent[row]),
        int(found.samples[row]),
        # Demand that is certain needs no second sample
        _finite(found.expected_before[row]) if known and not subject.min_demand else None,
        float(found.noise[row]),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
