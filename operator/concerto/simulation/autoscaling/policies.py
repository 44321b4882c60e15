"""What the autoscaling experiments compare: no scaling, autoscaling/v2, McNaughton's rule as written, and our models.

`Forecasting` keeps the histories that the controller keeps, and asks `autoscaling.prediction` what the controller asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.decision import Floor
from concerto.autoscaling.forecast_influence import MODELS, ActionSettings, ForecastResult, Subject, predict, with_hold
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.history import Ring, coarse_ring, weekly_ring
from concerto.autoscaling.settings import Bounds
from concerto.simulation.autoscaling.plant import Floats
from concerto.simulation.autoscaling.run import Experiment, Sync

HISTORY_SECONDS = 72 * 3600.0
FINE = Ring(15, 240)
AGENTS_AGE_SECONDS = 1.0
"""How old a reading is that the nodes' agents serve (docs/autoscaling.md, where CPU and memory come from)."""
ORIGIN_SECONDS = 20 * HISTORY_SECONDS
"""Rings count from 1970: an experiment's zero has to lie after its history."""


class Reactive:
    """autoscaling/v2 alone."""

    name = "HPA v2"
    reactive = True
    start_up_aware = False
    metrics_age_seconds: float | None = None

    def start(self, experiment: Experiment) -> None:
        """Nothing is remembered."""
        self._rows = len(experiment.traffics)

    def floors(self, sync: Sync) -> list[Floor | None]:
        """None at all."""
        return [None] * self._rows

    def bounds(self, bounds: Bounds, row: int) -> Bounds:
        """As they are."""
        return bounds


class Static(Reactive):
    """As many replicas as the traffic needs on average. Source: McNaughton, 5.3.1 (docs/references.md)."""

    name = "static"
    reactive = False

    def start(self, experiment: Experiment) -> None:
        """Know the traffic."""
        super().start(experiment)
        whole = np.arange(0.0, experiment.seconds, 15.0)
        self._replicas = np.ceil(experiment.demand(whole).mean(axis=1)).astype(int)

    def floors(self, sync: Sync) -> list[Floor | None]:
        """Always the same."""
        return [Floor(int(n), self.name, replaces=True) for n in self._replicas]


class Perfect(Reactive):
    """Knows the traffic: what is needed at any time until a pod made now would be ready. The bound for forecasts."""

    name = "perfect forecast"
    start_up_aware = True

    def __init__(self, action: ActionSettings | None = None) -> None:
        """``action``: as for `Forecasting`."""
        self._action = action or ActionSettings()

    def start(self, experiment: Experiment) -> None:
        """Know the traffic."""
        super().start(experiment)
        self._experiment = experiment
        self._result = _certain(experiment.plant.startup_seconds + _half_sync(experiment))

    def floors(self, sync: Sync) -> list[Floor | None]:
        """The most that will be needed within the horizon."""
        ahead = sync.now + np.linspace(0.0, self._result.horizon_seconds, 32)
        most = self._experiment.demand(ahead).max(axis=1)
        return [Floor(math.ceil(need - 1e-9), self.name) for need in most]

    def bounds(self, bounds: Bounds, row: int) -> Bounds:
        """With the hold of an active forecast."""
        return with_hold(bounds, self._result, self._action, max(0.05 * self._result.horizon_seconds, 15.0), 0)


class ExactTrend(Perfect):
    """Knows the load of now and its slope exactly, and draws the line out: the bound for who cannot know a turn."""

    name = "exact trend"
    step_seconds = 15.0

    def floors(self, sync: Sync) -> list[Floor | None]:
        """What the line reaches within the horizon."""
        before, now = self._experiment.demand(np.array([max(sync.now - self.step_seconds, 0.0), sync.now])).T
        rise = np.maximum(now - before, 0.0) * self._result.horizon_seconds / self.step_seconds
        return [Floor(math.ceil(need - 1e-9), self.name) for need in now + rise]


