"""What is said about a node, and when it is worth saying. Pure: no clock, no API.

Every write costs the one API server that all nodes share, so that nothing is published out of habit: a status goes out
when a number in it would change a decision, and otherwise once a heartbeat, so that silence means a dead agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from concerto.api.conditions import Condition, merge_conditions
from concerto.api.nodecapacity import (
    AgentInfo,
    CapacitySettings,
    NodeCapacityStatus,
    ResourceStatus,
    Window,
)
from concerto.api.subspacesnapshot import SubspaceStatus, model_numbers
from concerto.api.timestamps import format_timestamp
from concerto.capacity.pipeline import MODES, WARMUP_BATCHES, CapacityReport
from concerto.capacity.subspace import decompose
from concerto.capacity.windows import WindowStatistics
from concerto_agent.sampler import Problem, Reason

_DIGITS = 4

# The first of them that applies is the condition's reason, gravest first; the message tells all
_GRAVITY: tuple[Reason, ...] = (
    "Unreadable",
    "InvalidGauge",
    "NetworkSpeedUnknown",
    "NoPodCgroups",
    "NoPressure",
    "NoMemAvailable",
    "SharedCPUs",
)

PublishReason = Literal["First", "Conditions", "Pods", "Capacity", "Usage", "Heartbeat"]


@dataclass(frozen=True)
class PublishSettings:
    """When a change is worth a write; the agent's own settings, not the CRD's.

    Attributes:
        minimum_interval_seconds: never sooner after the write before.
        capacity_share: change of capacity that matters, as a share of the published capacity.
        capacity_pods: change of capacity below which nothing matters.
        spare: change of the share of the node's CPUs that is left for ordinary pods, and large ones, that matters.
        usage: change of a resource's usage, or of its mean over a window, that matters; fraction of the node.
        jitter: the heartbeat is drawn anew within this share around ``spec.heartbeat``, so that the nodes of a cluster
            that was restarted as a whole drift apart.
        subspace: change of the local model that matters: of the RMS usage along its first direction, as a vector, in
            fractions of the node. Absolute, as the cluster's model is the mean over all nodes.
        subspace_interval_seconds: never sooner after the model's write before.
        subspace_heartbeat_seconds: longest time between two writes of an unchanged model.
    """

    minimum_interval_seconds: float = 1.0
    capacity_share: float = 0.1
    capacity_pods: float = 0.1
    spare: float = 0.1
    usage: float = 0.05
    jitter: float = 0.05
    subspace: float = 0.05
    subspace_interval_seconds: float = 5.0
    subspace_heartbeat_seconds: float = 300.0


@dataclass(frozen=True)
class Published:
    """What the API server is known to have.

    Attributes:
        status: the status.
        measured_at: monotonic time of the measurement in it; the clock of ``observedAt`` may be set back.
        at: monotonic time of the write.
        due: monotonic time at which the next heartbeat is due.
    """

    status: NodeCapacityStatus
    measured_at: float
    at: float
    due: float


@dataclass(frozen=True)
class PublishedSubspace:
    """The local model that the API server is known to have.

    Attributes:
        status: the model.
        at: monotonic time of the write.
    """

    status: SubspaceStatus
    at: float


def should_publish(
    old: Published | None, new: NodeCapacityStatus, measured_at: float, settings: PublishSettings, now: float
) -> PublishReason | None:
    """Why the status is worth a write now; None if it is not.

    Args:
        old: what was written last; None if nothing was.
        new: what could be written.
        measured_at: monotonic time of the measurement in it.
        settings: the deadbands.
        now: monotonic time, seconds.
    """
    if old is None:
        return "First"
    if now - old.at < settings.minimum_interval_seconds:
        return None
    if said(new.conditions) != said(old.status.conditions) or new.agent != old.status.agent:
        return "Conditions"
    if new.observed_generation != old.status.observed_generation:
        return "Conditions"
    if measured_at <= old.measured_at:
        return None
    if set(new.observed_pod_uids) != set(old.status.observed_pod_uids):
        return "Pods"
    if new.large_pods.keys() != old.status.large_pods.keys():
        return "Pods"
    spare = abs(new.spare_share - old.status.spare_share) >= settings.spare
    if spare or capacity_moved(old.status.capacity, new.capacity, settings):
        return "Capacity"
    if usage_moved(old.status, new, settings.usage):
        return "Usage"
    return "Heartbeat" if now >= old.due else None


def capacity_moved(old: float, new: float, settings: PublishSettings) -> bool:
    """Whether the change would move a pod: small numbers decide whether one more fits, large ones where it goes."""
    return abs(new - old) >= max(settings.capacity_pods, settings.capacity_share * old)


def usage_moved(old: NodeCapacityStatus, new: NodeCapacityStatus, change: float) -> bool:
    """Whether load-aware scores would come out differently: usage, a window's mean, or what is told at all."""
    before = {r.name: r.usage for r in old.resources} | {(w.resource, w.window): w.average for w in old.windows}
    after = {r.name: r.usage for r in new.resources} | {(w.resource, w.window): w.average for w in new.windows}
    return before.keys() != after.keys() or any(abs(after[key] - before[key]) >= change for key in after)


