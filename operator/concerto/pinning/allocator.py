"""Where the threads of a pod go on one node, by what kind of workload it is.

Source: 004 §6.2.3 (placement by workload type, features) and §6.3 (scores). Past the source: the smallest group of
near CPUs that has room is taken, groups that fit best first; the shared pool is never emptied; which of several equal
choices is taken is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from concerto.api.podcpubinding import Level
from concerto.pinning.conflicts import Claim, shared_pool
from concerto.pinning.topology import TopologyIndex, bits

WorkloadType = Literal["cpu-bound", "memory-bound", "io-bound", "best-effort"]
Policy = Literal["Balanced", "MaximumUtilization"]


@dataclass(frozen=True)
class Features:
    """What 004 §6.2.3 lets one switch on.

    Attributes:
        physical_cores: a thread takes a core of its own, exclusively; an io-bound pod's threads share theirs with
            each other only.
        memory_bound_exclusive_sockets: memory-bound pods get their sockets exclusively.
        best_effort_shared_cpus: best-effort pods share one logical CPU.
    """

    physical_cores: bool = False
    memory_bound_exclusive_sockets: bool = False
    best_effort_shared_cpus: bool = False


@dataclass(frozen=True)
class Placement:
    """CPUs for a pod.

    Attributes:
        cpus: as bits.
        mems: the memory nodes they belong to.
        level: what the binding keeps from others.
    """

    cpus: int
    mems: frozenset[int]
    level: Level


@dataclass(frozen=True)
class Occupancy:
    """Who holds a node's CPUs; all sets are bits.

    Attributes:
        index: the node's topology.
        reserved: never handed out, nor kept from anybody.
        kubelet_exclusive: held by pods of kubelet's static policy.
        claims: the bindings.
    """

    index: TopologyIndex
    reserved: int = 0
    kubelet_exclusive: int = 0
    claims: tuple[Claim, ...] = ()

    @cached_property
    def kept(self) -> int:
        """CPUs that some binding keeps from all others."""
        kept = 0
        for claim in self.claims:
            kept |= self.index.closure(claim.cpus, claim.level)
        return kept

    def taken(self, *, beside_best_effort: bool = False) -> int:
        """CPUs that a pod runs on alone or with others; those of best-effort pods left out if they don't matter."""
        taken = self.kubelet_exclusive
        for claim in self.claims:
            if not (beside_best_effort and claim.best_effort):
                taken |= claim.cpus
        return taken

    def candidates(self, level: Level, *, beside_best_effort: bool = False) -> int:
        """CPUs that a new binding of this level may name without meeting another's."""
        taken = self.taken(beside_best_effort=beside_best_effort)
        free = self.index.online & ~(self.reserved | self.kubelet_exclusive | self.kept | taken)
        if level in ("Core", "Socket", "NUMA"):
            for group in self.index.groups(level):
                if group & (taken | self.reserved):
                    free &= ~group
        return free


def default_level(workload: WorkloadType, features: Features) -> Level:
    """The exclusiveness of a workload's binding (004 §6.2.3)."""
    if workload == "best-effort" and features.best_effort_shared_cpus:
        return "None"
    if workload == "memory-bound" and features.memory_bound_exclusive_sockets:
        return "Socket"
    return "Core" if features.physical_cores else "CPU"


def allocate(
    occupancy: Occupancy, workload: WorkloadType, threads: int, features: Features, level: Level | None = None
) -> Placement | None:
    """CPUs for ``threads`` threads; the same ones whenever it is asked the same.

    Args:
        occupancy: the node as it is.
        workload: decides how threads are spread.
        threads: the pod's CPU request, rounded up; at least 1.
        features: as the profile says.
        level: an exclusiveness that the pod asks for; by default that of its workload.

    Returns:
        The placement, or None where the node has no room that leaves CPUs to pods without a binding.
    """
    level = level or default_level(workload, features)
    candidates = _candidates(occupancy, workload, level)
    chosen = _choose(occupancy, candidates, workload, threads, features)
    if chosen and not _leaves_shared(occupancy, chosen, level):
        # Enough for the pod, but all there is: keep back what is least, and see whether the rest will do
        groups = [g & candidates for g in occupancy.index.groups(level) if g & candidates]
        least = min(groups, key=lambda group: (group.bit_count(), group & -group))
        chosen = _choose(occupancy, candidates & ~least, workload, threads, features)
        if chosen and not _leaves_shared(occupancy, chosen, level):
            return None
    return Placement(chosen, occupancy.index.mems(chosen), level) if chosen else None


def allocatable(occupancy: Occupancy, workload: WorkloadType, features: Features) -> tuple[int, int]:
    """How many sockets, cores or CPUs can take the workload, and of how many (the level that 004 §6.3 names)."""
    candidates = _candidates(occupancy, workload, default_level(workload, features))
    if workload == "memory-bound":
        groups: Sequence[int] = occupancy.index.sockets
    elif workload == "best-effort" and not features.physical_cores:
        return candidates.bit_count(), occupancy.index.online.bit_count()
    else:
        groups = occupancy.index.cores
    return sum(1 for group in groups if group & candidates), len(groups)


