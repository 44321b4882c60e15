"""SchedulingProfile: how pods with its scheduler name are placed.

The defaults below are those of the CRD (crds/schedulingprofiles.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from concerto.api.quantities import parse_duration, parse_quantity

MetricsPolicy = Literal["FallbackToRequests", "Avoid"]
TieBreaking = Literal["Random", "FirstByName"]
LoadWindow = Literal["5m", "10m", "15m"]
RiskFormula = Literal["KEP", "Upstream"]
FitStrategy = Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]
ProviderType = Literal["Agents", "KubernetesMetricsServer", "Prometheus"]
Statistic = Literal["average", "deviation", "latest"]

STATISTICS: dict[str, Statistic] = {"average": "average", "standardDeviation": "deviation", "latest": "latest"}
"""What a metric may tell of a resource, by its name in objects."""
CPUPolicy = Literal["Balanced", "MaximumUtilization"]
CPUFeature = Literal["PhysicalCores", "MemoryBoundExclusiveSockets", "BestEffortSharedCPUs"]

DEFAULT_FILTERS = (
    "NodeName", "NodeUnschedulable", "NodeReady", "TaintToleration", "NodeAffinity", "NodeResources", "NodePorts",
    "UnsupportedConstraints", "PodCapacity", "WorkloadAware",
)  # fmt: skip


def _number(raw: Mapping[str, Any], key: str, default: float) -> float:
    return float(parse_quantity(raw[key])) if key in raw else default


@dataclass(frozen=True)
class LoadSettings:
    """How the load of a node is told, by measurement and by prediction (seed 001; algorithms section 5).

    Attributes:
        window: over which load is averaged: ``5m``, ``10m`` or ``15m``.
        request_multiplier: predicted cpu of a container without a limit, over its request.
        default_cpu_millicores: predicted cpu of a container with neither limit nor request.
        best_effort_cpu_millicores: predicted cpu of a BestEffort pod.
        provider: whose metrics are meant: the schedulerName of the profile that has a provider; empty: the agents'.
    """

    window: LoadWindow = "5m"
    request_multiplier: float = 1.5
    default_cpu_millicores: float = 1000.0
    best_effort_cpu_millicores: float = 1.0
    provider: str = ""

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.load``."""
        return cls(
            window=spec.get("window", cls.window),
            request_multiplier=_number(spec, "requestMultiplier", cls.request_multiplier),
            default_cpu_millicores=1000 * _number(spec, "defaultCPURequest", cls.default_cpu_millicores / 1000),
            best_effort_cpu_millicores=1000
            * _number(spec, "bestEffortCPURequest", cls.best_effort_cpu_millicores / 1000),
        )


@dataclass(frozen=True)
class WorkloadAwareSettings:
    """How pods that say what kind of workload they are get their CPUs (004 section 6.2.3).

    Attributes:
        policy: whether nodes with most or with least room for the workload are better.
        features: which of 004's features are on.
        prepare_timeout_seconds: how long a node's agent has to get ready for a pod's CPUs before the pod is placed
            again.
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
class TargetLoadPackingArgs:
    """Arguments of TargetLoadPacking.

    Attributes:
        target_utilization: X: up to this percentage of cpu nodes are filled, and above it load is spread.
    """

    target_utilization: int = 40

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``targetLoadPacking`` of a score."""
        return cls(raw.get("targetUtilization", cls.target_utilization))


@dataclass(frozen=True)
class LoadVariationRiskBalancingArgs:
    """Arguments of LoadVariationRiskBalancing.

    Attributes:
        formula: ``KEP`` (seed 001) or ``Upstream``, which the plugin in use elsewhere has.
        safe_variance_margin: how many standard deviations are kept free (the KEP's ita).
        safe_variance_sensitivity: root that is taken of the deviation; ``Upstream`` only.
    """

    formula: RiskFormula = "KEP"
    safe_variance_margin: float = 1.0
    safe_variance_sensitivity: float = 1.0

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``loadVariationRiskBalancing`` of a score."""
        return cls(
            raw.get("formula", cls.formula),
            _number(raw, "safeVarianceMargin", cls.safe_variance_margin),
            _number(raw, "safeVarianceSensitivity", cls.safe_variance_sensitivity),
        )


@dataclass(frozen=True)
class LowRiskOverCommitmentArgs:
    """Arguments of LowRiskOverCommitment.

    Attributes:
        smoothing_window: samples that metrics are smoothed over: their variance is taken to be that many times larger.
        limit_risk_weight: weight of the risk by limits, 0 to 1; the risk by load has the rest.
    """

    smoothing_window: int = 5
    limit_risk_weight: float = 0.5

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``lowRiskOverCommitment`` of a score."""
        percent = raw.get("limitRiskWeightPercent")
        return cls(
            raw.get("smoothingWindowSize", cls.smoothing_window),
            cls.limit_risk_weight if percent is None else percent / 100,
        )


