"""What an agent publishes: NodeCapacity and SubspaceSnapshot statuses built from the pipeline's report. Pure code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.conditions import NOT_RECONCILING, NOT_STALLED, Condition, merge_conditions
from concerto.api.nodecapacity import AgentInfo, NodeCapacityStatus, ResourceStatus, Window
from concerto.api.subspacesnapshot import KindEntry, SubspaceStatus, model_numbers
from concerto.api.timestamps import format_timestamp
from concerto.capacity.cpu_demand import DEMAND_SOURCES
from concerto.capacity.report import MODES, WARMUP_BATCHES, CapacityReport
from concerto.capacity.subspace import decompose
from concerto.capacity.windows import WindowStatistics

_DIGITS = 4

ProblemReason = Literal[
    "Unreadable",
    "InvalidGauge",
    "NetworkSpeedUnknown",
    "NoPodCgroups",
    "NoPressure",
    "NoMemAvailable",
    "SharedCPUs",
]


@dataclass(frozen=True)
class Problem:
    """One reason why the telemetry is incomplete.

    Attributes:
        reason: for the condition, CamelCase.
        message: what is missing, and what is used instead.
        resource: the resource that is not measured because of it; "" if all resources are measured.
    """

    reason: ProblemReason
    message: str
    resource: str = ""


@dataclass(frozen=True)
class StatusContext:
    """What a status states beside the measurement.

    Attributes:
        agent: the agent that measured.
        pod_uids: UIDs of the pods counted in n.
        observed_at: time of the measurement, seconds since the epoch.
        observed_generation: generation of the spec that was used.
        conditions: the conditions that hold now.
        before: the object's conditions as the API server has them.
        now: time of the status, seconds since the epoch, for conditions that change with it.
    """

    agent: AgentInfo
    pod_uids: Sequence[str]
    observed_at: float
    observed_generation: int
    now: float
    conditions: Iterable[Condition] = ()
    before: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Health:
    """How the measurement goes, for the conditions.

    Attributes:
        batches: batches folded since the start, or since the resources changed.
        fresh: whether the last batch holds a valid sample.
        silent_seconds: time since the last valid sample.
        problems: reasons why the telemetry is incomplete.
        pods_known: whether the API server has listed the node's pods.
        another: instance name of another agent that writes the same object, or None.
        refused_spec: why the latest spec cannot be used, so that the one before is in use; None if it can.
    """

    batches: int
    fresh: bool
    silent_seconds: float
    problems: Iterable[Problem]
    pods_known: bool
    another: str | None
    refused_spec: str | None


_BY_GRAVITY: tuple[ProblemReason, ...] = get_args(ProblemReason)
"""The first reason that applies is the condition's reason; the message holds all of them."""


def measured_resources(report: CapacityReport, node: int) -> list[int]:
    """Indices of the resources of which the batch holds a valid sample; the status names no others."""
    return [int(i) for i in np.flatnonzero(report.samples[node])]


def build_status(
    report: CapacityReport,
    node: int,
    settings: CapacitySettings,
    context: StatusContext,
    windows: Mapping[str, WindowStatistics],
) -> NodeCapacityStatus:
    """The status of one node, from a report that holds a fresh measurement of it.

    Args:
        report: the pipeline's.
        node: the node's row in the report.
        settings: the spec that was used.
        context: what the status states beside the measurement.
        windows: statistics by window, arrays (N, m).

    Raises:
        ValueError: the pods listed are not those counted, or nothing was measured.
    """
    if len(context.pod_uids) != report.pods[node]:
        raise ValueError(f"{len(context.pod_uids)} UIDs for {report.pods[node]} pods")
    if not report.fresh[node]:
        raise ValueError(f"row {node} of the report holds no valid sample")
    measured = measured_resources(report, node)
    return NodeCapacityStatus(
        observed_at=context.observed_at,
        observed_generation=context.observed_generation,
        agent=context.agent,
        capacity=_number(report.capacity[node]),
        room=_number(report.room[node]),
        capacity_mode=MODES[int(report.mode[node])],
        signal=_number(report.signal[node]),
        baseline=_number(report.baseline[node]),
        per_pod_cost=_number(report.per_pod_cost[node]),
        pod_count=len(context.pod_uids),
        young_pods=int(report.young[node]),
        observed_pod_uids=tuple(context.pod_uids),
        settle_time_seconds=_number(report.settle_time[node]),
        reject=bool(report.reject[node]),
        over_provision=_number(report.over_provision[node]),
        large_pods={uid: _fraction(share) for uid, share in report.large[node].items()},
        demand=_number(report.demand[node]),
        demand_source=DEMAND_SOURCES[int(report.demand_source[node])],
        pods_wanting=None if math.isnan(report.pods_wanting[node]) else _number(report.pods_wanting[node]),
        cpu_used=None if math.isnan(report.cpu_used[node]) else _fraction(report.cpu_used[node]),
        pod_share=_fraction(report.pod_share[node]),
        spare_share=_fraction(report.spare[node]),
        system_cpu=None if math.isnan(report.system_cpu[node]) else _fraction(report.system_cpu[node]),
        resources=_resources(report, node, settings, measured),
        windows=_windows(windows, node, settings, measured),
        conditions=_merged(context, context.conditions),
    )