def should_publish_subspace(
    old: PublishedSubspace | None, new: SubspaceStatus, settings: PublishSettings, now: float
) -> bool:
    """Whether the local model, freshly measured, is worth a write now; arguments as of ``should_publish``."""
    if old is None:
        return True
    if now - old.at < settings.subspace_interval_seconds:
        return False
    if now - old.at >= settings.subspace_heartbeat_seconds or new.resources != old.status.resources:
        return True
    if said(new.conditions) != said(old.status.conditions):
        return True
    moved = (
        new.sigma[0] * after - old.status.sigma[0] * before
        for after, before in zip(new.directions[0], old.status.directions[0])
    )
    return math.hypot(*moved) >= settings.subspace


def said(conditions: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    """What conditions say, apart from times and wording: a message that counts seconds is no news."""
    return {(c["type"], c["status"], c["reason"]) for c in conditions}


def measured_resources(report: CapacityReport, node: int) -> list[int]:
    """Indices of the resources of which the batch holds a valid sample; of the others nothing is said."""
    return [int(i) for i in np.flatnonzero(report.samples[node])]


def build_status(
    report: CapacityReport,
    node: int,
    settings: CapacitySettings,
    *,
    windows: Mapping[str, WindowStatistics],
    agent: AgentInfo,
    pod_uids: Sequence[str],
    observed_at: float,
    observed_generation: int,
    conditions: Iterable[Condition],
    before: Sequence[Mapping[str, Any]] = (),
    now: float,
) -> NodeCapacityStatus:
    """The status of one node of a report that holds a fresh measurement of it.

    Args:
        report: the pipeline's.
        node: row of the node in it.
        settings: the spec that it was measured with.
        windows: statistics by window, arrays (N, m).
        agent: who measured.
        pod_uids: the pods counted in n.
        observed_at: wall time of the measurement, seconds since the epoch.
        observed_generation: generation of the spec.
        conditions: what is so.
        before: the object's conditions as they are in the API.
        now: wall time, for conditions that change with this status.

    Raises:
        ValueError: the pods listed are not those counted, or nothing was measured.
    """
    if len(pod_uids) != report.pods[node]:
        raise ValueError(f"{len(pod_uids)} UIDs for {report.pods[node]} pods")
    if not report.fresh[node]:
        raise ValueError("nothing was measured")
    told = measured_resources(report, node)
    return NodeCapacityStatus(
        observed_at=observed_at,
        observed_generation=observed_generation,
        agent=agent,
        capacity=_number(report.capacity[node]),
        room=_number(report.room[node]),
        capacity_mode=MODES[int(report.mode[node])],
        signal=_number(report.signal[node]),
        baseline=_number(report.baseline[node]),
        per_pod_cost=_number(report.per_pod_cost[node]),
        pod_count=len(pod_uids),
        young_pods=int(report.young[node]),
        observed_pod_uids=tuple(pod_uids),
        settle_time_seconds=_number(report.settle_time[node]),
        reject=bool(report.reject[node]),
        over_provision=_number(report.over_provision[node]),
        large_pods={uid: _fraction(share) for uid, share in report.large[node].items()},
        pod_share=_fraction(report.pod_share[node]),
        spare_share=_fraction(report.spare[node]),
        resources=tuple(
            ResourceStatus(
                name=settings.resources[i],
                usage=_fraction(report.usage[node, i]),
                base=_fraction(report.base[node, i]),
                cost=_number(report.cost[node, i]),
                non_pod=None if math.isnan(report.non_pod[node, i]) else _fraction(report.non_pod[node, i]),
            )
            for i in told
        ),
        windows=tuple(
            Window(
                resource=settings.resources[i],
                window=name,
                average=_fraction(window.average[node, i]),
                standard_deviation=_fraction(window.standard_deviation[node, i]),
                latest=_fraction(window.latest[node, i]),
                covered_seconds=int(window.covered_seconds[node, i]),
            )
            for i in told
            for name, window in windows.items()
            if window.covered_seconds[node, i]
        ),
        conditions=tuple(
            merge_conditions(before, conditions, now=format_timestamp(now), observed_generation=observed_generation)
        ),
    )


def build_subspace(
    report: CapacityReport,
    node: int,
    settings: CapacitySettings,
    *,
    observed_at: float,
    observed_generation: int,
    before: Sequence[Mapping[str, Any]] = (),
    now: float,
) -> SubspaceStatus:
    """The local model of one node, without resources that were never measured; the arguments are ``build_status``'s."""
    told = np.flatnonzero(~np.isnan(report.usage[node]))
    directions, sigma = decompose(report.local_moments[node][np.ix_(told, told)])
    warm = int(report.batches[node]) >= WARMUP_BATCHES
    return SubspaceStatus(
        observed_at=observed_at,
        observed_generation=observed_generation,
        resources=tuple(settings.resources[i] for i in told),
        sigma=model_numbers(sigma),
        directions=tuple(model_numbers(column) for column in directions.T),
        batches=int(report.batches[node]),
        conditions=tuple(
            merge_conditions(
                before,
                [
                    Condition("Ready", "True", "Measured", "The model is learned from this node's own samples.")
                    if warm
                    else Condition("Ready", "False", "Warmup", "Too few batches for a model yet."),
                    _progress(warm),
                    Condition("Stalled", "False", "AsExpected", "Nothing stands in the way."),
                ],
                now=format_timestamp(now),
                observed_generation=observed_generation,
            )
        ),
    )


def build_conditions(
    *,
    batches: int,
    fresh: bool,
    silent_seconds: float,
    problems: Iterable[Problem],
    pods_known: bool,
    another: str | None,
    refused_spec: str | None,
) -> list[Condition]:
    """What is to be said about the measurement: Ready, TelemetryComplete, Reconciling, Stalled.

    Args:
        batches: batches folded since the start, or since the resources changed.
        fresh: whether the last batch holds a valid sample.
        silent_seconds: time since the last valid sample.
        problems: what keeps the telemetry from being complete.
        pods_known: whether the API has said which pods are on the node.
        another: instance name of another agent that writes the same object; None if there is none.
        refused_spec: what is wrong with the spec, so that the one before is still in use; None if nothing is.
    """
    by_reason: dict[Reason, list[str]] = {}
    for problem in problems:
        messages = by_reason.setdefault(problem.reason, [])
        if problem.message not in messages:
            messages.append(problem.message)
    reasons = [reason for reason in _GRAVITY if reason in by_reason]
    message = " ".join(sentence for reason in reasons for sentence in by_reason[reason])
    warm = batches >= WARMUP_BATCHES
    if not pods_known:
        text = "The API does not say which pods are on this node, so that none can be counted."
        ready = Condition("Ready", "False", "PodsUnknown", text)
    elif not fresh:
        text = f"No resource could be measured for {silent_seconds:.0f} s; the numbers are those of observedAt."
        ready = Condition("Ready", "False", "NotMeasured", text)
    elif not warm:
        ready = Condition(
            "Ready", "False", "Warmup", f"Capacity is a first guess until {WARMUP_BATCHES} batches are in."
        )
    else:
        ready = Condition("Ready", "True", "Measured", "Capacity is measured.")
    complete = (
        Condition("TelemetryComplete", "False", reasons[0], message)
        if reasons
        else Condition("TelemetryComplete", "True", "Complete", "Everything that should be measured is.")
    )
    if another is not None:
        text = f"Agent instance {another} writes this object, too; the last one wins. Stop one of the two."
        stalled = Condition("Stalled", "True", "AnotherAgent", text)
    elif not pods_known:
        text = "The node's pods can't be listed; see the agent's log. Its service account needs list and watch on pods."
        stalled = Condition("Stalled", "True", "PodsUnknown", text)
    elif refused_spec is not None:
        text = f"This agent can't use the spec and measures by the one before: {refused_spec}"
        stalled = Condition("Stalled", "True", "InvalidSpec", text)
    elif not fresh:
        stalled = Condition("Stalled", "True", "NotMeasured", message or "No valid sample.")
    else:
        stalled = Condition("Stalled", "False", "AsExpected", "Nothing stands in the way.")
    return [ready, complete, _progress(warm or not fresh), stalled]


def _progress(warm: bool) -> Condition:
    if warm:
        return Condition("Reconciling", "False", "Settled", "The spec in use is the latest.")
    return Condition("Reconciling", "True", "Warmup", "The first batches are being measured.")


def _number(value: float) -> float:
    return round(float(value), _DIGITS)


def _fraction(value: float) -> float:
    return min(max(_number(value), 0.0), 1.0)
