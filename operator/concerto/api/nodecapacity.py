"""NodeCapacity: how a node is to be measured (spec, a person's), and what its agent measured (status, the agent's).

The defaults of the settings below are the defaults of the CRD (crds/nodecapacities.yaml), which a test holds together:
an agent that has not yet read its object measures as one that has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from concerto.api.quantities import parse_duration, parse_quantity
from concerto.api.timestamps import format_micro_timestamp, parse_timestamp

CpuFormula = Literal["Damped", "Mean"]
MemoryFormula = Literal["Available", "FreeBuffersCached"]
MergeKind = Literal["Exact", "Streaming"]
SignalForm = Literal["Magnitude", "Proportion", "Mixture"]
EstimatorType = Literal["PerResource", "Signal"]
CapacityMode = Literal["Quiet", "Slots", "Warmup"]
AgentMode = Literal["Machine", "Cgroup"]
PodEvents = Literal["Inotify", "Scan"]


def _percent(spec: Mapping[str, Any], key: str, default: float) -> float:
    return spec[key] / 100 if key in spec else default


def _fraction(spec: Mapping[str, Any], key: str, default: float) -> float:
    return float(parse_quantity(spec[key])) if key in spec else default


def _seconds(spec: Mapping[str, Any], key: str, default: float) -> float:
    return parse_duration(spec[key]) if key in spec else default


@dataclass(frozen=True)
class Gauge:
    """A resource read from a file that holds one number in [0, 1].

    Attributes:
        name: its name in ``CapacitySettings.resources``.
        path: absolute path of the file on the node.
    """

    name: str
    path: str


@dataclass(frozen=True)
class SmoothingSettings:
    """Dynamic exponential moving average of each resource (seed 000, section 4.2.2; algorithms section 1).

    Attributes:
        slow: weight of a new sample while the value is steady, as a fraction.
        fast: weight of a new sample after a change is believed to last, as a fraction.
        delta: distance between sample and smoothed value that counts as a change, as a fraction of the node.
        patience_samples: samples in a row on the same side of the band after which the next ones are taken fast.
    """

    slow: float = 0.05
    fast: float = 0.5
    delta: float = 0.05
    patience_samples: int = 3

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.smoothing``."""
        return cls(
            slow=_percent(spec, "slowPercent", cls.slow),
            fast=_percent(spec, "fastPercent", cls.fast),
            delta=_percent(spec, "deltaPercent", cls.delta),
            patience_samples=spec.get("patienceSamples", cls.patience_samples),
        )


