"""NodeCapacity ``spec``: how a node is measured, as settings with the defaults of the CRD.

A test compares the defaults with crds/nodecapacities.yaml, so that an agent that has not yet read its object measures
as one that has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from concerto.api.quantities import parse_duration, parse_quantity

CpuFormula = Literal["Damped", "Mean"]
MemoryFormula = Literal["Available", "FreeBuffersCached"]
MergeKind = Literal["Exact", "Streaming"]
SignalForm = Literal["Magnitude", "Proportion", "Mixture"]
EstimatorType = Literal["PerResource", "Signal"]


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
    """Dynamic exponential moving average of each resource (source: docs/references.md, "Smoothing").

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
    """The capacity signal (source: docs/references.md, "Capacity signal").

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
    """How baseline and per-pod cost are learned (source: Carico, section 4.2.4; docs/capacity-control.md).

    Attributes:
        type: ``PerResource`` (ours) or ``Signal`` (Carico's two Kalman filters over the signal).
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
    """TCP-style allowance on top of the measured capacity (source: docs/references.md, "Over-provision").

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
        memory_formula: ``Available``: 1 - MemAvailable / MemTotal; ``FreeBuffersCached``: Carico's.
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
