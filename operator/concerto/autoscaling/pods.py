"""Which of a target's pods count: autoscaling/v2's four groups, and the requests that utilisation is measured against.

First match wins. Source: docs/references.md, "Replica rules".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
class ContainerView:
    """A container (restartable init containers included) and its requests and limits in thousandths."""

    name: str
    requests: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetPod:
    """What the rules need to know of a pod.

    Attributes:
        ready: status of the Ready condition ("True", "False", "Unknown"), None when there is no such condition.
        ready_since: when that condition last changed, seconds.
        started_at: ``status.startTime``, None before the kubelet has seen the pod.
        pod_requests: the pod-level requests where the pod has any (they win over its containers'), else None.
        node: where it runs; empty before it is bound.
        host: IP address of that node, from the pod's status.
        scheduler: who is to place it.
        first_ready: when it became Ready for the first time, seconds; None if that was not observed.
        scheduled_at: when it was bound to its node, seconds; None where its conditions do not tell.
        deleting_since: when its deletion was asked for, seconds; from then on it gets no new load.
    """

    name: str
    phase: str = "Running"
    deleting: bool = False
    ready: str | None = "True"
    ready_since: float = 0.0
    started_at: float | None = 0.0
    created_at: float = 0.0
    containers: tuple[ContainerView, ...] = ()
    pod_requests: Mapping[str, int] | None = None
    uid: str = ""
    revision: str = ""
    node: str = ""
    host: str = ""
    scheduler: str = ""
    first_ready: float | None = None
    deleting_since: float = 0.0
    scheduled_at: float | None = None

    @property
    def bound_at(self) -> float:
        """When it was bound to its node, as far as is known: else when its kubelet accepted it, else its creation."""
        if self.scheduled_at is not None:
            return self.scheduled_at
        return self.started_at or self.created_at

    @property
    def is_ready(self) -> bool:
        """Running and Ready, as Object and External metrics count pods."""
        return self.phase == "Running" and self.ready == "True"


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
    pods: Sequence[TargetPod], samples: Mapping[str, Sample], *, cpu: bool, now: float, settings: ControllerSettings
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


def _still_starting(pod: TargetPod, sample: Sample, now: float, settings: ControllerSettings) -> bool:
    if pod.ready is None or pod.started_at is None:
        return True
    if pod.started_at + settings.cpu_initialization_seconds > now:
        # The whole window of the sample must lie after the last change of readiness, else it holds start-up work.
        return pod.ready == "False" or sample.timestamp < pod.ready_since + sample.window
    if settings.first_readiness and pod.first_ready is not None and sample.timestamp < pod.first_ready + sample.window:
        return True
    never_became_ready = pod.started_at + settings.initial_readiness_delay_seconds > pod.ready_since
    return pod.ready == "False" and never_became_ready


def requests_of(pods: Sequence[TargetPod], resource: str, container: str | None) -> dict[str, int]:
    """Each pod's request of ``resource`` in thousandths: of one container, else pod-level, else of all containers.

    Raises:
        MetricError: a container (or the named one) has no such request, or there is no container of that name.
    """
    return {pod.name: _request_of(pod, resource, container) for pod in pods}


def _request_of(pod: TargetPod, resource: str, container: str | None) -> int:
    if container is None and pod.pod_requests is not None:
        if resource not in pod.pod_requests:
            raise MetricError(f"missing pod-level request for {resource} in Pod {pod.name}")
        return pod.pod_requests[resource]
    chosen = [c for c in pod.containers if container is None or c.name == container]
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
    pods: Sequence[TargetPod],
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


def _limit_of(pod: TargetPod, resource: str | None, container: str | None) -> int:
    """Zero when any container in question has no limit: then nothing tells how far it could go."""
    chosen = [c for c in pod.containers if container is None or c.name == container]
    if resource is None or any(resource not in c.limits for c in chosen):
        return 0
    return sum(c.limits[resource] for c in chosen)
