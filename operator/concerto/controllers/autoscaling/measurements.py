"""From one metric of a spec to the replicas it asks for: reads the metric and calls the pure rule for its type."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.api.predictivehpa import MetricSpec
from concerto.autoscaling.decision import Failure
from concerto.autoscaling.formula import check, evaluate
from concerto.autoscaling.pods import Gone, MetricError, Sample
from concerto.autoscaling.replicas import (
    MAX_REPLICAS,
    PodReadings,
    Proposal,
    average_value_replicas,
    kept_from_zero,
    per_pod_replicas,
    resource_utilization_replicas,
    value_replicas,
)
from concerto.autoscaling.settings import ControllerSettings, Tolerances
from concerto.controllers.autoscaling.namespace_turns import NamespaceTurns
from concerto.controllers.autoscaling.sources import (
    CustomMetrics,
    PodReader,
    PrometheusMetrics,
    Readings,
    external_metric,
    external_number,
)
from concerto.controllers.autoscaling.sources.prometheus import milli_of
from concerto.controllers.autoscaling.sources.readings import Wanted
from concerto.controllers.autoscaling.targets import Scale
from concerto.kube import Session
from concerto.kube.discovery import Kinds

_CONCURRENCY, _OF_ONE_NAMESPACE = 128, 16
"""Requests at a time to each of the custom metrics API, the external metrics API and Prometheus. Those to the first two
go through the API server, to which there are `SessionSettings.max_requests` for all."""
_CALLED = {
    "Resource": "resource metric",
    "ContainerResource": "container metric",
    "Pods": "pods metric",
    "Object": "object metric",
    "External": "external metric",
    "Prometheus": "Prometheus metric",
    "Formula": "formula",
}


@dataclass(frozen=True)
class MetricRequest:
    """One object at one moment, as far as its metrics need to know.

    Attributes:
        namespace: of the target.
        scale: the target's.
        pods: the target's.
        tolerances: of the object.
        settings: of the controller, for this object.
        now: seconds.
        wanted: where CPU and memory are to come from.
        gone: pods of the target that have shared its load in the last minutes.
        can_be_zero: whether the target may be scaled to zero.
    """

    namespace: str
    scale: Scale
    pods: Sequence[PodView]
    tolerances: Tolerances
    settings: ControllerSettings
    now: float
    wanted: Wanted = "Auto"
    gone: Sequence[Gone] = ()
    can_be_zero: bool = False

    def readings(self, samples: Mapping[str, Sample]) -> PodReadings:
        """What the replica rules need, with these readings by pod name.

        A source may go on serving the last value of a pod that has ended, and such pods are not followed: it carries no
        load, so only readings of ``pods`` count.
        """
        known = {pod.name: samples[pod.name] for pod in self.pods if pod.name in samples}
        return PodReadings(self.scale.replicas, self.pods, known, self.tolerances, self.settings, self.now, self.gone)


@dataclass(frozen=True)
class Measured:
    """What one sync measured.

    Attributes:
        outcomes: of each metric, what it asks for or why it cannot be had.
        readings: CPU and memory of the pods; None where no metric needs them, or no source has them.
    """

    outcomes: Sequence[Proposal | Failure] = ()
    readings: Readings | None = None


class Measurements:
    """Reads metrics of all kinds."""

    def __init__(
        self,
        session: Session,
        kinds: Kinds,
        pods: PodReader,
        prometheus: PrometheusMetrics,
        *,
        timeout_seconds: float,
    ) -> None:
        """Sends no request before `measure`.

        Args:
            session: for the API server.
            kinds: that it serves.
            pods: reads CPU and memory of pods.
            prometheus: for metrics of type Prometheus.
            timeout_seconds: of one request to a metrics API.
        """
        self._session = session
        self._pod_reader = pods
        self._prometheus = prometheus
        self._custom = CustomMetrics(session, kinds, timeout_seconds=timeout_seconds)
        self._timeout = timeout_seconds
        # Each its own: one that hangs keeps nobody from the others
        self._custom_turns, self._external_turns, self._prometheus_turns = (
            NamespaceTurns(_CONCURRENCY, _OF_ONE_NAMESPACE) for _ in range(3)
        )

    async def measure(self, metrics: Sequence[MetricSpec], request: MetricRequest) -> Measured:
        """What all metrics of an object ask for."""
        readings: Readings | MetricError | None = None
        if any(m.type in ("Resource", "ContainerResource") for m in metrics):
            # Only these two are read from cgroups
            known = all(m.name in ("cpu", "memory") for m in metrics if m.type in ("Resource", "ContainerResource"))
            try:
                wanted = request.wanted if known else "MetricsAPI"
                readings = await self._pod_reader.read(request.namespace, request.pods, wanted)
            except MetricError as error:
                readings = error
        outcomes = await asyncio.gather(*(self._outcome(metric, request, readings) for metric in metrics))
        return Measured(outcomes, readings if isinstance(readings, Readings) else None)

    async def _outcome(
        self, metric: MetricSpec, request: MetricRequest, readings: Readings | MetricError | None
    ) -> Proposal | Failure:
        try:
            if metric.selector_error:
                raise MetricError(metric.selector_error)
            match metric.type:
                case "Resource" | "ContainerResource":
                    return self._resource(metric, request, readings)
                case "Pods":
                    return await self._pods(metric, request)
                case _:
                    return await self._total(metric, request)
        except MetricError as error:
            what = f"{metric.container or metric.name} {_CALLED[metric.type]}"
            return Failure(metric.failure_reason, f"failed to get {what} value: {error}")

    def _resource(
        self, metric: MetricSpec, request: MetricRequest, readings: Readings | MetricError | None
    ) -> Proposal:
        if not isinstance(readings, Readings):
            raise readings or MetricError("its pods were not read")
        usage = readings.usage
        read = {p.name: usage[p.name].sample(metric.name, metric.container) for p in request.pods if p.name in usage}
        samples: dict[str, Sample] = {name: sample for name, sample in read.items() if sample is not None}
        if metric.utilization is None:
            return self._average(metric, request, samples, f"{metric.name} resource", metric.name)
        return resource_utilization_replicas(
            request.readings(samples),
            resource=metric.name,
            container=metric.container,
            target_percent=metric.utilization,
        )

    async def _pods(self, metric: MetricSpec, request: MetricRequest) -> Proposal:
        async with self._custom_turns.turn(request.namespace):
            samples = await self._custom.of_pods(
                request.namespace, metric.name, request.scale.selector, metric.selector, now=request.now
            )
        return self._average(metric, request, samples, f"pods metric {metric.name}", None)

    def _average(
        self, metric: MetricSpec, request: MetricRequest, samples: dict[str, Sample], name: str, resource: str | None
    ) -> Proposal:
        return average_value_replicas(
            request.readings(samples),
            metric=name,
            resource=resource,
            container=metric.container,
            target=_given(metric.average_value),
        )

    async def _total(self, metric: MetricSpec, request: MetricRequest) -> Proposal:
        if metric.type == "Formula":
            value, name = await self._formula(metric, request), f"formula {metric.name}"
        else:
            value, name = await self._value(metric, request)
        if metric.activation is not None and 0 <= value <= metric.activation:
            value = 0
        tolerances = request.tolerances
        if metric.average_value is not None:
            target = metric.average_value
            return per_pod_replicas(request.scale.existing, value, metric=name, target=target, tolerances=tolerances)
        target = _given(metric.value)
        asked = value_replicas(
            request.scale.replicas, request.pods, value, metric=name, target=target, tolerances=tolerances
        )
        return kept_from_zero(asked) if request.can_be_zero else asked

    async def _formula(self, metric: MetricSpec, request: MetricRequest) -> int:
        """Thousandths. One input that is not known leaves the result unknown."""
        check(metric.expression, (name for name, _ in metric.inputs))
        values: dict[str, float] = {}
        for name, each in metric.inputs:
            try:
                values[name] = await self._input(each, request)
            except MetricError as error:
                raise MetricError(f"input {name}: {error}") from error
        return milli_of(evaluate(metric.expression, values))

    async def _input(self, metric: MetricSpec, request: MetricRequest) -> float:
        """As it is: a formula may multiply a thousandth by a million."""
        if metric.selector_error:
            raise MetricError(metric.selector_error)
        if metric.type == "Prometheus":
            async with self._prometheus_turns.turn(request.namespace):
                return await self._prometheus.number(request.namespace, metric.query)
        async with self._external_turns.turn(request.namespace):
            return await external_number(
                self._session, request.namespace, metric.name, metric.selector, timeout_seconds=self._timeout
            )

    async def _value(self, metric: MetricSpec, request: MetricRequest) -> tuple[int, str]:
        """A metric that is one number, in thousandths, and what messages call it."""
        namespace = request.namespace
        if metric.type == "Prometheus":
            async with self._prometheus_turns.turn(namespace):
                value = await self._prometheus.value(namespace, metric.query)
            return value, f"Prometheus metric {metric.name}"
        if metric.described is not None:
            async with self._custom_turns.turn(namespace):
                value = await self._custom.of_object(namespace, metric.name, metric.described, metric.selector)
            return value, f"{metric.described.kind} metric {metric.name}"
        async with self._external_turns.turn(namespace):
            value = await external_metric(
                self._session, namespace, metric.name, metric.selector, timeout_seconds=self._timeout
            )
        return value, f"external metric {metric.name}({metric.selector})"


@dataclass(frozen=True)
class Load:
    """What forecasts are made of.

    Attributes:
        demand: in replicas at their target; None where it is not known.
        observed_at: middle of the readings' window, seconds.
        certain: demand that there is at least, where the pods are at their limits.
    """

    demand: float | None
    observed_at: float
    certain: float = 0.0


def load_of(outcomes: Sequence[Proposal | Failure], now: float) -> Load:
    """The load that the metric which asks for most sees; not known while any metric is broken."""
    proposals = [o for o in outcomes if isinstance(o, Proposal) and o.demand is not None]
    if not proposals:
        return Load(None, now)
    most = max(proposals, key=lambda p: p.demand or 0.0)
    demand = min(most.demand or 0.0, MAX_REPLICAS)
    # A source whose clock is ahead must not put samples where those of the next hours belong; before 1970 is no time
    at = now if most.observed_at is None else max(min(most.observed_at - most.window / 2, now), 0.0)
    if most.saturated:
        return Load(None, at, demand)
    return Load(demand if len(proposals) == len(outcomes) else None, at)


def _given(target: int | None) -> int:
    if target is None:
        raise MetricError("the metric has no target")
    return target
