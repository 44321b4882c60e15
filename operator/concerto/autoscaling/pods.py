"""Which of a target's pods count: autoscaling/v2's four groups, and the requests that utilisation is measured against.

First match wins. Source: docs/references.md, "Replica rules".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.autoscaling.settings import ControllerSettings


class MetricError(Exception):
    """A metric has no usable answer; the message says why and for which pod or metric."""


@dataclass(frozen=True)
class Sample:
    """One pod's reading: ``value`` in thousandths, taken at ``timestamp`` over the ``window`` seconds before."""

    value: int
    timestamp: float = 0.0
    window: float = 60.0


@dataclass(frozen=True)
class PodGroups:
    """Names of the pods in each group; ready ones are those whose samples count."""

    ready: frozenset[str]
    unready: frozenset[str]
    missing: frozenset[str]
    ignored: frozenset[str]


_OVER = ("Failed", "Succeeded")
"""autoscaling/v2 takes a pod that has Succeeded, as of a node that was shut down, for one without a reading."""


def group_pods(
    pods: Sequence[PodView], samples: Mapping[str, Sample], *, cpu: bool, now: float, settings: ControllerSettings
) -> PodGroups:
    """Sort pods into ready, unready, missing and ignored.

    Args:
        pods: all pods of the selector.
        samples: readings by pod name.
        cpu: whether the metric is CPU: only then does a pod's own start-up disqualify its sample.
        now: seconds.
        settings: cpuInitializationPeriod and initialReadinessDelay.
    """
    ready, unready, missing, ignored = set(), set(), set(), set()
    for pod in pods:
        if pod.deleting or pod.phase in _OVER:
            ignored.add(pod.name)
        elif pod.phase == "Pending":
            unready.add(pod.name)
        elif (sample := samples.get(pod.name)) is None:
            missing.add(pod.name)
        elif cpu and _still_starting(pod, sample, now, settings):
            unready.add(pod.name)
        else:
            ready.add(pod.name)
    return PodGroups(frozenset(ready), frozenset(unready), frozenset(missing), frozenset(ignored))


def _still_starting(pod: PodView, sample: Sample, now: float, settings: ControllerSettings) -> bool:
    if pod.ready is None or pod.started is None:
        return True
    if pod.started + settings.cpu_initialization_seconds > now:
        # The whole window of the sample must lie after the last change of readiness, else it holds start-up work.
        return pod.ready == "False" or sample.timestamp < pod.ready_since + sample.window
    if settings.first_readiness and pod.first_ready is not None and sample.timestamp < pod.first_ready + sample.window:
        return True
    never_became_ready = pod.started + settings.initial_readiness_delay_seconds > pod.ready_since
    return pod.ready == "False" and never_became_ready


def requests_of(pods: Sequence[PodView], resource: str, container: str | None) -> dict[str, int]:
    """Each pod's request of ``resource`` in thousandths: of one container, else pod-level, else of all containers.

    Raises:
        MetricError: a container (or the named one) has no such request, or there is no container of that name.
    """
    return {pod.name: _request_of(pod, resource, container) for pod in pods}


def _request_of(pod: PodView, resource: str, container: str | None) -> int:
    if container is None and pod.shape.pod_level_requests is not None:
        if resource not in pod.shape.pod_level_requests:
            raise MetricError(f"missing pod-level request for {resource} in Pod {pod.name}")
        return pod.shape.pod_level_requests[resource]
    chosen = [c for c in pod.shape.containers if container is None or c.name == container]
    if container is not None and not chosen:
        raise MetricError(f"container {container} not found in Pod {pod.name}")
    for each in chosen:
        if resource not in each.requests:
            raise MetricError(f"missing request for {resource} in container {each.name} of Pod {pod.name}")
    return sum(c.requests[resource] for c in chosen)


@dataclass(frozen=True)
class Serving:
    """The pods whose readings are about the load they carry, and nothing else.

    Attributes:
        settled: pods that were Ready during the whole of their reading.
        pods: how many pods shared the load while those readings were taken, on average. A pod counts
            for the time it was Ready, also if it is deleted by now.
        saturated: the settled use (almost) all that their limits allow, so the load may be higher than the readings.
    """

    settled: frozenset[str]
    pods: float
    saturated: bool


SATURATION = 0.95
"""Share of a limit above which a container is taken to be held back by it: readings are means over a window."""


@dataclass(frozen=True)
class Gone:
    """A pod that was Ready from ``since`` until its deletion was asked for at ``until``, seconds."""

    since: float
    until: float


def serving(
    pods: Sequence[PodView],
    samples: Mapping[str, Sample],
    resource: str | None,
    container: str | None,
    gone: Sequence[Gone] = (),
) -> Serving:
    """Who carries the load: unlike `group_pods`, never a pod that was starting, however long it took to start.

    autoscaling/v2 forgets about starting once ``cpuInitializationPeriod`` is over, and then takes the start-up work of
    pods that need longer for load. A forecast made of that would multiply it.
    """
    settled, others, used, allowed = set[str](), list(gone), 0, 0
    for pod in pods:
        if pod.deleting or not pod.is_ready:
            continue
        sample = samples.get(pod.name)
        if sample is None or sample.timestamp < pod.ready_since + sample.window:
            others.append(Gone(pod.ready_since, math.inf))
            continue
        settled.add(pod.name)
        limit = _limit_of(pod, resource, container)
        used += sample.value if limit else 0
        allowed += limit
    taken = [samples[name] for name in settled]
    end = sum(s.timestamp for s in taken) / max(len(taken), 1)
    begin = end - sum(s.window for s in taken) / max(len(taken), 1)
    shared = len(settled) + sum(_share(each, begin, end) for each in others)
    return Serving(frozenset(settled), shared, allowed > 0 and used >= SATURATION * allowed)


def _share(pod: Gone, begin: float, end: float) -> float:
    """The part of the time in which it was Ready."""
    if end <= begin:
        return float(pod.since <= begin < pod.until)
    return max(min(pod.until, end) - max(pod.since, begin), 0.0) / (end - begin)


def _limit_of(pod: PodView, resource: str | None, container: str | None) -> int:
    """The most that a pod, or one of its containers, can use, in thousandths; 0 where that is not known.

    The pod's own limit bounds all containers together. What it leaves one of them depends on the others.
    """
    if resource is None:
        return 0
    chosen = [c for c in pod.shape.containers if container is None or c.name == container]
    limits = [sum(c.limits[resource] for c in chosen)] if all(resource in c.limits for c in chosen) else []
    if container is None and resource in pod.shape.pod_level_limits:
        limits.append(pod.shape.pod_level_limits[resource])
    return min(limits, default=0)
