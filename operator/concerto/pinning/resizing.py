"""CPUs of a pod that is resized in place: it keeps what it has, and gives some of it up or gets more near it."""

from __future__ import annotations

from collections.abc import Callable

from concerto.api.podcpubinding import Level
from concerto.pinning.allocator import Placement, allocate_among, leaves_shared
from concerto.pinning.occupancy import Features, Occupancy, WorkloadType, candidates_for
from concerto.pinning.topology import bits


def resize(
    occupancy: Occupancy, own: int, workload: WorkloadType, threads: int, features: Features, level: Level
) -> Placement | None:
    """CPUs for a pod that has some already; the same ones for the same arguments.

    Args:
        occupancy: the node without the pod's own binding.
        own: CPUs that the pod has, as bits.
        workload: decides which CPUs go first, and where further ones are taken.
        threads: number of CPUs that it is to have, at least 1.
        features: those of its profile.
        level: the exclusiveness of its binding, which stays.

    Returns:
        Some of its CPUs where it has too many, all of them and further ones where it has too few. None where the node
        has no such CPUs, or none would be left to pods without a binding.
    """
    if workload == "best-effort" or threads == own.bit_count():
        return Placement(own, occupancy.index.mems(own), level)
    candidates = candidates_for(occupancy, workload, level)
    if threads < own.bit_count():
        return allocate_among(occupancy, candidates & own, workload, threads, features, level)
    if own & ~candidates:
        return None  # some are switched off, or another's by now
    kinds = [kind for kind in occupancy.index.kinds if kind & own]
    if kinds:
        candidates &= sum(kinds)  # no CPU has two kinds
    chosen = own
    rank = _ranks(occupancy, own, workload)
    while chosen.bit_count() < threads:
        free = candidates & ~chosen
        if features.physical_cores and workload != "io-bound":
            for core in occupancy.index.cores:
                if core & chosen:
                    free &= ~core
        if not free:
            return None
        chosen |= 1 << min(bits(free), key=lambda cpu: rank(cpu, chosen))
    return Placement(chosen, occupancy.index.mems(chosen), level) if leaves_shared(occupancy, chosen, level) else None


def _ranks(occupancy: Occupancy, own: int, workload: WorkloadType) -> Callable[[int, int], tuple[int, ...]]:
    """How good a CPU is as the next one of a pod, by the CPU and those chosen so far: the least is the best."""
    index = occupancy.index
    busy = occupancy.taken() | occupancy.reserved
    core_of = {cpu: core for core in index.cores for cpu in bits(core)}
    near = [0] * (max(core_of) + 1)
    for cpu in core_of:
        levels = (any(domain >> cpu & 1 and domain & own for domain in domains) for domains in index.near_domains)
        near[cpu] = next((number for number, meets in enumerate(levels) if meets), len(index.near_domains))

    def rank(cpu: int, chosen: int) -> tuple[int, ...]:
        core = core_of[cpu]
        kind = 1 if core & chosen else 2 if core & busy else 0  # own sibling, another pod's, idle core
        if workload == "io-bound":
            return (int(kind != 1), near[cpu], cpu)
        if workload == "memory-bound":
            here = min((mask & chosen).bit_count() for _, mask in index.numa if mask >> cpu & 1)
            return (kind, here, cpu)
        return (int(kind == 2), near[cpu], kind, cpu)

    return rank
