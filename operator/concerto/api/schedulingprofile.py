"""SchedulingProfile: how pods with its scheduler name are placed.

The defaults below are those of the CRD (crds/schedulingprofiles.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from concerto.api.metric_provider import MetricProviderSettings
from concerto.api.quantities import number_of, parse_duration, parse_quantity
from concerto.api.score_arguments import ScoreSettings
from concerto.api.selectors import NodeSelector, NodeSelectorTerm

MetricsPolicy = Literal["FallbackToRequests", "Avoid"]
TieBreaking = Literal["Random", "FirstByName"]
PreemptionPolicy = Literal["PreemptLowerPriority", "Never"]
LoadWindow = Literal["5m", "10m", "15m"]
RequestsStrategy = Literal["ByScore", "MostAllocated", "LeastAllocated"]
CPUPolicy = Literal["Balanced", "MaximumUtilization"]
CPUFeature = Literal["PhysicalCores", "MemoryBoundExclusiveSockets", "BestEffortSharedCPUs"]

DEFAULT_FILTERS = (
    "NodeName", "NodeUnschedulable", "NodeReady", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResources",
    "UnsupportedConstraints", "PodCapacity", "WorkloadAware",
)  # fmt: skip

DEFAULT_SCORES = (
    ScoreSettings("Capacity", 2),
    ScoreSettings("TaintToleration", 3),
    ScoreSettings("NodeAffinity", 2),
    ScoreSettings("PodTopologySpread", 2),
    ScoreSettings("InterPodAffinity", 2),
    ScoreSettings("ImageLocality", 1),
    ScoreSettings("VolumeBinding", 1),
)
"""kube-scheduler's weights; Capacity has those of NodeResourcesFit and NodeResourcesBalancedAllocation together."""


@dataclass(frozen=True)
class LoadSettings:
    """How the load of a node is measured and predicted.

    Source: Trimaran (docs/references.md, "Load-aware scores").

    Attributes:
        window: over which load is averaged: ``5m``, ``10m`` or ``15m``.
        request_multiplier: predicted cpu of a container without a limit, over its request.
        default_cpu_millicores: predicted cpu of a container with neither limit nor request.
        best_effort_cpu_millicores: predicted cpu of a BestEffort pod.
        provider: schedulerName of the profile whose metric provider measures the load; empty for the agents.
        min_measured_percent: percentage of the feasible nodes that must be measured. Below it, and where no node is
            measured, load-aware scores go by requests.
        requests_strategy: how they do. ``ByScore``: MostAllocated (best fit) for a score that packs, LeastAllocated for
            one that spreads.
    """

    window: LoadWindow = "5m"
    request_multiplier: float = 1.5
    default_cpu_millicores: float = 1000.0
    best_effort_cpu_millicores: float = 1.0
    provider: str = ""
    min_measured_percent: int = 50
    requests_strategy: RequestsStrategy = "ByScore"

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.load``."""
        return cls(
            window=spec.get("window", cls.window),
            request_multiplier=number_of(spec, "requestMultiplier", cls.request_multiplier),
            default_cpu_millicores=1000 * number_of(spec, "defaultCPURequest", cls.default_cpu_millicores / 1000),
            best_effort_cpu_millicores=1000
            * number_of(spec, "bestEffortCPURequest", cls.best_effort_cpu_millicores / 1000),
            min_measured_percent=spec.get("minMeasuredPercent", cls.min_measured_percent),
            requests_strategy=spec.get("requestsStrategy", cls.requests_strategy),
        )


@dataclass(frozen=True)
class WorkloadAwareSettings:
    """How pods with a workload type get their CPUs.

    Source: Stefanakis, section 6.2.3 (docs/references.md, "CPU placement").

    Attributes:
        policy: whether nodes with the most or with the least free CPUs for the workload score higher.
        features: the features that are on.
        prepare_timeout_seconds: time for a node's agent to prepare a pod's CPUs. After it the pod is scheduled again.
    """

    policy: CPUPolicy = "Balanced"
    features: frozenset[CPUFeature] = frozenset()
    prepare_timeout_seconds: float = 10.0

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.workloadAware``."""
        return cls(
            policy=spec.get("policy", cls.policy),
            features=frozenset(spec.get("features") or ()),
            prepare_timeout_seconds=(
                parse_duration(spec["prepareTimeout"]) if "prepareTimeout" in spec else cls.prepare_timeout_seconds
            ),
        )


