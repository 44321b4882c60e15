"""NodeCapacity: what the agent of a node measured (status), and the object that carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.timestamps import format_micro_timestamp, parse_timestamp

CapacityMode = Literal["Quiet", "Slots", "Warmup"]
AgentMode = Literal["Machine", "Cgroup"]
PodEvents = Literal["Inotify", "Scan"]


@dataclass(frozen=True)
class ResourceStatus:
    """One resource of the node, as fractions of the node.

    Attributes:
        name: the resource.
        usage: smoothed usage y, pods and all else.
        non_pod: measured usage outside the pods' cgroup; None where it is unknown.
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
    """Statistics of one resource over the last minutes (source: docs/references.md, "Load watcher").

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
        capacity: pods the node can take now, on top of ``pod_count``, fractions allowed; negative by as many pods as
            the node runs too many.
        room: pods it could take one after the other, signed likewise; None if the agent does not publish it.
        large_pods: UIDs of the large pods, with the share of the node's CPUs that each takes.
        pod_share: share of the node's CPUs that one regular pod takes while it lives; None if the agent does not
            publish it.
        spare_share: share of the node's CPUs that is left for regular pods.
        system_cpu: share of the node's CPUs that it takes for itself, without what it does to start and end pods; None
            if the agent does not publish it.
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
        demand: tasks that run or wait for a CPU, per CPU; None if the agent does not publish it.
        demand_source: how ``demand`` was measured (``capacity.cpu_demand.DEMAND_SOURCES``).
        pods_wanting: pods that compute, or wait for a CPU altogether, per CPU, over some ten seconds; None if unknown.
        cpu_used: CPU utilisation over the same time; None if unknown.
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
    system_cpu: float | None = None
    over_provision: float = 0.0
    demand: float | None = None
    demand_source: str | None = None
    pods_wanting: float | None = None
    cpu_used: float | None = None
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
            system_cpu=status.get("systemCPU"),
            over_provision=status.get("overProvision", 0.0),
            demand=(status.get("cpuDemand") or {}).get("tasksPerCPU"),
            demand_source=(status.get("cpuDemand") or {}).get("source"),
            pods_wanting=(status.get("cpuDemand") or {}).get("podsPerCPU"),
            cpu_used=(status.get("cpuDemand") or {}).get("used"),
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
            "freePods": max(self.capacity, 0.0),
            "excessPods": max(-self.capacity, 0.0),
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
            **self._demand_to_raw(),
            **({} if self.pod_share is None else {"podShare": self.pod_share, "spareShare": self.spare_share}),
            **({} if self.system_cpu is None else {"systemCPU": self.system_cpu}),
            "largePods": [{"uid": uid, "cpu": share} for uid, share in self.large_pods.items()],
            "resources": [r.to_raw() for r in self.resources],
            "windows": [w.to_raw() for w in self.windows],
            "conditions": [dict(c) for c in self.conditions],
        }

    def _demand_to_raw(self) -> dict[str, Any]:
        if self.demand is None or self.demand_source is None:
            return {}
        optional = {"podsPerCPU": self.pods_wanting, "used": self.cpu_used}
        known = {name: value for name, value in optional.items() if value is not None}
        return {"cpuDemand": {"tasksPerCPU": self.demand, "source": self.demand_source, **known}}


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
