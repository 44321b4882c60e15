"""What defines a run: nodes, jobs, latencies of the API server, and failures."""

from __future__ import annotations

from dataclasses import dataclass, field

from concerto.simulation.scheduling.node_model import GIB, NodeModelSettings
from concerto.simulation.scheduling.workloads import JobSpec


@dataclass(frozen=True)
class NodeSpec:
    """A group of equal nodes.

    Attributes:
        count: how many.
        cores: CPUs of each.
        memory_bytes: memory of each.
        max_pods: the kubelet's limit.
        reserved_millicores: CPU requested by system pods, for policies that count requests.
        reserved_memory_bytes: the same for memory.
    """

    count: int = 19
    cores: float = 4.0
    memory_bytes: float = 8 * GIB
    max_pods: int = 110
    reserved_millicores: int = 0
    reserved_memory_bytes: float = 0.0


@dataclass(frozen=True)
class ApiSettings:
    """Latencies of the API server and of its watches.

    Attributes:
        write_seconds: bounds of the time from sending a write to its effect.
        watch_seconds: bounds of the time from a change to its watch event.
        cycle_seconds: minimum time between two scheduling cycles.
    """

    write_seconds: tuple[float, float] = (0.005, 0.02)
    watch_seconds: tuple[float, float] = (0.005, 0.02)
    cycle_seconds: float = 0.05


@dataclass(frozen=True)
class Fault:
    """A failure.

    Attributes:
        kind: AgentDeath, NodeLoss, ApiOutage, FrozenTelemetry, IdleTelemetry or FullTelemetry.
        at_seconds: when it begins.
        for_seconds: how long it lasts.
        nodes: indices of the affected nodes; empty for all.
    """

    kind: str
    at_seconds: float
    for_seconds: float
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Setup:
    """What defines a run, except the policy and the seed.

    Attributes:
        nodes: groups of equal nodes.
        jobs: the workload.
        faults: the failures.
        plant: constants of the node model.
        api: latencies of the API server.
        warmup_seconds: time before the scenario's zero, in which agents measure an idle cluster.
        limit_seconds: time after which a run ends without result.
        not_ready_seconds: time from the loss of a node to NotReady (the node controller's grace period).
        eviction_seconds: time from NotReady to the eviction of its pods.
    """

    nodes: tuple[NodeSpec, ...] = (NodeSpec(),)
    jobs: tuple[JobSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    plant: NodeModelSettings = field(default_factory=NodeModelSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    warmup_seconds: float = 5.0
    limit_seconds: float = 7200.0
    not_ready_seconds: float = 40.0
    eviction_seconds: float = 30.0
