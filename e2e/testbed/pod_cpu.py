"""CPU time of the pods of real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from concerto_agent.cgroups import Cgroup, Hierarchies
from e2e.testbed.nodes import RealNode


class PodCpu:
    """CPU time of all pods of some nodes, from their cgroups; pods that are gone still count."""

    def __init__(self, nodes: Sequence[RealNode]) -> None:
        hierarchies = Hierarchies.detect(Path("/sys"))
        self._cgroups = [Cgroup(hierarchies, f"{node.cgroup}/kubepods") for node in nodes]

    def seconds(self) -> float:
        """Core-seconds since the nodes began."""
        return sum(cgroup.cpu_seconds() or 0.0 for cgroup in self._cgroups)
