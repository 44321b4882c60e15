"""CPU and memory of the node's pods together, so that usage outside of pods is known."""

from __future__ import annotations

import math
from collections.abc import Iterable

from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.files import KeptFile
from concerto_agent.rates import NAN, Rate


class PodUsage:
    """CPU and memory of the pods' cgroups, so that pods are separate from everything else on the node.

    Pods that are not counted (static and DaemonSet pods) are part of what the node uses anyway, so that their usage is
    given back to it; it is read once a second, as it changes slowly and every pod costs reads.
    """

    def __init__(self, hierarchies: Hierarchies, scope: Cgroup) -> None:
        self._hierarchies = hierarchies
        self._scope = scope
        self._kubepods: Cgroup | None = None
        self._cpu = Rate()
        self._uncounted: dict[str, tuple[Cgroup, Rate]] = {}
        self._uncounted_cpu = 0.0
        self._uncounted_memory = 0.0

    @property
    def found(self) -> bool:
        """Whether there is a kubepods cgroup."""
        return self._kubepods is not None

    def look(self, seconds: float, uncounted: Iterable[str]) -> None:
        """Find the kubepods cgroup, and read the pods that are not counted.

        Args:
            seconds: time since the last look; 0 if there was none or it is too long ago.
            uncounted: paths of their cgroups.
        """
        path = self._scope.find_kubepods()
        if path is None or self._kubepods is None or self._kubepods.path != path:
            if self._kubepods is not None:
                self._kubepods.close()
            self._kubepods = None if path is None else Cgroup(self._hierarchies, path)
            self._cpu = Rate()
        paths = set(uncounted)
        for gone in self._uncounted.keys() - paths:
            self._uncounted.pop(gone)[0].close()
        for new in paths - self._uncounted.keys():
            self._uncounted[new] = (Cgroup(self._hierarchies, new), Rate())
        cpu = [rate.update(cgroup.cpu_seconds(), seconds) for cgroup, rate in self._uncounted.values()]
        memory = [cgroup.memory_bytes() or 0.0 for cgroup, _ in self._uncounted.values()]
        self._uncounted_cpu = sum(rate for rate in cpu if not math.isnan(rate))
        self._uncounted_memory = sum(memory)

    def cpu_files(self) -> list[KeptFile]:
        """What `cpus` reads."""
        return self._kubepods.cpu_files() if self._kubepods else []

    def memory_files(self) -> list[KeptFile]:
        """What `memory_bytes` reads."""
        return self._kubepods.memory_files() if self._kubepods else []

    def cpus(self, seconds: float) -> float:
        """CPUs that the counted pods kept busy since the last call; NaN if unknown."""
        used = self._cpu.update(self._kubepods.cpu_seconds() if self._kubepods else None, seconds)
        return max(used - self._uncounted_cpu, 0.0) if not math.isnan(used) else NAN

    def memory_bytes(self) -> float:
        """Memory of the counted pods; NaN if unknown."""
        used = self._kubepods.memory_bytes() if self._kubepods else None
        return NAN if used is None else max(used - self._uncounted_memory, 0.0)

    def close(self) -> None:
        """Give back every descriptor."""
        for cgroup, _ in self._uncounted.values():
            cgroup.close()
        self._uncounted.clear()
        if self._kubepods:
            self._kubepods.close()
