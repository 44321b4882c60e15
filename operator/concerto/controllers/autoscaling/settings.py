"""How the PredictiveHPA controller runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from concerto.autoscaling.forecast_influence import ActionSettings
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.initialisation import InitialisationSettings
from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.sources import PrometheusServer


@dataclass(frozen=True)
class PredictiveHPASettings:
    """How the controller runs.

    Attributes:
        controller: the flags of autoscaling/v2.
        forecast: constants of the models.
        initialisation: how start-up times are learned.
        action: how an active forecast acts on replicas.
        stale_seconds: a forecast expires when its newest sample is older than this.
        status_interval_seconds: when only remembered members of a status change, they are written this often.
        metrics_timeout_seconds: timeout of one request to a metrics API.
        batch_seconds: objects that are due together are forecast together when they are observed within this time. An
            object whose metrics API answers later does not delay the others.
        max_syncs_per_namespace: syncs of a namespace's objects that start in one period. With more objects, each of
            them is synced less often, in turn.
        max_series: objects that have Prometheus series of their own.
        prometheus: of metrics of type Prometheus, and of initial histories.
        forecast_batch: objects that are forecast without a break, so that the event loop is not blocked for long.
        forecast_batch_settings: different settings of such objects.
    """

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    forecast: ForecastSettings = field(default_factory=ForecastSettings)
    initialisation: InitialisationSettings = field(default_factory=InitialisationSettings)
    action: ActionSettings = field(default_factory=ActionSettings)
    stale_seconds: float = 120.0
    status_interval_seconds: float = 60.0
    metrics_timeout_seconds: float = 10.0
    batch_seconds: float = 1.0
    max_syncs_per_namespace: int = 500
    max_series: int = 500
    prometheus: PrometheusServer = field(default_factory=PrometheusServer)
    forecast_batch: int = 100
    forecast_batch_settings: int = 12