def score(allocatable: int, total: int) -> int:
    """⌈100·allocatable/total⌉ + allocatable (004 §6.3), exactly."""
    return -(-100 * allocatable // total) + allocatable


def normalise(scores: Iterable[int], policy: Policy) -> list[float]:
    """Scores of the feasible nodes on 0-100; under MaximumUtilization the fullest node has the best (004 §6.3)."""
    found = list(scores)
    highest = max(found, default=0)
    shares = [100.0 * each / highest if highest else 0.0 for each in found]
    return [100.0 - share for share in shares] if policy == "MaximumUtilization" else shares


def _candidates(occupancy: Occupancy, workload: WorkloadType, level: Level) -> int:
    beside = workload == "best-effort" and level == "None"
    return occupancy.candidates(level, beside_best_effort=beside)


def _leaves_shared(occupancy: Occupancy, chosen: int, level: Level) -> bool:
    claims = (*occupancy.claims, Claim(chosen, level))
    return shared_pool(occupancy.index, occupancy.kubelet_exclusive, claims) != 0


def _choose(occupancy: Occupancy, candidates: int, workload: WorkloadType, threads: int, features: Features) -> int:
    """The CPUs, or 0 if there are too few."""
    if workload == "best-effort":
        return _best_effort(occupancy, candidates)
    if workload == "io-bound":
        return _io_bound(occupancy.index, candidates, threads)
    busy = occupancy.taken() | occupancy.reserved
    cores = [core for core in occupancy.index.cores if core & candidates]
    room = len(cores) if features.physical_cores else candidates.bit_count()
    if room < threads:
        return 0
    if workload == "memory-bound":
        return _memory_bound(occupancy.index, candidates, busy, threads, features.physical_cores)
    return _cpu_bound(occupancy.index, candidates, busy, threads)


def _cpu_bound(index: TopologyIndex, candidates: int, busy: int, threads: int) -> int:
    """Distinct idle cores, as near to each other as can be; other cores once there is no idle one, siblings last."""
    cores = [core for core in index.cores if core & candidates]
    idle = [core for core in cores if not core & busy]
    if len(idle) >= threads:
        near = _nearest(index, idle, threads)
        return _first_of_each([core for core in idle if core & near][:threads], candidates)
    shared = [core for core in cores if core & busy]
    chosen = _first_of_each((idle + shared)[:threads], candidates)
    for core in idle + shared:
        for cpu in bits(core & candidates & ~chosen):
            if chosen.bit_count() == threads:
                return chosen
            chosen |= 1 << cpu
    return chosen


def _memory_bound(index: TopologyIndex, candidates: int, busy: int, threads: int, whole_cores: bool) -> int:
    """Round robin over memory nodes, those with most idle cores first; in each a new core while there is one."""
    queues = []
    for number, node in index.numa:
        cores = [core for core in index.cores if core & node & candidates]
        idle = [core for core in cores if not core & busy]
        parts = [core & candidates for core in idle + [core for core in cores if core & busy]]
        siblings = [] if whole_cores else [1 << cpu for part in parts for cpu in bits(part & (part - 1))]
        if parts:
            queues.append((-len(idle), number, [part & -part for part in parts] + siblings))
    queues.sort()
    chosen, left = 0, threads
    for turn in range(threads):
        for _, _, queue in queues:
            if left and turn < len(queue):
                chosen |= queue[turn]
                left -= 1
    return chosen


def _io_bound(index: TopologyIndex, candidates: int, threads: int) -> int:
    """Siblings of one core, then of the next; the last threads go where they leave least over."""
    if candidates.bit_count() < threads:
        return 0
    near = _nearest(index, [1 << cpu for cpu in bits(candidates)], threads)
    cores = [core & candidates & near for core in index.cores if core & candidates & near]
    cores.sort(key=lambda core: (-core.bit_count(), core & -core))
    chosen = 0
    for position, core in enumerate(cores):
        left = threads - chosen.bit_count()
        if core.bit_count() > left:
            fits = [c for c in cores[position:] if c.bit_count() >= left]
            last = min(fits, key=lambda c: (c.bit_count(), c & -c))
            for cpu in list(bits(last))[:left]:
                chosen |= 1 << cpu
            return chosen
        chosen |= core
    return chosen


def _best_effort(occupancy: Occupancy, candidates: int) -> int:
    """One CPU: one that best-effort pods share already, the least used; else one of the most used core."""
    shared: dict[int, int] = {}
    for claim in occupancy.claims:
        for cpu in bits(claim.cpus & candidates):
            shared[cpu] = shared.get(cpu, 0) + 1
    if shared:
        return 1 << min(shared, key=lambda cpu: (shared[cpu], cpu))
    cores = [core & candidates for core in occupancy.index.cores if core & candidates]
    best = min(cores, key=lambda core: (core.bit_count(), core & -core), default=0)
    return best & -best


def _first_of_each(cores: Iterable[int], candidates: int) -> int:
    chosen = 0
    for core in cores:
        free = core & candidates
        chosen |= free & -free
    return chosen


def _nearest(index: TopologyIndex, groups: Sequence[int], count: int) -> int:
    """The smallest domain that holds ``count`` of the groups; of equals the one that has least to spare."""
    for domains in index.domains:
        fits = []
        for position, domain in enumerate(domains):
            held = sum(1 for group in groups if group & domain)
            if held >= count:
                fits.append((held, position, domain))
        if fits:
            return min(fits)[2]
    return index.online