@dataclass(frozen=True)
class ShapePoint:
    """A point of RequestedToCapacityRatio's shape.

    Attributes:
        utilization: percent that is requested.
        score: 0 to 10.
    """

    utilization: int
    score: int


@dataclass(frozen=True)
class NodeResourcesFitArgs:
    """Arguments of NodeResourcesFit.

    Attributes:
        strategy: what is better.
        resources: (name, weight) of what is counted.
        shape: for RequestedToCapacityRatio, by rising utilisation; empty for the others.
    """

    strategy: FitStrategy = "LeastAllocated"
    resources: tuple[tuple[str, int], ...] = (("cpu", 1), ("memory", 1))
    shape: tuple[ShapePoint, ...] = ()

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``nodeResourcesFit`` of a score.

        Raises:
            ValueError: RequestedToCapacityRatio without a shape (the CRD refuses it).
        """
        resources = raw.get("resources")
        shape = tuple(ShapePoint(p["utilization"], p["score"]) for p in raw.get("shape") or ())
        strategy: FitStrategy = raw.get("strategy", cls.strategy)
        if strategy == "RequestedToCapacityRatio" and not shape:
            raise ValueError("nodeResourcesFit.shape is missing, which RequestedToCapacityRatio needs")
        return cls(
            strategy,
            cls.resources if resources is None else tuple((r["name"], r.get("weight", 1)) for r in resources),
            tuple(sorted(shape, key=lambda p: p.utilization)),
        )


@dataclass(frozen=True)
class ScoreSettings:
    """A score of a profile. Of the arguments only its own mean something.

    Attributes:
        name: of the plugin.
        weight: what its score is multiplied by.
        target_load_packing: arguments of TargetLoadPacking.
        load_variation_risk_balancing: arguments of LoadVariationRiskBalancing.
        low_risk_over_commitment: arguments of LowRiskOverCommitment.
        node_resources_fit: arguments of NodeResourcesFit.
    """

    name: str
    weight: int = 1
    target_load_packing: TargetLoadPackingArgs = TargetLoadPackingArgs()
    load_variation_risk_balancing: LoadVariationRiskBalancingArgs = LoadVariationRiskBalancingArgs()
    low_risk_over_commitment: LowRiskOverCommitmentArgs = LowRiskOverCommitmentArgs()
    node_resources_fit: NodeResourcesFitArgs = NodeResourcesFitArgs()

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """An item of ``spec.scores``."""
        return cls(
            raw["name"],
            raw.get("weight", cls.weight),
            TargetLoadPackingArgs.from_raw(raw.get("targetLoadPacking") or {}),
            LoadVariationRiskBalancingArgs.from_raw(raw.get("loadVariationRiskBalancing") or {}),
            LowRiskOverCommitmentArgs.from_raw(raw.get("lowRiskOverCommitment") or {}),
            NodeResourcesFitArgs.from_raw(raw.get("nodeResourcesFit") or {}),
        )


@dataclass(frozen=True)
class PrometheusQuery:
    """One query, whose answer has one series for each node.

    Attributes:
        resource: ``cpu`` or ``memory``.
        statistic: what of it the query tells.
        expression: PromQL; its values are parts of the machine, 0 to 1.
    """

    resource: str
    statistic: Statistic
    expression: str

    @property
    def name(self) -> str:
        """As it stands under ``queries``: ``cpu.average``, say."""
        return f"{self.resource}.{next(k for k, v in STATISTICS.items() if v == self.statistic)}"


@dataclass(frozen=True)
class PrometheusSettings:
    """``spec.metricProvider.prometheus``.

    Attributes:
        address: where it is; its API is below this.
        queries: what to ask.
        node_label: label of the answers' series that says which node they are of.
        headers: (name, value) to send along.
        secret_name: Secret of the operator's namespace with what is secret.
        authorization: (``Bearer`` or ``Basic``, key in the Secret); None: nobody asks for it.
        ca_key: key in the Secret of the certificates that are trusted; empty: the machine's.
        insecure_skip_verify: whether any certificate will do.
    """

    address: str
    queries: tuple[PrometheusQuery, ...]
    node_label: str = "node"
    headers: tuple[tuple[str, str], ...] = ()
    secret_name: str = "concerto-prometheus"  # not a secret but the name of one
    authorization: tuple[str, str] | None = None
    ca_key: str = ""
    insecure_skip_verify: bool = False

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: there is no query (the CRD refuses it).
        """
        queries = tuple(
            PrometheusQuery(resource, STATISTICS[name], expression)
            for resource, by_name in raw["queries"].items()
            for name, expression in by_name.items()
        )
        if not queries:
            raise ValueError("metricProvider.prometheus.queries is empty")
        authorization, tls = raw.get("authorization"), raw.get("tls") or {}
        return cls(
            address=raw["address"].rstrip("/"),
            queries=queries,
            node_label=raw.get("nodeLabel", cls.node_label),
            headers=tuple((h["name"], h["value"]) for h in raw.get("headers") or ()),
            secret_name=raw.get("secretName", cls.secret_name),
            authorization=None
            if authorization is None
            else (authorization.get("type", "Bearer"), authorization.get("key", "token")),
            ca_key=tls.get("caKey", cls.ca_key),
            insecure_skip_verify=tls.get("insecureSkipVerify", cls.insecure_skip_verify),
        )