@dataclass(frozen=True)
class PreemptionSettings:
    """Which pods are evicted for pods of higher priority.

    Attributes:
        measured_capacity: whether pods are evicted for one that lacks nothing but measured capacity.
    """

    measured_capacity: PreemptionPolicy = "PreemptLowerPriority"

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.preemption``."""
        return cls(spec.get("measuredCapacity", cls.measured_capacity))


@dataclass(frozen=True)
class ProfileSettings:
    """SchedulingProfile ``spec``.

    Attributes:
        scheduler_name: it applies to the pods with this ``spec.schedulerName``.
        filters: names of the filters, in the order in which they run.
        scores: the scores, with their weights and arguments.
        metrics_policy: what happens to a node whose telemetry is missing or older than ``stale_after_seconds``.
        stale_after_seconds: maximum age of telemetry that is used.
        large_pod_wait_seconds: how long a large pod waits for a node with enough free CPU.
        failed_start_wait_seconds: how long a pod whose start fails keeps its measured capacity. The least of all
            profiles in use holds for every pod.
        heartbeats_missed: number of missed heartbeats after which an agent counts as not reporting.
        admit_fraction: free capacity that a node needs to get one more pod, in pods.
        added_affinity: alternatives of node selectors, one of which every pod's node must match; None for all nodes.
        added_preferences: (weight, term) of nodes that every pod of the profile prefers, beside its own.
        tie_breaking: how one of several best nodes is chosen.
        max_units_per_namespace: maximum sum of units that the reservations of one namespace hold.
        unbound_ttl_seconds: time after which a placement without a binding is given up.
        load: how the load of a node is measured and predicted for load-aware scores.
        workload_aware: how pods with a workload type get their CPUs.
        metric_provider: the source of nodes' load for load-aware scores.
        preemption: which pods are evicted for pods of higher priority.
        bind_timeout_seconds: time in which the claims of a pod must be bound before the pod is, as in kube-scheduler's
            VolumeBindingArgs.
    """

    scheduler_name: str
    filters: tuple[str, ...] = DEFAULT_FILTERS
    scores: tuple[ScoreSettings, ...] = DEFAULT_SCORES
    metrics_policy: MetricsPolicy = "FallbackToRequests"
    stale_after_seconds: float = 300.0
    large_pod_wait_seconds: float = 120.0
    failed_start_wait_seconds: float = 120.0
    heartbeats_missed: int = 3
    admit_fraction: float = 1.0
    tie_breaking: TieBreaking = "Random"
    max_units_per_namespace: int = 100
    unbound_ttl_seconds: float = 60.0
    load: LoadSettings = LoadSettings()
    workload_aware: WorkloadAwareSettings = WorkloadAwareSettings()
    metric_provider: MetricProviderSettings = field(default_factory=MetricProviderSettings)
    preemption: PreemptionSettings = PreemptionSettings()
    bind_timeout_seconds: float = 600.0
    added_affinity: NodeSelector | None = None
    added_preferences: tuple[tuple[int, NodeSelectorTerm], ...] = ()

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """SchedulingProfile ``spec`` as the API server holds it; what is left out takes its default.

        Raises:
            ValueError: a part of it is not valid; the message names the field.
        """
        reservations = spec.get("reservations") or {}
        load = LoadSettings.from_raw(spec.get("load") or {})
        provider = MetricProviderSettings.from_raw(spec.get("metricProvider") or {})
        if provider.type != "Agents":
            load = replace(load, provider=spec["schedulerName"])
        scores = tuple(ScoreSettings.from_raw(s) for s in spec["scores"]) if "scores" in spec else cls.scores
        workload_aware = WorkloadAwareSettings.from_raw(spec.get("workloadAware") or {})
        added = spec.get("addedAffinity") or {}
        return cls(
            scheduler_name=spec["schedulerName"],
            filters=tuple(f["name"] for f in spec["filters"]) if "filters" in spec else cls.filters,
            scores=scores,
            metrics_policy=spec.get("metricsPolicy", cls.metrics_policy),
            stale_after_seconds=parse_duration(spec["staleAfter"]) if "staleAfter" in spec else cls.stale_after_seconds,
            large_pod_wait_seconds=(
                parse_duration(spec["largePodWait"]) if "largePodWait" in spec else cls.large_pod_wait_seconds
            ),
            failed_start_wait_seconds=(
                parse_duration(spec["failedStartWait"]) if "failedStartWait" in spec else cls.failed_start_wait_seconds
            ),
            heartbeats_missed=spec.get("heartbeatsMissed", cls.heartbeats_missed),
            admit_fraction=float(parse_quantity(spec.get("admitFraction", "1"))),
            tie_breaking=spec.get("tieBreaking", cls.tie_breaking),
            max_units_per_namespace=reservations.get("maxUnitsPerNamespace", cls.max_units_per_namespace),
            unbound_ttl_seconds=parse_duration(reservations.get("unboundTTL", "60s")),
            load=load,
            metric_provider=provider,
            workload_aware=workload_aware,
            preemption=PreemptionSettings.from_raw(spec.get("preemption") or {}),
            added_affinity=NodeSelector.from_raw(None, added) if "nodeSelectorTerms" in added else None,
            added_preferences=tuple(
                (term["weight"], NodeSelectorTerm.from_raw(term["preference"]))
                for term in added.get("preferredSchedulingTerms") or ()
            ),
            bind_timeout_seconds=parse_duration((spec.get("volumeBinding") or {}).get("bindTimeout", "10m")),
        )
