"""From counters to y in [0, 1]: how full each resource of a node is (docs/references.md, "Telemetry").

Pure: the caller reads the files and measures the time between two readings with a monotonic clock. Where a counter
makes no sense (it went back, no time has passed) the answer is None: unknown is never zero. The formulas that combine
fractions take floats and arrays alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import CpuFormula

Fractions = TypeVar("Fractions", float, NDArray[np.float64])

_IDLE, _IOWAIT, _COUNTED = 3, 4, 8


def utilisation(before: Sequence[int], after: Sequence[int]) -> float | None:
    """CPU utilisation between two readings of the first line of ``/proc/stat``: 1 - (Δidle + Δiowait) / Δtotal.

    Only user, nice, system, idle, iowait, irq, softirq and steal are counted: guest and guest_nice are contained in
    user and nice. A field that went back (iowait may) counts as unchanged; steal counts as busy.

    Args:
        before: the fields of the line, in ticks, in the file's order.
        after: the same, later.

    Returns:
        A fraction in [0, 1]; None if the counters did not move.
    """
    deltas = [max(0, new - old) for old, new in zip(before[:_COUNTED], after[:_COUNTED])]
    total = sum(deltas)
    if total == 0:
        return None
    return 1.0 - (deltas[_IDLE] + deltas[_IOWAIT]) / total


def cpu(utilised: Fractions, waiting: Fractions | None, formula: CpuFormula = "Damped") -> Fractions:
    """The cpu entry of y.

    ``Mean`` is Carico's (utilisation + pressure) / 2. ``Damped``, utilisation * (1 + pressure) / 2, agrees with it at
    full utilisation, but does not take the pods' own CFS quotas for a full machine.

    Args:
        utilised: CPU utilisation, fraction.
        waiting: CPU pressure (``some``), fraction; None where the kernel has no PSI: utilisation alone is returned.
        formula: which of the two.
    """
    if waiting is None:
        return utilised
    if formula == "Mean":
        return (utilised + waiting) / 2
    return utilised * (1 + waiting) / 2


@dataclass(frozen=True)
class Meminfo:
    """What is needed of ``/proc/meminfo``, all in one unit; None where the file has no such line."""

    total: int
    available: int | None
    free: int | None = None
    buffers: int | None = None
    cached: int | None = None


def memory_available(info: Meminfo) -> float | None:
    """The memory entry of y: 1 - MemAvailable / MemTotal; None if the kernel does not report it."""
    if info.available is None or info.total <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - info.available / info.total))


def memory_free_buffers_cached(info: Meminfo) -> float | None:
    """Carico's memory entry of y: 1 - (MemFree + Buffers + Cached) / MemTotal. It cannot see tmpfs."""
    if info.free is None or info.buffers is None or info.cached is None or info.total <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - (info.free + info.buffers + info.cached) / info.total))


def non_pod_cpu(y: Fractions, utilised: Fractions, pods_utilised: Fractions) -> Fractions:
    """The part of the cpu entry of y that no pod causes: y times the other processes' share of the CPU time.

    Under pressure everyone is slowed alike, so the share of CPU time is the share of the demand.

    Args:
        y: the cpu entry of the node.
        utilised: CPU utilisation of the node, fraction.
        pods_utilised: CPU utilisation of all pods together against the same CPUs, fraction.
    """
    share = 1.0 - np.clip(pods_utilised / np.maximum(utilised, 1e-9), 0.0, 1.0)
    # Where nothing runs there is nothing to share out, and y is zero anyway.
    return y * share  # type: ignore[no-any-return]