@dataclass(frozen=True)
class SignalSettings:
    """The capacity signal (seed 000 eq. 3.3; seed 003 eq. 3.10 and section 3.8.2).

    Attributes:
        form: which vector e stands for the expected load of one more unit.
        maximum: cap of the signal, reached when e is zero.
    """

    form: SignalForm = "Magnitude"
    maximum: float = 10_000.0

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.signal``."""
        return cls(form=spec.get("form", cls.form), maximum=float(spec.get("max", cls.maximum)))


@dataclass(frozen=True)
class EstimatorSettings:
    """How baseline and per-pod cost are learned (seed 000, section 4.2.4; algorithms section 3).

    Attributes:
        type: ``PerResource`` (ours) or ``Signal`` (the seed's two Kalman filters over the signal).
        initial_per_pod_cost: cost of a pod before any was seen: fraction of a node along its binding resource.
        idle_cost_growth: drift of the cost back towards the first guess while the node runs no pod, fraction of a node
            per second.
        process_noise: variance added to the estimate with each update (Q).
        measurement_noise: variance of one measurement (R).
        settle_time_seconds: floor of the time after which a new pod's load counts as evidence about cost.
    """

    type: EstimatorType = "PerResource"
    initial_per_pod_cost: float = 0.1
    idle_cost_growth: float = 0.025
    process_noise: float = 1e-4
    measurement_noise: float = 1e-2
    settle_time_seconds: float = 1.0

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.estimator``."""
        return cls(
            type=spec.get("type", cls.type),
            initial_per_pod_cost=_fraction(spec, "initialPerPodCost", cls.initial_per_pod_cost),
            idle_cost_growth=_fraction(spec, "idleCostGrowth", cls.idle_cost_growth),
            process_noise=_fraction(spec, "processNoise", cls.process_noise),
            measurement_noise=_fraction(spec, "measurementNoise", cls.measurement_noise),
            settle_time_seconds=_seconds(spec, "settleTime", cls.settle_time_seconds),
        )


@dataclass(frozen=True)
class SlotSettings:
    """How many pods a node should run and how fast it may start them (docs/capacity-control.md).

    Attributes:
        head_room: window over the pods that just keep the CPUs busy, as a ratio.
        adaptation: how fast head room follows idling, per share of idle time and life of a pod.
        idle: share of CPU time that may idle while the window is filled.
        turnaround_seconds: time from a pod's end to its successor's being counted; pods on their way fill it.
        extra_pods: pods added to the window, so that small numbers round up.
        growth: most pods over those that the node has run of late, as a ratio.
        pace: rate of starts over the rate of completions of a busy node, as a ratio.
        burst: share of the window that may be filled at once.
        memory_seconds: time over which evidence fades; longer for pods that live longer.
        memory_lives: the same in lives of a pod.
        first_share: share of the pods that the first guess of the cost admits which may start at once on an empty node.
        blind_per_second: pods that may start a second while none has completed.
        full: runnable threads per CPU from which a node that has seen no completion takes no more pods.
        shows: runnable threads of pods per CPU from which their load shows.
    """

    head_room: float = 1.65
    adaptation: float = 2.0
    idle: float = 0.05
    turnaround_seconds: float = 2.5
    extra_pods: float = 0.5
    growth: float = 3.0
    pace: float = 1.5
    burst: float = 0.4
    memory_seconds: float = 10.0
    memory_lives: float = 1.0
    first_share: float = 0.2
    blind_per_second: float = 0.5
    full: float = 0.9
    shows: float = 0.2

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.slots``."""
        return cls(
            head_room=_percent(spec, "headRoomPercent", cls.head_room),
            adaptation=_percent(spec, "adaptationPercent", cls.adaptation),
            idle=_percent(spec, "idlePercent", cls.idle),
            turnaround_seconds=_seconds(spec, "turnaround", cls.turnaround_seconds),
            extra_pods=_fraction(spec, "extraPods", cls.extra_pods),
            growth=_percent(spec, "growthPercent", cls.growth),
            pace=_percent(spec, "pacePercent", cls.pace),
            burst=_percent(spec, "burstPercent", cls.burst),
            memory_seconds=_seconds(spec, "memory", cls.memory_seconds),
            memory_lives=_percent(spec, "memoryLivesPercent", cls.memory_lives),
            first_share=_percent(spec, "firstPercent", cls.first_share),
            blind_per_second=_fraction(spec, "blindPerSecond", cls.blind_per_second),
            full=_percent(spec, "fullPercent", cls.full),
            shows=_percent(spec, "showsPercent", cls.shows),
        )


@dataclass(frozen=True)
class OverProvisionSettings:
    """TCP-style allowance on top of the measured capacity (seed 003, section 3.11).

    Attributes:
        enabled: whether the allowance is added at all.
        window: completions per window.
        threshold: growth of the windows' sum of squared completion times up to which the allowance may grow, as a
            ratio; beyond it the allowance halves.
        maximum: most pods the allowance may reach.
    """

    enabled: bool = False
    window: int = 16
    threshold: float = 1.1
    maximum: int = 8

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """``spec.overProvision``."""
        return cls(
            enabled=spec.get("enabled", cls.enabled),
            window=spec.get("window", cls.window),
            threshold=_percent(spec, "thresholdPercent", cls.threshold),
            maximum=spec.get("max", cls.maximum),
        )


@dataclass(frozen=True)
class CapacitySettings:
    """How one node is measured: NodeCapacity ``spec``, with its defaults.

    Attributes:
        resources: what is measured, in the order of every vector and matrix of the model (its length is m).
        gauges: files of the resources that are neither cpu, memory, io nor network.
        cpu_formula: ``Damped``: utilisation * (1 + pressure) / 2; ``Mean``: (utilisation + pressure) / 2.
        memory_formula: ``Available``: 1 - MemAvailable / MemTotal; ``FreeBuffersCached``: the seed's.
        smoothing: moving average of each resource.
        batch_samples: samples that make one batch (b).
        subspace_weight: weight w of a new batch against the local model, as a fraction.
        merge: how the nodes' models are merged into the view that the signal uses.
        signal: the capacity signal.
        estimator: baseline and per-pod cost.
        churn_window_seconds: time after a pod's start or end during which samples are not quiet.
        heartbeat_seconds: longest time between two publications of an unchanged status.
        slots: how many pods the node should run, and how fast it may start them.
        over_provision: allowance on top of the measured capacity.
        max_pods: most pod UIDs the status lists; pods beyond it stay charged as in flight.
    """

    resources: tuple[str, ...] = ("cpu", "memory")
    gauges: tuple[Gauge, ...] = ()
    cpu_formula: CpuFormula = "Damped"
    memory_formula: MemoryFormula = "Available"
    smoothing: SmoothingSettings = field(default_factory=SmoothingSettings)
    batch_samples: int = 10
    subspace_weight: float = 0.2
    merge: MergeKind = "Exact"
    signal: SignalSettings = field(default_factory=SignalSettings)
    estimator: EstimatorSettings = field(default_factory=EstimatorSettings)
    churn_window_seconds: float = 0.5
    heartbeat_seconds: float = 30.0
    slots: SlotSettings = field(default_factory=SlotSettings)
    over_provision: OverProvisionSettings = field(default_factory=OverProvisionSettings)
    max_pods: int = 512

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """NodeCapacity ``spec`` as the API server holds it; what is left out takes its default."""
        return cls(
            resources=tuple(spec.get("resources", cls.resources)),
            gauges=tuple(Gauge(g["name"], g["path"]) for g in spec.get("gauges", ())),
            cpu_formula=spec.get("cpuFormula", cls.cpu_formula),
            memory_formula=spec.get("memoryFormula", cls.memory_formula),
            smoothing=SmoothingSettings.from_raw(spec.get("smoothing", {})),
            batch_samples=spec.get("batchSamples", cls.batch_samples),
            subspace_weight=_percent(spec.get("subspace", {}), "weightPercent", cls.subspace_weight),
            merge=spec.get("merge", cls.merge),
            signal=SignalSettings.from_raw(spec.get("signal", {})),
            estimator=EstimatorSettings.from_raw(spec.get("estimator", {})),
            churn_window_seconds=_seconds(spec, "churnWindow", cls.churn_window_seconds),
            heartbeat_seconds=_seconds(spec, "heartbeat", cls.heartbeat_seconds),
            slots=SlotSettings.from_raw(spec.get("slots", {})),
            over_provision=OverProvisionSettings.from_raw(spec.get("overProvision", {})),
            max_pods=spec.get("maxPods", cls.max_pods),
        )


@dataclass(frozen=True)
class ResourceStatus:
    """One resource of the node, as fractions of the node.

    Attributes:
        name: the resource.
        usage: smoothed usage y, pods and all else.
        non_pod: measured usage outside the pods' cgroup; None where it can't be told apart.
        base: estimated usage without any pod.
        cost: estimated usage that one pod adds.
    """

    name: str
    usage: float
    base: float
    cost: float
    non_pod: float | None = None

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """An item of ``status.resources``."""
        return cls(
            name=raw["name"],
            usage=raw["usage"],
            base=raw.get("base", 0.0),
            cost=raw.get("cost", 0.0),
            non_pod=raw.get("nonPod"),
        )

    def to_raw(self) -> dict[str, Any]:
        """The item of ``status.resources``."""
        raw: dict[str, Any] = {"name": self.name, "usage": self.usage, "base": self.base, "cost": self.cost}
        if self.non_pod is not None:
            raw["nonPod"] = self.non_pod
        return raw


@dataclass(frozen=True)
class Window:
    """Statistics of one resource over the last minutes (load-watcher's windows; seed 001).

    Attributes:
        resource: the resource.
        window: ``5m``, ``10m`` or ``15m``.
        average: mean of the 1-second means, fraction of the node.
        standard_deviation: their population standard deviation, fraction of the node.
        latest: the last 1-second mean, fraction of the node.
        covered_seconds: how much of the window has been measured.
    """

    resource: str
    window: str
    average: float
    standard_deviation: float
    latest: float
    covered_seconds: int

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """An item of ``status.windows``."""
        return cls(
            resource=raw["resource"],
            window=raw["window"],
            average=raw["average"],
            standard_deviation=raw["standardDeviation"],
            latest=raw["latest"],
            covered_seconds=raw["coveredSeconds"],
        )

    def to_raw(self) -> dict[str, Any]:
        """The item of ``status.windows``."""
        return {
            "resource": self.resource,
            "window": self.window,
            "average": self.average,
            "standardDeviation": self.standard_deviation,
            "latest": self.latest,
            "coveredSeconds": self.covered_seconds,
        }


METRICS_AUDIENCE = "agents.concerto.dev"
"""Of tokens that open the metrics of pods at every node; see `metrics_audience`."""


def metrics_audience(node: str) -> str:
    """The audience of tokens that open the metrics of pods at one node, and nowhere else."""
    return f"{METRICS_AUDIENCE}/{node}"


@dataclass(frozen=True)
class MetricsEndpoint:
    """Where an agent serves metrics of its node's pods.

    Attributes:
        port: TCP port.
        certificate_sha256: fingerprint of the certificate it serves with, hexadecimal.
        address: IP address; empty for the node's own.
    """

    port: int
    certificate_sha256: str
    address: str = ""

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``status.agent.metrics``."""
        return cls(raw["port"], raw["certificateSHA256"], raw.get("address", ""))

    def to_raw(self) -> dict[str, Any]:
        """``status.agent.metrics``."""
        raw = {"port": self.port, "certificateSHA256": self.certificate_sha256}
        return {**raw, "address": self.address} if self.address else raw


@dataclass(frozen=True)
class AgentInfo:
    """Who measured.

    Attributes:
        version: the agent's version.
        instance: random name of this start of the agent; a new one means that estimates began anew.
        mode: ``Machine`` (the machine's /proc) or ``Cgroup`` (one cgroup's files).
        pod_events: how pods are seen to come and go.
        metrics: where metrics of the node's pods are served; None if nowhere.
    """

    version: str
    instance: str
    mode: AgentMode
    pod_events: PodEvents
    metrics: MetricsEndpoint | None = None

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``status.agent``."""
        metrics = MetricsEndpoint.from_raw(raw["metrics"]) if "metrics" in raw else None
        return cls(raw["version"], raw["instance"], raw["mode"], raw["podEvents"], metrics)

    def to_raw(self) -> dict[str, Any]:
        """``status.agent``."""
        raw: dict[str, Any] = {"version": self.version, "instance": self.instance}
        raw |= {"mode": self.mode, "podEvents": self.pod_events}
        return raw | ({"metrics": self.metrics.to_raw()} if self.metrics else {})


@dataclass(frozen=True)
class NodeCapacityStatus:
    """What the agent measured, at one instant.

    Attributes:
        observed_at: when it was measured, seconds since the epoch by the node's clock.
        observed_generation: generation of the spec it was measured with.
        agent: who measured.
        capacity: pods the node can take now, on top of ``pod_count``; at least 0, fractions allowed.
        room: pods it could take one after the other; None from an agent that does not tell.
        large_pods: UIDs of the pods that are no unit of it, with the share of the node's CPUs that each takes.
        pod_share: share of them that one of the other pods takes while it lives; None from an agent that does not tell.
        spare_share: share of them that is left for those.
        capacity_mode: how ``capacity`` was found: from quiet headroom, from slots (b / c - n), or while warming up.
        signal: the capacity signal.
        baseline: estimated signal of the node without pods.
        per_pod_cost: estimated signal units one pod takes.
        pod_count: pods counted (n): neither static nor of a DaemonSet.
        young_pods: how many of them are too young for their load to show.
        observed_pod_uids: exactly the UIDs counted in ``pod_count``, at most ``spec.maxPods``.
        settle_time_seconds: learned time that a new pod takes to reach its level.
        reject: Pronto's reject-job signal, for comparison.
        over_provision: allowance contained in ``capacity``, pods.
        resources: per resource, in the order of ``spec.resources``.
        windows: per resource and window.
        conditions: Ready, TelemetryComplete, Reconciling, Stalled; as the API holds them.
    """

    observed_at: float
    observed_generation: int
    agent: AgentInfo
    capacity: float
    capacity_mode: CapacityMode
    signal: float
    baseline: float
    per_pod_cost: float
    pod_count: int
    young_pods: int
    observed_pod_uids: tuple[str, ...]
    settle_time_seconds: float
    reject: bool = False
    room: float | None = None
    large_pods: Mapping[str, float] = field(default_factory=dict)
    pod_share: float | None = None
    spare_share: float = 1.0
    over_provision: float = 0.0
    resources: tuple[ResourceStatus, ...] = ()
    windows: tuple[Window, ...] = ()
    conditions: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def from_raw(cls, status: Mapping[str, Any]) -> Self:
        """NodeCapacity ``status``; it must have been published by an agent (see ``NodeCapacity.from_raw``)."""
        return cls(
            observed_at=parse_timestamp(status["observedAt"]),
            observed_generation=status.get("observedGeneration", 0),
            agent=AgentInfo.from_raw(status["agent"]),
            capacity=status["capacity"],
            capacity_mode=status["capacityMode"],
            signal=status["signal"],
            baseline=status["baseline"],
            per_pod_cost=status["perPodCost"],
            pod_count=status["podCount"],
            young_pods=status["youngPods"],
            observed_pod_uids=tuple(status["observedPodUIDs"]),
            settle_time_seconds=status["settleTimeSeconds"],
            reject=status.get("reject", False),
            room=status.get("room"),
            large_pods={pod["uid"]: pod["cpu"] for pod in status.get("largePods", ())},
            pod_share=status.get("podShare"),
            spare_share=status.get("spareShare", 1.0),
            over_provision=status.get("overProvision", 0.0),
            resources=tuple(ResourceStatus.from_raw(r) for r in status.get("resources", ())),
            windows=tuple(Window.from_raw(w) for w in status.get("windows", ())),
            conditions=tuple(status.get("conditions", ())),
        )

    def to_raw(self) -> dict[str, Any]:
        """NodeCapacity ``status``, as it is written."""
        return {
            "observedAt": format_micro_timestamp(self.observed_at),
            "observedGeneration": self.observed_generation,
            "agent": self.agent.to_raw(),
            "capacity": self.capacity,
            **({} if self.room is None else {"room": self.room}),
            "capacityMode": self.capacity_mode,
            "signal": self.signal,
            "baseline": self.baseline,
            "perPodCost": self.per_pod_cost,
            "podCount": self.pod_count,
            "youngPods": self.young_pods,
            "observedPodUIDs": list(self.observed_pod_uids),
            "settleTimeSeconds": self.settle_time_seconds,
            "reject": self.reject,
            "overProvision": self.over_provision,
            **({} if self.pod_share is None else {"podShare": self.pod_share, "spareShare": self.spare_share}),
            "largePods": [{"uid": uid, "cpu": share} for uid, share in self.large_pods.items()],
            "resources": [r.to_raw() for r in self.resources],
            "windows": [w.to_raw() for w in self.windows],
            "conditions": [dict(c) for c in self.conditions],
        }


@dataclass(frozen=True)
class NodeCapacity:
    """A NodeCapacity object, named after its node.

    Attributes:
        name: the node's name.
        uid: the object's UID.
        resource_version: its version, recorded by the assignments decided on it.
        generation: generation of its spec.
        settings: its spec.
        status: what its agent measured; None while no agent has published.
    """

    name: str
    uid: str
    resource_version: str
    generation: int
    settings: CapacitySettings
    status: NodeCapacityStatus | None

    @classmethod
    def from_raw(cls, obj: Mapping[str, Any]) -> Self:
        """The object as the API server holds it."""
        metadata = obj["metadata"]
        status = obj.get("status") or {}
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            resource_version=metadata.get("resourceVersion", ""),
            generation=metadata.get("generation", 0),
            settings=CapacitySettings.from_raw(obj.get("spec", {})),
            status=NodeCapacityStatus.from_raw(status) if "observedAt" in status else None,
        )