class Foresight(Reactive):
    """Knows the load of the next five minutes, and decides alone: the most that a forecast so far ahead could reach.

    Pods are ready before the load comes, and stay where the next five minutes need them again; metrics, noise and the
    down window cost nothing. How many requests come by chance it does not know.
    """

    name = "next 5 minutes known"
    reactive = False
    start_up_aware = True
    ahead_seconds = 300.0

    def start(self, experiment: Experiment) -> None:
        """Know the traffic, for as long as pods take to start at least."""
        super().start(experiment)
        self._experiment = experiment
        self._ahead = max(self.ahead_seconds, experiment.plant.startup_seconds + _half_sync(experiment))

    def floors(self, sync: Sync) -> list[Floor | None]:
        """As many as carry the highest load of that time at the target."""
        ahead = sync.now + np.linspace(0.0, self._ahead, 32)
        most = self._experiment.demand(ahead).max(axis=1)
        return [Floor(math.ceil(need - 1e-9), self.name, replaces=True) for need in most]

    def bounds(self, bounds: Bounds, row: int) -> Bounds:
        """Without a down window."""
        return replace(bounds, controller=replace(bounds.controller, downscale_stabilization_seconds=0.0))


class McNaughton(Reactive):
    """McNaughton's rule as written: a line through the last three minutes of mean utilisation; slope <= 0: reactive.

    The Kubernetes of its time waited three minutes after a rescale before growing again, and five before shrinking.
    Both rules stay, as in McNaughton's evaluation. Source: McNaughton, 3.4.1, 3.5.2 and 4.2 (docs/references.md).
    """

    name = "McNaughton"
    reactive = False
    up_seconds = 180.0
    down_seconds = 300.0
    window_seconds = 180.0
    multiplier = 20.0

    def start(self, experiment: Experiment) -> None:
        """Forget everything."""
        super().start(experiment)
        self._tolerance = experiment.bounds.tolerances.scale_up
        self._seen: list[tuple[float, Floats]] = []
        self._rescaled = np.full(self._rows, -math.inf)

    def floors(self, sync: Sync) -> list[Floor | None]:
        """Replicas by the line, within the waits after a rescale."""
        span = min(self.multiplier * sync.initialisation, self.window_seconds)
        utilisation = sync.demand / np.maximum(sync.current, 1)
        self._seen = [(at, u) for at, u in self._seen if at >= sync.now - span] + [(sync.now, utilisation)]
        future = self._extrapolated(sync.now + sync.initialisation, utilisation)
        wanted = np.ceil(future * sync.current - 1e-9)
        wanted = np.where(np.abs(future - 1.0) <= self._tolerance, sync.current, wanted)
        wait = np.where(wanted > sync.current, self.up_seconds, self.down_seconds)
        allowed = np.isfinite(wanted) & (sync.now - self._rescaled >= wait)
        chosen = np.where(allowed, wanted, sync.current).astype(int)
        self._rescaled = np.where(chosen != sync.current, sync.now, self._rescaled)
        return [Floor(int(n), self.name, replaces=True) for n in chosen]

    def bounds(self, bounds: Bounds, row: int) -> Bounds:
        """Without the windows that later versions of Kubernetes have."""
        return replace(bounds, controller=replace(bounds.controller, downscale_stabilization_seconds=0.0))

    def _extrapolated(self, at: float, now: Floats) -> Floats:
        times = np.array([t for t, _ in self._seen])
        values = np.stack([u for _, u in self._seen])
        known = np.isfinite(values)
        count = np.maximum(known.sum(axis=0), 1)
        x = np.where(known, times[:, None], 0.0)
        mean_x, mean_y = x.sum(axis=0) / count, np.where(known, values, 0.0).sum(axis=0) / count
        dx = np.where(known, times[:, None] - mean_x, 0.0)
        variance = (dx**2).sum(axis=0)
        slope = (dx * np.where(known, values - mean_y, 0.0)).sum(axis=0) / np.where(variance > 0, variance, 1.0)
        return np.where(slope > 0, mean_y + slope * (at - mean_x), now)


@dataclass
class _Row:
    """One replicate's histories."""

    fine: Ring
    coarse: Ring
    weekly: Ring


