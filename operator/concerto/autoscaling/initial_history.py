"""Which queries of Prometheus give a new object's load of the last days, in replicas at their target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.api.predictivehpa import MetricSpec, PredictiveHPA
from concerto.autoscaling.history import Ring
from concerto.autoscaling.pods import MetricError, requests_of

_MAX_NAME = 46
"""Kubernetes shortens the names of pods of workloads with longer names."""
_POD_NAMES = {
    "Deployment": "{}-[a-z0-9]+-[a-z0-9]{{5}}",
    "ReplicaSet": "{}-[a-z0-9]{{5}}",
    "StatefulSet": "{}-[0-9]+",
}
_SERIES = {
    "cpu": "sum(rate(container_cpu_usage_seconds_total{{{labels}}}[{seconds}s]))",
    "memory": "sum(container_memory_working_set_bytes{{{labels}}})",
}
_GIVE_QUERY = "give spec.prediction.initialHistory.query"


@dataclass(frozen=True)
class HistoryQuery:
    """A query, and what its value must be divided by.

    Attributes:
        expression: PromQL.
        per_replica: load of one replica at the target, in the unit of the value.
    """

    expression: str
    per_replica: float = 1.0


def history_queries(spec: PredictiveHPA, pods: Sequence[PodView], step_seconds: int) -> tuple[HistoryQuery, ...]:
    """The queries whose greatest value is the load; a metric without history would leave it unknown.

    Args:
        spec: the object's, with an initial history.
        pods: the target's, for their requests.
        step_seconds: distance of the points; a rate is taken over that time.

    Raises:
        MetricError: the query of a metric is not known; the message names the metric.
    """
    given = spec.prediction.initial_history
    if given is not None and given.query:
        return (HistoryQuery(given.query),)
    return tuple(_query(spec, metric, pods, step_seconds) for metric in spec.metrics)


def grid(ring: Ring, now: float) -> tuple[float, float]:
    """First and last of the points that fill the ring: each is the end of a bucket; seconds."""
    last = int(now // ring.step) * ring.step
    return float(last - (ring.length - 1) * ring.step), float(last)


def filled(ring: Ring, series: Sequence[Sequence[tuple[float, float]]]) -> Ring:
    """The ring with the greatest value of the series in each bucket before its own first one.

    A bucket that one of the series does not have stays empty.

    Args:
        ring: of the object.
        series: times of `grid` in seconds, and loads in replicas.
    """
    by_time = [dict(points) for points in series]
    return ring.with_earlier([(at - 1.0, max(points[at] for points in by_time)) for at in common_times(series)])


def common_times(series: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Times in seconds that each series has, the earliest first."""
    return sorted(set.intersection(*({at for at, _ in points} for points in series))) if series else []


def _query(spec: PredictiveHPA, metric: MetricSpec, pods: Sequence[PodView], step_seconds: int) -> HistoryQuery:
    if metric.type == "Prometheus" and metric.average_value is not None:
        return HistoryQuery(metric.query, metric.average_value / 1000)
    if metric.type not in ("Resource", "ContainerResource") or metric.name not in _SERIES:
        target = " with a target of type Value" if metric.value is not None else ""
        what = f"{metric.type} metric {metric.name}{target}"
        raise MetricError(f"the history of {what} is not known: {_GIVE_QUERY}")
    labels = f'namespace="{spec.namespace}", pod=~"{_pod_names(spec)}", '
    labels += f'container="{metric.container}"' if metric.container else 'container!="", container!="POD"'
    expression = _SERIES[metric.name].format(labels=labels, seconds=step_seconds)
    if metric.utilization is None:
        return HistoryQuery(expression, (metric.average_value or 0) / 1000)
    requests = requests_of(pods, metric.name, metric.container).values()
    if not sum(requests):
        raise MetricError("the target has no pods yet, whose requests the history is relative to")
    return HistoryQuery(expression, sum(requests) / len(requests) * metric.utilization / 100_000)


def _pod_names(spec: PredictiveHPA) -> str:
    """A regular expression for the names of the target's pods, as a string of PromQL."""
    target = spec.target
    pattern = _POD_NAMES.get(target.kind)
    if pattern is None or len(target.name) > _MAX_NAME:
        raise MetricError(f"the names of the pods of {target.kind} {target.name} are not known: {_GIVE_QUERY}")
    return pattern.format(target.name.replace(".", "[.]"))