@dataclass(frozen=True)
class MetricProviderSettings:
    """``spec.metricProvider``: who measures the nodes for load-aware scores.

    Attributes:
        type: the agents, or who is asked instead.
        interval_seconds: between two times of asking.
        timeout_seconds: for an answer.
        prometheus: for that type.
    """

    type: ProviderType = "Agents"
    interval_seconds: float = 15.0
    timeout_seconds: float = 5.0
    prometheus: PrometheusSettings | None = None

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: type Prometheus without its settings (the CRD refuses it).
        """
        kind: ProviderType = raw.get("type", cls.type)
        if kind == "Prometheus" and "prometheus" not in raw:
            raise ValueError("metricProvider.prometheus is missing, which type Prometheus needs")
        return cls(
            kind,
            parse_duration(raw["interval"]) if "interval" in raw else cls.interval_seconds,
            parse_duration(raw["timeout"]) if "timeout" in raw else cls.timeout_seconds,
            PrometheusSettings.from_raw(raw["prometheus"]) if kind == "Prometheus" else None,
        )


@dataclass(frozen=True)
class ProfileSettings:
    """SchedulingProfile ``spec``.

    Attributes:
        scheduler_name: the pods it is for: those with this ``spec.schedulerName``.
        filters: names of the filters, in the order in which they run.
        scores: the scores, with their weights and arguments.
        metrics_policy: what happens to a node whose telemetry is missing or older than ``stale_after_seconds``.
        stale_after_seconds: age up to which a silent node's last telemetry is still used.
        large_pod_wait_seconds: how long a pod whose kind takes half a node waits for a node with so much CPU left.
        heartbeats_missed: heartbeats without a word after which a node counts as silent.
        admit_fraction: room that a node must have left to be given one more pod, in pods.
        tie_breaking: which of several best nodes is taken.
        max_units_per_namespace: most units that the standing reservations of one namespace may hold together.
        unbound_ttl_seconds: time after which a placement that could not be carried out is given up.
        load: how load-aware scores are told the load of a node.
        workload_aware: how pods with a workload type get their CPUs.
        metric_provider: who measures the load of nodes for load-aware scores.
    """

    scheduler_name: str
    filters: tuple[str, ...] = DEFAULT_FILTERS
    scores: tuple[ScoreSettings, ...] = (ScoreSettings("Capacity"),)
    metrics_policy: MetricsPolicy = "FallbackToRequests"
    stale_after_seconds: float = 600.0
    large_pod_wait_seconds: float = 120.0
    heartbeats_missed: int = 3
    admit_fraction: float = 1.0
    tie_breaking: TieBreaking = "Random"
    max_units_per_namespace: int = 100
    unbound_ttl_seconds: float = 60.0
    load: LoadSettings = LoadSettings()
    workload_aware: WorkloadAwareSettings = WorkloadAwareSettings()
    metric_provider: MetricProviderSettings = MetricProviderSettings()

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """SchedulingProfile ``spec`` as the API server holds it; what is left out takes its default."""
        reservations = spec.get("reservations") or {}
        load = LoadSettings.from_raw(spec.get("load") or {})
        provider = MetricProviderSettings.from_raw(spec.get("metricProvider") or {})
        if provider.type != "Agents":
            load = replace(load, provider=spec["schedulerName"])
        return cls(
            scheduler_name=spec["schedulerName"],
            filters=tuple(f["name"] for f in spec["filters"]) if "filters" in spec else cls.filters,
            scores=tuple(ScoreSettings.from_raw(s) for s in spec["scores"]) if "scores" in spec else cls.scores,
            metrics_policy=spec.get("metricsPolicy", cls.metrics_policy),
            stale_after_seconds=parse_duration(spec["staleAfter"]) if "staleAfter" in spec else cls.stale_after_seconds,
            large_pod_wait_seconds=(
                parse_duration(spec["largePodWait"]) if "largePodWait" in spec else cls.large_pod_wait_seconds
            ),
            heartbeats_missed=spec.get("heartbeatsMissed", cls.heartbeats_missed),
            admit_fraction=float(parse_quantity(spec.get("admitFraction", "1"))),
            tie_breaking=spec.get("tieBreaking", cls.tie_breaking),
            max_units_per_namespace=reservations.get("maxUnitsPerNamespace", cls.max_units_per_namespace),
            unbound_ttl_seconds=parse_duration(reservations.get("unboundTTL", "60s")),
            load=load,
            metric_provider=provider,
            workload_aware=WorkloadAwareSettings.from_raw(spec.get("workloadAware") or {}),
        )