def _resources(
    report: CapacityReport, node: int, settings: CapacitySettings, measured: Iterable[int]
) -> tuple[ResourceStatus, ...]:
    return tuple(
        ResourceStatus(
            name=settings.resources[i],
            usage=_fraction(report.usage[node, i]),
            base=_fraction(report.base[node, i]),
            cost=_fraction(report.cost[node, i]),
            non_pod=None if math.isnan(report.non_pod[node, i]) else _fraction(report.non_pod[node, i]),
        )
        for i in measured
    )


def _windows(
    windows: Mapping[str, WindowStatistics], node: int, settings: CapacitySettings, measured: Iterable[int]
) -> tuple[Window, ...]:
    return tuple(
        Window(
            resource=settings.resources[i],
            window=name,
            average=_fraction(window.average[node, i]),
            standard_deviation=_fraction(window.standard_deviation[node, i]),
            latest=_fraction(window.latest[node, i]),
            covered_seconds=int(window.covered_seconds[node, i]),
        )
        for i in measured
        for name, window in windows.items()
        if window.covered_seconds[node, i]
    )


def _merged(context: StatusContext, conditions: Iterable[Condition]) -> tuple[Mapping[str, Any], ...]:
    now, generation = format_timestamp(context.now), context.observed_generation
    return tuple(merge_conditions(context.before, conditions, now=now, observed_generation=generation))


def build_subspace(
    report: CapacityReport,
    node: int,
    settings: CapacitySettings,
    context: StatusContext,
    kinds: tuple[KindEntry, ...] = (),
) -> SubspaceStatus:
    """The local model of one node, without resources that were never measured, and what its pods cost by kind.

    The arguments are `build_status`'s. The conditions are its own; those of the context are not used.
    """
    measured = np.flatnonzero(~np.isnan(report.usage[node]))
    directions, sigma = decompose(report.local_moments[node][np.ix_(measured, measured)])
    warm = int(report.batches[node]) >= WARMUP_BATCHES
    ready = (
        Condition("Ready", "True", "Measured", "The model is learned from this node's own samples.")
        if warm
        else Condition("Ready", "False", "Warmup", "There are too few batches for a model yet.")
    )
    stalled = Condition("Stalled", "False", "AsExpected", NOT_STALLED)
    return SubspaceStatus(
        observed_at=context.observed_at,
        observed_generation=context.observed_generation,
        resources=tuple(settings.resources[i] for i in measured),
        sigma=model_numbers(sigma),
        directions=tuple(model_numbers(column) for column in directions.T),
        batches=int(report.batches[node]),
        kinds=kinds,
        conditions=_merged(context, [ready, _progress(warm), stalled]),
    )


def build_conditions(health: Health) -> list[Condition]:
    """The conditions Ready, TelemetryComplete, Reconciling and Stalled of a NodeCapacity."""
    by_reason: dict[ProblemReason, list[str]] = {}
    for problem in health.problems:
        messages = by_reason.setdefault(problem.reason, [])
        if problem.message not in messages:
            messages.append(problem.message)
    reasons = [reason for reason in _BY_GRAVITY if reason in by_reason]
    message = " ".join(sentence for reason in reasons for sentence in by_reason[reason])
    warm = health.batches >= WARMUP_BATCHES
    complete = (
        Condition("TelemetryComplete", "False", reasons[0], message)
        if reasons
        else Condition("TelemetryComplete", "True", "Complete", "Everything in spec.resources is measured.")
    )
    return [_ready(health, warm), complete, _progress(warm or not health.fresh), _stalled(health, message)]


def _ready(health: Health, warm: bool) -> Condition:
    if not health.pods_known:
        text = "The API server has not listed this node's pods, so pods can't be counted."
        return Condition("Ready", "False", "PodsUnknown", text)
    if not health.fresh:
        text = f"No resource could be measured for {health.silent_seconds:.0f} s; the numbers are those of observedAt."
        return Condition("Ready", "False", "NotMeasured", text)
    if not warm:
        text = f"Capacity is a first guess until {WARMUP_BATCHES} batches are in."
        return Condition("Ready", "False", "Warmup", text)
    return Condition("Ready", "True", "Measured", "Capacity is measured.")


def _stalled(health: Health, problems: str) -> Condition:
    if health.another is not None:
        text = f"Agent instance {health.another} also writes this object; the last write wins. Stop one of the two."
        return Condition("Stalled", "True", "AnotherAgent", text)
    if not health.pods_known:
        text = "The node's pods can't be listed; see the agent's log. Its service account needs list and watch on pods."
        return Condition("Stalled", "True", "PodsUnknown", text)
    if health.refused_spec is not None:
        text = f"This agent can't use the spec, and still uses the one before: {health.refused_spec}"
        return Condition("Stalled", "True", "InvalidSpec", text)
    if not health.fresh:
        return Condition("Stalled", "True", "NotMeasured", problems or "There is no valid sample.")
    return Condition("Stalled", "False", "AsExpected", NOT_STALLED)


def _progress(warm: bool) -> Condition:
    if warm:
        return Condition("Reconciling", "False", "Settled", NOT_RECONCILING)
    return Condition("Reconciling", "True", "Warmup", "The first batches are being measured.")


def _number(value: float) -> float:
    return round(float(value), _DIGITS)


def _fraction(value: float) -> float:
    return min(max(_number(value), 0.0), 1.0)
