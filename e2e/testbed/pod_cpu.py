"""CPU time of the pods of real nodes, and of the whole machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from concerto_agent.cgroups import Cgroup, Hierarchies
from e2e.testbed.nodes import RealNode


def machine_cpu_seconds() -> float:
    """Core-seconds that all programs of the machine have used since it was started."""
    user, nice, system, _, _, interrupts, soft_interrupts = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


class PodCpu:
    """CPU time of all pods of some nodes, from their cgroups; pods that are gone still count."""

    def __init__(self, nodes: Sequence[RealNode]) -> None:
        hierarchies = Hierarchies.detect(Path("/sys"))
        self._cgroups = [Cgroup(hierarchies, f"{node.cgroup}/kubepods") for node in nodes]

    def seconds(self) -> float:
        """Core-seconds since the nodes began."""
        return sum(cgroup.cpu_seconds() or 0.0 for cgroup in self._cgroups)
