"""The words of the node model: what pods do on simulated nodes, and the constants of those nodes.

Sources: Carico, section 5 (workloads) and section 2.3.10 (start-up takes up to 4 s on a full node); docs/references.md,
"Evaluation".
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from concerto.capacity.kinds.sums import PodMeasurement

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class PodLoad:
    """What one pod does from the moment its container runs.

    It alternates `bursts` times between waiting (its share of `wait_seconds`) and computing (its share of
    `core_seconds`, on `threads` threads at once).

    Attributes:
        wait_seconds: seconds of its life not on a CPU, over all bursts.
        core_seconds: CPU time it needs, over all bursts and threads.
        threads: threads that are runnable while it computes.
        bursts: how often waiting and computing alternate; 0 repeats bursts of these sizes for ever.
        memory_bytes: memory in use once the ramp is over.
        memory_ramp_seconds: time from start to the full memory_bytes; 0 allocates all at once.
        cpu_limit: cores its quota allows, or None.
    """

    wait_seconds: float = 0.0
    core_seconds: float = 1.0
    threads: int = 1
    bursts: int = 1
    memory_bytes: float = 20 * MIB
    memory_ramp_seconds: float = 0.0
    cpu_limit: float | None = None

    @property
    def natural_share(self) -> float:
        """Cores that it uses over its life on a node that has nothing else to do."""
        return self.core_seconds / max(self.held_seconds(), 1e-9)

    def held_seconds(self, around: float = 0.0) -> float:
        """Seconds for which it holds a place on such a node, as agents measure it: they take stalls for contention.

        Where its quota stalls it, they believe the quota as far as it explains how long it took.

        Args:
            around: seconds of that before its container runs and after its exit.
        """
        held = self.wait_seconds + self.core_seconds / self.threads + around
        return held if self.cpu_limit is None else max(held, self.core_seconds / self.cpu_limit)

    def life_seconds(self, around: float = 0.0) -> float:
        """Seconds from the one to the other end of that."""
        return self.wait_seconds + self.core_seconds / self.peak + around

    @property
    def peak(self) -> float:
        """Cores that it uses while it computes, on a node that has nothing else to do."""
        return float(self.threads) if self.cpu_limit is None else min(float(self.threads), self.cpu_limit)

    @property
    def per_thread(self) -> float:
        """CPU time that each thread needs in a burst, core-seconds."""
        return self.core_seconds / max(self.bursts, 1) / self.threads


@dataclass(frozen=True)
class NodeModelSettings:
    """Constants of the plant.

    Attributes:
        start_seconds: bounds of the time from the binding to Running on a node that is not full.
        start_when_full_seconds: added on a node at full pressure (Carico, section 2.3.10: 4 s in all).
        end_seconds: bounds of the time from a container's exit to the kubelet's next relist, which shows in the pod's
            status. The difference is the time between two relists: containers that end between them are seen together.
        teardown_seconds: least time from there until the kubelet has taken the pod down, and its phase is terminal. It
            was 1.0 to 1.3 s for each of 120 pods on quiet real nodes, and as long on average on busy ones: the kubelet
            awaits another relist.
        spike_seconds: how long the container runtime works at each start and stop (Carico, section 4.2.2: 200 ms).
        spike_threads: threads that the runtime keeps runnable during a spike.
        start_core_seconds: CPU time of kubelet and runtime before a container runs, on one thread that waits for a CPU
            as others do: on a busy node pods start later. The delays above are beside it.
        end_core_seconds: the same while a pod is taken down, beside the time that this takes anyway.
        other_cpu: share of the node's CPUs that programs outside of the node take, where nodes share a machine. Agents
            see it in the CPUs' utilisation.
        system_cpu: share of the node's CPU that is used without any pod.
        system_memory_bytes: memory used without any pod.
        memory_steps: number of steps of a memory ramp.
    """

    start_seconds: tuple[float, float] = (1.0, 2.0)
    start_when_full_seconds: float = 2.0
    end_seconds: tuple[float, float] = (0.2, 1.2)
    teardown_seconds: float = 1.15
    spike_seconds: float = 0.2
    spike_threads: int = 1
    start_core_seconds: float = 0.0
    end_core_seconds: float = 0.0
    other_cpu: float = 0.0
    system_cpu: float = 0.02
    system_memory_bytes: float = 600 * MIB
    memory_steps: int = 4

    @property
    def non_pod_cpu(self) -> float:
        """Share of the node's CPU that is used without any pod, by itself and by others."""
        return self.system_cpu + self.other_cpu

    @property
    def runtime_core_seconds(self) -> float:
        """CPU time of kubelet and runtime for a pod's start and end, on a node that has nothing else to do."""
        return self.start_core_seconds + self.end_core_seconds + 2 * self.spike_seconds * self.spike_threads

    @property
    def runtime_seconds(self) -> float:
        """Mean seconds for which a pod holds its place on such a node before its container runs and after its exit.

        It does so until its status shows that its container has ended.
        """
        return (sum(self.start_seconds) + sum(self.end_seconds)) / 2 + self.start_core_seconds


class Change(Enum):
    """What happened to a pod on its node."""

    CGROUP_CREATED = "CgroupCreated"
    """Its first container's cgroup exists: an agent counts the pod from now on."""
    RUNNING = "Running"
    EXITED = "Exited"
    """The container has ended. Recorders count this moment."""
    ENDED = "Ended"
    """The kubelet has seen the exit: it writes the status, which shows that the container has ended."""
    TERMINATED = "Terminated"
    """The kubelet has taken the pod down: its cgroup is gone, and its phase is terminal."""


@dataclass(frozen=True)
class Transition:
    """One change of one pod.

    Attributes:
        at: when, in seconds.
        change: what.
        pod: the pod's key.
        node: the node's index.
        reason: Completed, OOMKilled or Deleted from EXITED on.
        measured: from ENDED on, what the node's agent had measured of the pod by ENDED.
    """

    at: float
    change: Change
    pod: Hashable
    node: int
    reason: str = ""
    measured: PodMeasurement | None = None
