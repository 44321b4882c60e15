"""Prometheus metrics of forecasts: one series per PredictiveHPA, removed with it."""

from __future__ import annotations

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge

from concerto.autoscaling.forecast_influence import ForecastResult

_LABELS = ("namespace", "name")


class ForecastMetrics:
    """Accuracy of each object's forecast, and how often targets were scaled."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            "error_percent": Gauge(
                "concerto_phpa_forecast_error_percent",
                "Weighted mean absolute error of the forecast at its horizon, in percent of the load.",
                _LABELS,
                registry=registry,
            ),
            "under_percent": Gauge(
                "concerto_phpa_forecast_under_prediction_percent",
                "Percentage of the forecast error by which forecasts were too low.",
                _LABELS,
                registry=registry,
            ),
            "is_active": Gauge(
                "concerto_phpa_forecast_active",
                "1 while the forecast is active, else 0.",
                _LABELS,
                registry=registry,
            ),
        }
        self.rescales = Counter(
            "concerto_phpa_rescales_total",
            "Changes of a target's replicas, by direction.",
            ["direction"],
            registry=registry,
        )

    def observe(self, namespace: str, name: str, result: ForecastResult) -> None:
        """Set the series of one object."""
        for attribute, gauge in self._gauges.items():
            value = getattr(result, attribute)
            if value is not None:
                gauge.labels(namespace, name).set(float(value))

    def rescaled(self, before: int, after: int) -> None:
        """Count a rescale of a target."""
        self.rescales.labels("up" if after > before else "down").inc()

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of an object."""
        for gauge in self._gauges.values():
            with contextlib.suppress(KeyError):  # it may never have had a forecast
                gauge.remove(namespace, name)
