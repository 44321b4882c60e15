"""From one metric's readings to a proposed number of replicas, as autoscaling/v2 does it.

Integers are thousandths of the metric's unit, as in the metrics APIs. Divisions of integers truncate: the percentage of
utilisation is a whole number before it becomes a ratio, and two controllers agree only if both truncate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from concerto.api.pod import PodView
from concerto.autoscaling.pods import (
    Gone,
    MetricError,
    PodGroups,
    Sample,
    Serving,
    group_pods,
    requests_of,
    serving,
)
from concerto.autoscaling.settings import ControllerSettings, Tolerances

MAX_REPLICAS = 2**31 - 1


@dataclass(frozen=True)
class Proposal:
    """What one metric asks for.

    Attributes:
        replicas: whole replicas after tolerance and missing pods.
        metric: what it is called in messages, e.g. ``cpu resource utilization (percentage of request)``.
        demand: replicas (fractional) whose load would be exactly at the target, from settled pods' readings; None when
            there is no such pod. Forecasts are made of it, as it does not change with the number of replicas.
        average_value: current average per pod in thousandths, where the target is one.
        average_utilization: current percent, where the target is one.
        value: current total in thousandths, where the target is one.
        observed_at: when the reading was taken, seconds; None when the source does not give it.
        window: length of the readings' window, seconds.
        saturated: the pods are at their limits: ``demand`` is only a lower bound.
    """

    replicas: int
    metric: str = ""
    demand: float | None = None
    average_value: int | None = None
    average_utilization: int | None = None
    value: int | None = None
    observed_at: float | None = None
    window: float = 0.0
    saturated: bool = False


def utilization(samples: Mapping[str, Sample], requests: Mapping[str, int], target: int) -> tuple[float, int, int]:
    """(ratio to the target, whole percent, average usage in thousandths): a ratio of sums over pods that have both.

    Raises:
        MetricError: no pod has both, or requests sum to nothing.
    """
    known = [name for name in samples if name in requests]
    total, requested = sum(samples[n].value for n in known), sum(requests[n] for n in known)
    if requested == 0:
        raise MetricError("no metrics returned matched known pods")
    percent = _truncate(total * 100, requested)
    return percent / target, percent, _truncate(total, len(known))


def usage(samples: Mapping[str, Sample], target: int) -> tuple[float, int]:
    """(ratio to the target, average in thousandths)."""
    average = _truncate(sum(s.value for s in samples.values()), len(samples))
    return average / target, average


@dataclass(frozen=True)
class PodReadings:
    """The pods of a target and their readings of one metric, at one moment.

    Attributes:
        current: ``spec.replicas`` of the target's scale.
        pods: all pods of the target.
        samples: readings by pod name.
        tolerances: of the object.
        settings: of the controller, for this object.
        now: seconds.
        gone: pods of the target that shared its load in the last minutes and are deleted.
    """

    current: int
    pods: Sequence[PodView]
    samples: Mapping[str, Sample]
    tolerances: Tolerances
    settings: ControllerSettings
    now: float
    gone: Sequence[Gone] = ()


@dataclass(frozen=True)
class _Target:
    """What the readings of one metric are measured against.

    Attributes:
        metric: its name in messages.
        resource: name of the resource; None for a Pods metric.
        container: name of the container; None for all.
        ratio_of: ratio of samples to the target.
        missing_when_low: what a missing pod counts as while the ratio is below 1, in thousandths.
        per_replica: load of one replica at the target, in thousandths.
    """

    metric: str
    resource: str | None
    container: str | None
    ratio_of: Callable[[Mapping[str, Sample]], float]
    missing_when_low: Callable[[str], int]
    per_replica: Callable[[str], float]


def resource_utilization_replicas(
    readings: PodReadings, *, resource: str, container: str | None, target_percent: int
) -> Proposal:
    """Resource and ContainerResource metrics with a Utilization target.

    Source: docs/references.md, "Replica rules".

    Raises:
        MetricError: no pods, no usable sample, or a request is missing.
    """
    groups, counted = _counted(readings, cpu=resource == "cpu")
    requests = requests_of(readings.pods, resource, container)
    _, percent, average = utilization(counted, requests, target_percent)
    # A missing pod counts as using all it asked for when that could shrink the target, and nothing when it could grow.
    full = max(100, target_percent)
    name = "container resource" if container is not None else "resource"
    target = _Target(
        f"{resource} {name} utilization (percentage of request)",
        resource,
        container,
        ratio_of=lambda samples: utilization(samples, requests, target_percent)[0],
        missing_when_low=lambda pod: requests[pod] * full // 100,
        per_replica=lambda pod: requests.get(pod, 0) * target_percent / 100,
    )
    return replace(_proposal(readings, groups, counted, target), average_value=average, average_utilization=percent)


def average_value_replicas(
    readings: PodReadings, *, metric: str, target: int, resource: str | None = None, container: str | None = None
) -> Proposal:
    """Pods metrics (no ``resource``), Resource and ContainerResource metrics with an AverageValue target (thousandths).

    Source: docs/references.md, "Replica rules".

    Raises:
        MetricError: no pods, or no usable sample.
    """
    groups, counted = _counted(readings, cpu=resource == "cpu")
    rule = _Target(
        metric,
        resource,
        container,
        ratio_of=lambda samples: usage(samples, target)[0],
        missing_when_low=lambda _: target,
        per_replica=lambda _: target,
    )
    return replace(_proposal(readings, groups, counted, rule), average_value=usage(counted, target)[1])


def value_replicas(
    current: int, pods: Sequence[PodView], value: int, *, metric: str, target: int, tolerances: Tolerances
) -> Proposal:
    """Object and External metrics with a Value target: the ratio times the pods that are ready.

    Raises:
        MetricError: there are no pods to multiply by.
    """
    _refuse_negative(value, metric)
    ratio = value / target
    if current == 0:
        return Proposal(_whole(ratio), metric, ratio, value=value)
    ready = sum(pod.is_ready for pod in pods)
    # With no pod ready, the share of the load that one pod would take is unknown, not zero
    demand = ratio * ready if ready else None
    if tolerances.contain(ratio):
        return Proposal(current, metric, demand, value=value)
    if not pods:
        raise MetricError(
            "unable to calculate ready pods: no pods returned by selector while calculating replica count"
        )
    return Proposal(_whole(ratio * ready), metric, demand, value=value)


def kept_from_zero(proposal: Proposal) -> Proposal:
    """With one replica at least while the metric has a value, also if no pod is ready.

    Else a target that was scaled up from zero would be back there before its pods are ready.
    """
    return replace(proposal, replicas=max(proposal.replicas, 1)) if proposal.value else proposal


def per_pod_replicas(status_replicas: int, value: int, *, metric: str, target: int, tolerances: Tolerances) -> Proposal:
    """Object and External metrics with an AverageValue target: the total shared among the replicas that exist."""
    _refuse_negative(value, metric)
    demand = value / target
    # With no replicas there is no ratio: any load is outside of the tolerance, and the result is ceil(demand).
    ratio = value / (target * status_replicas) if status_replicas else math.inf
    replicas = status_replicas if tolerances.contain(ratio) else _whole(demand)
    average = math.ceil(value / status_replicas) if status_replicas else value
    return Proposal(replicas, metric, demand, average_value=average)


def _counted(readings: PodReadings, *, cpu: bool) -> tuple[PodGroups, dict[str, Sample]]:
    if not readings.pods:
        raise MetricError("no pods returned by selector while calculating replica count")
    groups = group_pods(readings.pods, readings.samples, cpu=cpu, now=readings.now, settings=readings.settings)
    dropped = groups.ignored | groups.unready
    counted = {name: sample for name, sample in readings.samples.items() if name not in dropped}
    if not counted:
        raise MetricError("did not receive metrics for targeted pods (pods might be unready)")
    for name, sample in counted.items():
        if sample.value < 0:
            raise MetricError(f"pod {name} reports {sample.value}m: usage cannot be negative")
    return groups, counted


def _proposal(readings: PodReadings, groups: PodGroups, counted: Mapping[str, Sample], target: _Target) -> Proposal:
    share = serving(readings.pods, readings.samples, target.resource, target.container, readings.gone)
    return Proposal(
        _with_absent_pods(readings, groups, counted, target),
        target.metric,
        _demand(counted, share, target.per_replica),
        observed_at=_oldest(counted),
        window=_longest(counted),
        saturated=share.saturated,
    )


def _with_absent_pods(readings: PodReadings, groups: PodGroups, counted: Mapping[str, Sample], target: _Target) -> int:
    """Replicas for the ratio, with pods that have no usable sample counted against the direction it points in."""
    current, tolerances, ratio = readings.current, readings.tolerances, target.ratio_of(counted)
    unready_could_grow = bool(groups.unready) and ratio > 1.0
    if not unready_could_grow and not groups.missing:
        return current if tolerances.contain(ratio) else _whole(ratio * len(groups.ready))

    filled = dict(counted)
    if ratio < 1.0:
        filled |= {name: Sample(target.missing_when_low(name)) for name in groups.missing}
    elif ratio > 1.0:
        filled |= {name: Sample(0) for name in groups.missing | groups.unready}
    new_ratio = target.ratio_of(filled)
    flipped = (ratio < 1.0 < new_ratio) or (new_ratio < 1.0 < ratio)
    if flipped or tolerances.contain(new_ratio):
        return current
    replicas = _whole(new_ratio * len(filled))
    against = (new_ratio < 1.0 and replicas > current) or (new_ratio > 1.0 and replicas < current)
    return current if against else replicas


def _refuse_negative(value: int, metric: str) -> None:
    if value < 0:
        raise MetricError(f"{metric} is {value}m: a load cannot be negative")


def _demand(counted: Mapping[str, Sample], share: Serving, per_replica: Callable[[str], float]) -> float | None:
    """Replicas whose load would be at the target; None when no reading is about load alone."""
    settled = [name for name in share.settled if name in counted]
    if not settled:
        return None
    asked = sum(per_replica(name) for name in settled)
    return sum(counted[name].value for name in settled) / asked * share.pods if asked else None


def _oldest(counted: Mapping[str, Sample]) -> float:
    """The oldest reading's time: a forecast must not take its input for fresher than it is."""
    return min(s.timestamp for s in counted.values())


def _longest(counted: Mapping[str, Sample]) -> float:
    return max(s.window for s in counted.values())


def _whole(replicas: float) -> int:
    return min(math.ceil(replicas), MAX_REPLICAS)


def _truncate(numerator: int, denominator: int) -> int:
    """Integer division towards zero, exact for any size (``//`` would round a negative one down)."""
    quotient = abs(numerator) // abs(denominator)
    return quotient if (numerator >= 0) == (denominator > 0) else -quotient
