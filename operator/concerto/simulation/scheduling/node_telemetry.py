"""Telemetry of simulated nodes: counters that are exact integrals of rates, and readings of them.

PSI as measured on Linux: with C CPUs and R runnable threads, `some` is clip((R - C)/C, 0, 1). A throttled thread
(by its own quota) counts, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Readings:
    """What /proc shows since the reading before, one entry per node, each in [0, 1].

    Attributes:
        utilisation: share of CPU time that was not idle.
        pressure: PSI cpu `some`.
        memory: share of memory in use now.
        system_cpu: utilisation by the system and the container runtime's spikes, not by pods.
        system_memory: the same for memory.
        runnable: threads that run or wait for a CPU, per CPU; not bounded.
    """

    utilisation: Floats
    pressure: Floats
    memory: Floats
    system_cpu: Floats
    system_memory: Floats
    runnable: Floats


@dataclass(frozen=True)
class Rates:
    """What a node does now: CPU in use, pressure, CPU in use by the system, in [0, 1]; runnable threads per CPU."""

    busy: float
    pressure: float
    system: float
    runnable: float


class Telemetry:
    """Counters of all nodes. A node's counters advance at constant rates until its rates change.

    Args:
        memory_bytes: memory of each node, N numbers.
        system_cpu: share of each node's CPU that is used without any pod.
        system_memory_bytes: memory of each node that is used without any pod.
        now: the time at which counting begins, seconds.
    """

    def __init__(self, memory_bytes: Floats, system_cpu: float, system_memory_bytes: float, now: float) -> None:
        count = len(memory_bytes)
        self._memory_bytes = memory_bytes
        self._system_memory = system_memory_bytes / memory_bytes
        self.memory_used = np.full(count, system_memory_bytes)
        self.pressure_rate = np.zeros(count)
        self._busy_rate = np.full(count, system_cpu)
        self._system_rate = np.full(count, system_cpu)
        self._runnable_rate = np.zeros(count)
        self._busy, self._pressure, self._system, self._runnable = (np.zeros(count) for _ in range(4))
        self._counted_to = np.full(count, now)
        self._read_at = now
        self._read_busy, self._read_pressure, self._read_system = (np.zeros(count) for _ in range(3))
        self._read_runnable = np.zeros(count)

    def count(self, node: int, now: float) -> None:
        """Advance one node's counters. Call it before the node's rates change."""
        elapsed = now - self._counted_to[node]
        self._busy[node] += self._busy_rate[node] * elapsed
        self._pressure[node] += self.pressure_rate[node] * elapsed
        self._system[node] += self._system_rate[node] * elapsed
        self._runnable[node] += self._runnable_rate[node] * elapsed
        self._counted_to[node] = now

    def set_rates(self, node: int, rates: Rates) -> None:
        """Set a node's rates from the time of its last `count` on."""
        self._busy_rate[node], self.pressure_rate[node], self._system_rate[node] = (
            rates.busy,
            rates.pressure,
            rates.system,
        )
        self._runnable_rate[node] = rates.runnable

    def read(self, now: float) -> Readings:
        """Telemetry since the previous call, which must have been earlier."""
        elapsed = now - self._counted_to
        self._busy += self._busy_rate * elapsed
        self._pressure += self.pressure_rate * elapsed
        self._system += self._system_rate * elapsed
        self._runnable += self._runnable_rate * elapsed
        self._counted_to[:] = now
        span = max(now - self._read_at, 1e-9)
        readings = Readings(
            utilisation=np.clip((self._busy - self._read_busy) / span, 0.0, 1.0),
            pressure=np.clip((self._pressure - self._read_pressure) / span, 0.0, 1.0),
            memory=np.clip(self.memory_used / self._memory_bytes, 0.0, 1.0),
            system_cpu=np.clip((self._system - self._read_system) / span, 0.0, 1.0),
            system_memory=self._system_memory,
            runnable=np.maximum((self._runnable - self._read_runnable) / span, 0.0),
        )
        self._read_runnable[:] = self._runnable
        self._read_at = now
        self._read_busy[:], self._read_pressure[:], self._read_system[:] = self._busy, self._pressure, self._system
        return readings

    def busy_seconds(self, now: float) -> Floats:
        """Seconds for which each node's CPUs were in use since the beginning, weighted with the share in use."""
        return np.asarray(self._busy + self._busy_rate * (now - self._counted_to))
