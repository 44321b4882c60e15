"""What a node's CPUs are used for, as the allocator and the score see it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from concerto.api.podcpubinding import Level
from concerto.pinning.conflicts import Claim
from concerto.pinning.topology import TopologyIndex

WorkloadType = Literal["cpu-bound", "memory-bound", "io-bound", "best-effort"]


@dataclass(frozen=True)
class Features:
    """Features of a profile (Stefanakis, section 6.2.3).

    Attributes:
        physical_cores: each thread gets a core of its own, exclusively; threads of an io-bound pod share cores with
            each other only. Does not apply to best-effort pods.
        memory_bound_exclusive_sockets: memory-bound pods get their sockets exclusively, at least two where there are
            two or more.
        best_effort_shared_cpus: all best-effort pods of a node share one logical CPU.
    """

    physical_cores: bool = False
    memory_bound_exclusive_sockets: bool = False
    best_effort_shared_cpus: bool = False


@dataclass(frozen=True)
class Occupancy:
    """Which of a node's CPUs are in use; all sets are bits.

    Attributes:
        index: the node's topology.
        reserved: never assigned to a pod, never exclusive.
        kubelet_exclusive: assigned by kubelet's static policy.
        claims: the bindings.
    """

    index: TopologyIndex
    reserved: int = 0
    kubelet_exclusive: int = 0
    claims: tuple[Claim, ...] = ()

    @cached_property
    def exclusive(self) -> int:
        """CPUs that some binding keeps from all others."""
        exclusive = 0
        for claim in self.claims:
            exclusive |= self.index.closure(claim.cpus, claim.level)
        return exclusive

    def taken(self, *, beside_best_effort: bool = False) -> int:
        """CPUs that a pod runs on alone or with others; without those of best-effort pods if ``beside_best_effort``."""
        taken = self.kubelet_exclusive
        for claim in self.claims:
            if not (beside_best_effort and claim.best_effort):
                taken |= claim.cpus
        return taken

    def candidates(self, level: Level, *, beside_best_effort: bool = False) -> int:
        """CPUs that a new binding of this level may name without a conflict."""
        taken = self.taken(beside_best_effort=beside_best_effort)
        free = self.index.online & ~(self.reserved | self.kubelet_exclusive | self.exclusive | taken)
        if level in ("Core", "Socket", "NUMA"):
            for group in self.index.groups(level):
                if group & (taken | self.reserved):
                    free &= ~group
        return free


def default_level(workload: WorkloadType, features: Features) -> Level:
    """The exclusiveness of a workload's binding (Stefanakis, section 6.2.3); that of best-effort pods is None."""
    if workload == "best-effort":
        return "None"
    if workload == "memory-bound" and features.memory_bound_exclusive_sockets:
        return "Socket"
    return "Core" if features.physical_cores else "CPU"


def candidates_for(occupancy: Occupancy, workload: WorkloadType, level: Level) -> int:
    """CPUs that a new binding of this workload and level may name."""
    beside = workload == "best-effort" and level == "None"
    return occupancy.candidates(level, beside_best_effort=beside)
