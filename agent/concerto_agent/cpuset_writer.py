"""What gives a node's pods their cpusets, as the rest of the agent sees it.

`node_cpusets` writes cgroup files: what changes while containers run, on every node. A container that has just appeared
can run its first instructions elsewhere. Where the container runtime has NRI (containerd 2, CRI-O), `runtime_plugin`
closes that gap: containers are created with their CPUs. `WriterName` is ``status.cpusetWriter`` of NodeCPUTopology.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol

from concerto_agent.bindings import Outcome
from concerto_agent.container_start import NewContainer, StartCpus
from concerto_agent.cpusets import Claim, Grant, Numbers, Refusal
from concerto_agent.held_cpus import HeldCPUs

WriterName = Literal["None", "Files", "NRI"]
"""How cpusets are written on a node: not at all (the agent does not pin), by cgroup files alone, or by the container
runtime when it creates containers, and by cgroup files afterwards."""


class CpusetWriter(Protocol):
    """Gives pods the CPUs of their claims, keeps others off, and says how each claim stands."""

    @property
    def grants(self) -> Mapping[str, Grant]:
        """What is granted now, by UID of the pod."""
        ...

    @property
    def written_at(self) -> Mapping[str, float]:
        """When a bound pod's cpusets last had to be written, seconds since the epoch, by UID."""
        ...

    @property
    def repairs(self) -> int:
        """Pods whose cpusets somebody else had changed and that were set again, since the start."""
        ...

    @property
    def late(self) -> int:
        """Pods whose containers ran on other CPUs when their binding came, since the start."""
        ...

    @property
    def kubelet_exclusive(self) -> Numbers:
        """CPUs that kubelet's static CPU manager has given to containers."""
        ...

    @property
    def knows_kubelet(self) -> bool:
        """Whether it is known what kubelet decides; if not, nothing is written."""
        ...

    def enforce(self, claims: Iterable[Claim]) -> None:
        """Bring every pod of the node to what the claims say."""
        ...

    def steps(self, claims: Iterable[Claim]) -> Iterator[None]:
        """The same in steps, between which `look_at` may be called."""
        ...

    def look_at(self, uid: str) -> bool:
        """Bring one pod to what the claims say; True if what is to be said of it has changed."""
        ...

    def start_cpus(self, container: NewContainer) -> StartCpus:
        """What a container is to be created with, if its pod was looked at just before."""
        ...

    def standing(self, claim: Claim) -> tuple[Grant, Outcome] | Refusal | None:
        """How a claim stands; None as long as that is not known."""
        ...

    def held(self) -> HeldCPUs:
        """What the grants hold."""
        ...
