"""Prometheus metrics of PredictiveHPAs: series per object, removed with it, for a bounded number of objects."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from concerto.autoscaling.forecast_influence import ForecastResult

_LABELS = ("namespace", "name")
_FORECAST = {
    "error_percent": (
        "concerto_phpa_forecast_error_percent",
        "Weighted mean absolute error of the forecast at its horizon, in percent of the load.",
    ),
    "under_percent": (
        "concerto_phpa_forecast_under_prediction_percent",
        "Percentage of the forecast error by which forecasts were too low.",
    ),
    "is_active": ("concerto_phpa_forecast_active", "1 while the forecast is active, else 0."),
    "expected": (
        "concerto_phpa_forecast_demand",
        "Highest load expected within the horizon, in replicas at their target.",
    ),
    "upper": ("concerto_phpa_forecast_demand_upper", "Upper end of that load, in replicas at their target."),
    "horizon_seconds": ("concerto_phpa_forecast_horizon_seconds", "How far ahead the forecast looks."),
}
"""Attributes of `ForecastResult`, and the gauges that show them."""
_LOAD = {
    "demand": ("concerto_phpa_demand", "Load by the latest metrics, in replicas at their target."),
    "replicas": ("concerto_phpa_replicas", "Replicas of the target."),
    "desired": ("concerto_phpa_desired_replicas", "Replicas that were decided on."),
    "waiting_pods": ("concerto_phpa_waiting_pods", "Pods of the target that wait for a node."),
    "start_seconds": ("concerto_phpa_start_seconds", "How long pods take from their binding to Ready."),
    "wait_seconds": ("concerto_phpa_wait_seconds", "How long pods wait for a node."),
}
"""Attributes of `ShownLoad`, and the gauges that show them."""
_READY = "concerto_phpa_ready", "1 while condition Ready is True, else 0."


@dataclass(frozen=True)
class ShownLoad:
    """What is shown of an object beside its forecast; None where it is not known.

    Attributes:
        demand: load, in replicas at their target.
        replicas: of the target.
        desired: replicas that were decided on.
        waiting_pods: pods that wait for a node.
        start_seconds: typical time from binding to Ready.
        wait_seconds: typical wait for a node.
    """

    demand: float | None
    replicas: int
    desired: int
    waiting_pods: int
    start_seconds: float | None
    wait_seconds: float | None


class ForecastMetrics:
    """Load, replicas, forecast and condition of each object, and how often targets were scaled."""

    def __init__(self, registry: CollectorRegistry, max_objects: int = 500) -> None:
        """At most ``max_objects`` objects have series, of each namespace as many as of any other that has so many.

        Another object gets series once one of these is forgotten.
        """
        self._max_objects = max_objects
        self._of_namespace: dict[str, set[tuple[str, str]]] = {}
        self._shown: set[tuple[str, str]] = set()
        self._left_out: set[tuple[str, str]] = set()
        self._forecast, self._load = (
            {attribute: Gauge(name, text, _LABELS, registry=registry) for attribute, (name, text) in family.items()}
            for family in (_FORECAST, _LOAD)
        )
        self._ready = Gauge(*_READY, _LABELS, registry=registry)
        self._without = Gauge(
            "concerto_phpa_objects_without_series",
            "PredictiveHPAs beyond --autoscaling-max-series, which have no series of their own.",
            registry=registry,
        )
        self.rescales = Counter(
            "concerto_phpa_rescales_total",
            "Changes of a target's replicas, by direction.",
            ["direction"],
            registry=registry,
        )

    def observe(self, key: tuple[str, str], forecast: ForecastResult | None, load: ShownLoad | None) -> None:
        """Set the series of one object, but for its condition. A value that is not known has no series.

        Args:
            key: namespace and name.
            forecast: its forecast; None without one.
            load: what else is shown; None where the target's scale cannot be read.
        """
        if not self._admit(key):
            return
        for attribute, gauge in self._load.items():
            _show(gauge, key, None if load is None else getattr(load, attribute))
        for attribute, gauge in self._forecast.items():
            _show(gauge, key, None if forecast is None else getattr(forecast, attribute))

    def observe_ready(self, key: tuple[str, str], *, ready: bool) -> None:
        """Set whether condition Ready of an object is True, if the object has series: it may be gone by now."""
        if key in self._shown:
            _show(self._ready, key, ready)

    def gauges(self) -> tuple[Gauge, ...]:
        """Those with a series per object."""
        return (*self._load.values(), *self._forecast.values(), self._ready)

    def rescaled(self, before: int, after: int) -> None:
        """Count a rescale of a target."""
        self.rescales.labels("up" if after > before else "down").inc()

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of an object."""
        key = (namespace, name)
        self._remove(key)
        self._left_out.discard(key)
        self._without.set(len(self._left_out))

    def _admit(self, key: tuple[str, str]) -> bool:
        if key not in self._shown:
            if len(self._shown) < self._max_objects or self._make_way(key[0]):
                self._shown.add(key)
                self._of_namespace.setdefault(key[0], set()).add(key)
                self._left_out.discard(key)
            else:
                self._left_out.add(key)
        self._without.set(len(self._left_out))
        return key in self._shown

    def _make_way(self, namespace: str) -> bool:
        """Take the series of an object of the namespace with most; False if this one has as many, or one less."""
        most = max(self._of_namespace.values(), key=len, default=set[tuple[str, str]]())
        if len(most) < len(self._of_namespace.get(namespace, ())) + 2:
            return False
        key = max(most)
        self._remove(key)
        self._left_out.add(key)
        return True

    def _remove(self, key: tuple[str, str]) -> None:
        for gauge in self.gauges():
            _show(gauge, key, None)
        self._shown.discard(key)
        own = self._of_namespace.get(key[0], set())
        own.discard(key)
        if not own:
            self._of_namespace.pop(key[0], None)


def _show(gauge: Gauge, key: tuple[str, str], value: float | None) -> None:
    if value is not None:
        gauge.labels(*key).set(float(value))
        return
    with contextlib.suppress(KeyError):  # it may never have had one
        gauge.remove(*key)
