"""The meters of memory: of the machine, and of one cgroup."""

from __future__ import annotations

import math

from concerto.api.capacity_settings import MemoryFormula
from concerto.capacity import readings
from concerto.capacity.node_status import Problem
from concerto_agent.cgroups import Cgroup
from concerto_agent.files import KeptFile, parse_field
from concerto_agent.meter import NOTHING, Reading
from concerto_agent.node_files import NodeFiles
from concerto_agent.pod_usage import PodUsage
from concerto_agent.rates import NAN, clip

_MEMINFO_FIELDS = (b"MemTotal", b"MemAvailable", b"MemFree", b"Buffers", b"Cached")


class MachineMemory:
    """memory from /proc/meminfo."""

    def __init__(self, settings: NodeFiles, formula: MemoryFormula, pods: PodUsage) -> None:
        self._meminfo = KeptFile(settings.proc / "meminfo")
        self._formula = formula
        self._pods = pods

    def files(self) -> list[KeptFile]:
        """See ``Meter``."""
        return [self._meminfo, *self._pods.memory_files()]

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        data = self._meminfo.read()
        fields = {name: _whole(parse_field(data, name + b":")) for name in _MEMINFO_FIELDS}
        total = fields[b"MemTotal"] or 0
        info = readings.Meminfo(total, *(fields[name] for name in _MEMINFO_FIELDS[1:]))
        usage = readings.memory_available(info) if self._formula == "Available" else None
        if usage is None:
            usage = readings.memory_free_buffers_cached(info)
            if usage is not None and self._formula == "Available":
                message = (
                    "has no MemAvailable: memory is 1 - (MemFree + Buffers + Cached) / MemTotal, which does not "
                    "see tmpfs."
                )
                problems.append(Problem("NoMemAvailable", f"{self._meminfo.path} {message}"))
        if usage is None:
            message = f"{self._meminfo.path} lacks fields: memory is not measured."
            problems.append(Problem("Unreadable", message, "memory"))
            return NOTHING
        return Reading(usage, usage, _without(usage, self._pods.memory_bytes() / (total * 1024)))

    def close(self) -> None:
        """See ``Meter``."""
        self._meminfo.close()


class CgroupMemory:
    """memory from a cgroup's own accounting, measured against a capacity that is given."""

    def __init__(self, settings: NodeFiles, scope: Cgroup, pods: PodUsage) -> None:
        self._capacity = settings.memory_capacity_bytes
        self._meminfo = KeptFile(settings.proc / "meminfo")
        self._scope = scope
        self._pods = pods

    def files(self) -> list[KeptFile]:
        """See ``Meter``."""
        return [*self._scope.memory_files(), *self._pods.memory_files()]

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        used = self._scope.memory_bytes()
        if self._capacity is None:
            total = parse_field(self._meminfo.read(), b"MemTotal:")
            self._capacity = None if total is None else int(total * 1024)
        if used is None or not self._capacity:
            what = "memory usage" if used is None else "memory capacity (give --memory-capacity)"
            message = f"cgroup {self._scope.path} has no {what}: memory is not measured."
            problems.append(Problem("Unreadable", message, "memory"))
            return NOTHING
        usage = clip(used / self._capacity)
        return Reading(usage, usage, _without(usage, self._pods.memory_bytes() / self._capacity))

    def close(self) -> None:
        """See ``Meter``."""
        self._meminfo.close()
        self._scope.close()


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _without(usage: float, of_pods: float) -> float:
    return NAN if math.isnan(of_pods) else max(usage - of_pods, 0.0)