class Forecasting(Reactive):
    """PredictiveHPA: the metrics of now, and a forecast once its backtest has shown that it helps."""

    start_up_aware = True

    def __init__(
        self,
        name: str = "Auto",
        models: tuple[str, ...] = MODELS,
        settings: ForecastSettings | None = None,
        action: ActionSettings | None = None,
        *,
        replaces: bool = False,
        metrics_age_seconds: float | None = None,
    ) -> None:
        """Args:
        name: for tables.
        models: to choose from.
        settings: constants of the models.
        action: how an active forecast acts on replicas.
        replaces: decision Predictive.
        metrics_age_seconds: of its readings, where not metrics-server's.
        """
        self.name = name
        self._models = models
        self._settings = settings or ForecastSettings()
        self._action = action or ActionSettings()
        self._replaces = replaces
        self.metrics_age_seconds = metrics_age_seconds

    def start(self, experiment: Experiment) -> None:
        """Begin with the history that the traffics bring along, as an object of some days' age would have it."""
        super().start(experiment)
        self._experiment = experiment
        self._rows_: list[_Row] = [self._with_history(experiment, row) for row in range(self._rows)]
        self._forecasts: list[ForecastResult] = []

    def floors(self, sync: Sync) -> list[Floor | None]:
        """Add what is seen now to the histories, and ask what they say."""
        offset = ORIGIN_SECONDS
        self._current = sync.current
        subjects = []
        for row, (demand, certain) in enumerate(zip(sync.demand, sync.saturated, strict=True)):
            kept = self._rows_[row]
            if np.isfinite(demand) and not certain:
                at = sync.observed_at + offset
                kept.fine, kept.coarse = kept.fine.add(at, float(demand)), kept.coarse.add(at, float(demand))
                kept.weekly = kept.weekly.add(at, float(demand))
            subjects.append(
                Subject(
                    kept.fine,
                    kept.coarse,
                    sync.initialisation + _half_sync(self._experiment),
                    sync.observed_at + offset,
                    float(demand) if certain and np.isfinite(demand) else 0.0,
                    self._models,
                    shortage_seconds=self._settings.shortage_seconds,
                    weekly=kept.weekly,
                )
            )
        self._forecasts = predict(subjects, sync.now + offset, self._settings, stale_seconds=math.inf)
        bounds = self._experiment.bounds
        return [
            result.floor(bounds, int(current), self._action, replaces=self._replaces)
            for result, current in zip(self._forecasts, sync.current, strict=True)
        ]

    def bounds(self, bounds: Bounds, row: int) -> Bounds:
        """With the hold that the controller would take."""
        return with_hold(bounds, self._forecasts[row], self._action, None, int(self._current[row]))

    def _with_history(self, experiment: Experiment, row: int) -> _Row:
        traffic, offset = experiment.traffics[row], ORIGIN_SECONDS
        weekly = weekly_ring(HISTORY_SECONDS)
        assert weekly is not None, "three days are less than a week"
        kept = _Row(FINE, coarse_ring(HISTORY_SECONDS), weekly)
        known = min(traffic.start - float(traffic.times[0]), weekly.length * weekly.step)
        at = np.arange(-known, 0.0, FINE.step)
        if not len(at):
            return kept
        demand = traffic.rate(traffic.start + at) / experiment.rate_per_replica
        noise = np.random.default_rng((experiment.seed, row)).normal(size=len(at))
        requests = np.maximum(demand * experiment.rate_per_replica * FINE.step, 1.0)
        # Exponential work of a Poisson number of requests has twice the variance of their number
        seen = np.maximum(demand * (1.0 + noise * np.sqrt(2.0 / requests)), 0.0)
        return _Row(*(_filled(ring, at + offset, seen) for ring in (kept.fine, kept.coarse, kept.weekly)))


def _filled(ring: Ring, at: Floats, seen: Floats) -> Ring:
    """The ring with the means of samples on its grid, at these times."""
    buckets = (at // ring.step).astype(int)
    first = int(buckets[0])
    means = np.bincount(buckets - first, weights=seen) / np.bincount(buckets - first)
    return replace(ring, last=int(buckets[-1]), values=_milli(means[-ring.length :]), count=1)


def all_policies() -> list[Reactive]:
    """In the order of the tables."""
    return [
        Static(),
        Reactive(),
        McNaughton(),
        Forecasting("Linear", ("Linear",)),
        Forecasting("Holt", ("Holt",)),
        Forecasting("Seasonal", ("Seasonal",)),
        Forecasting("Auto"),
        Forecasting("Auto, read from agents", metrics_age_seconds=AGENTS_AGE_SECONDS),
        ExactTrend(),
        Perfect(),
        Foresight(),
    ]


def _milli(values: NDArray[np.float64]) -> tuple[int, ...]:
    return tuple(int(v) for v in np.round(values * 1000.0))


def _half_sync(experiment: Experiment) -> float:
    return experiment.bounds.controller.sync_seconds / 2


def _certain(horizon_seconds: float) -> ForecastResult:
    return ForecastResult("ForecastActive", "perfect", 0.0, 0.0, horizon_seconds)
