"""The score of a node for a workload type: how much of the node can take such a pod.

Source: Stefanakis, section 6.3 (docs/references.md, "CPU placement").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from concerto.api.podcpubinding import Level
from concerto.pinning.occupancy import Features, Occupancy, WorkloadType, candidates_for, default_level

Policy = Literal["Balanced", "MaximumUtilization"]


def allocatable(
    occupancy: Occupancy, workload: WorkloadType, threads: int, features: Features, level: Level | None = None
) -> tuple[int, int]:
    """How many sockets, cores or CPUs of the node can accommodate the pod, and of how many.

    Memory-bound pods count sockets with an idle core for each of the threads that the socket would get; cpu-bound pods
    count idle cores; io-bound pods count cores with room for the threads that they would put there; best-effort pods
    count CPUs, with the feature PhysicalCores idle cores.
    """
    candidates = candidates_for(occupancy, workload, level or default_level(workload, features))
    index, busy = occupancy.index, occupancy.taken() | occupancy.reserved
    idle = [core for core in index.cores if core & candidates and not core & busy]
    if workload == "memory-bound":
        share = -(-threads // max(len(index.sockets), 1))
        fitting = sum(1 for each in index.sockets if sum(1 for core in idle if core & each) >= share)
        return fitting, len(index.sockets)
    if workload == "io-bound":
        return sum(1 for c in index.cores if (c & candidates).bit_count() >= min(threads, c.bit_count())), len(
            index.cores
        )
    if workload == "best-effort" and not features.physical_cores:
        return candidates.bit_count(), index.online.bit_count()
    return len(idle), len(index.cores)


def score(allocatable: int, total: int) -> int:
    """⌈100·allocatable/total⌉ + allocatable, in whole numbers; 0 for a node without any of them."""
    return -(-100 * allocatable // total) + allocatable if total else 0


def normalise(scores: Iterable[int], policy: Policy) -> list[float]:
    """Scores of the feasible nodes, 0 to 100; under MaximumUtilization the fullest node has the highest."""
    found = list(scores)
    highest = max(found, default=0)
    shares = [100.0 * each / highest if highest else 0.0 for each in found]
    return [100.0 - share for share in shares] if policy == "MaximumUtilization" else shares
