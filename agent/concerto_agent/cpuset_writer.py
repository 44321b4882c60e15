"""What gives a node's pods their cpusets, as the rest of the agent sees it.

`node_cpusets` is the one writer so far: it writes cgroup files. It sets a container's CPUs once the kernel has reported
its cgroup, so a container can run its first instructions elsewhere. A runtime plugin (NRI, which containerd 2 and CRI-O
offer) would set them in the container's OCI spec before it starts. It fits in here: the runtime's CreateContainer is
answered from ``grants``, its UpdateContainers takes what `steps` would write, and its name joins `WriterName`, which
the agent publishes as ``status.cpusetWriter`` of the NodeCPUTopology.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol

from concerto_agent.bindings import HeldCPUs, Outcome
from concerto_agent.cpusets import Claim, Grant, Numbers, Refusal

WriterName = Literal["None", "Files"]
"""Who writes cpusets on a node: nobody (the agent does not pin), or the agent by cgroup files."""


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

    def standing(self, claim: Claim) -> tuple[Grant, Outcome] | Refusal | None:
        """How a claim stands; None as long as that is not known."""
        ...

    def held(self) -> HeldCPUs:
        """What the grants hold."""
        ...
