"""Where the threads of a pod go on one node, by its workload type.

Source: Stefanakis, section 6.2.3 (docs/references.md, "CPU placement"). Beyond the source: idle cores before siblings
of busy ones, over all memory nodes; a pod's own siblings before those of others; the smallest kind of near group that
has room, and of these the emptiest; the shared pool never becomes empty; a fixed choice among equals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from concerto.api.podcpubinding import Level
from concerto.pinning.conflicts import Claim, shared_pool
from concerto.pinning.occupancy import Features, Occupancy, WorkloadType, candidates_for, default_level
from concerto.pinning.topology import TopologyIndex, bits

_FAST = frozenset({"cpu-bound", "memory-bound"})
"""Workload types that get the fastest kind of core where there are several; the others get the slowest."""
BEST_EFFORT_PODS_PER_CPU = 4
"""Best-effort pods that share a CPU before another CPU is used, without the feature BestEffortSharedCPUs."""


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


def allocate(
    occupancy: Occupancy, workload: WorkloadType, threads: int, features: Features, level: Level | None = None
) -> Placement | None:
    """CPUs for ``threads`` threads; the same ones for the same arguments.

    Args:
        occupancy: the node as it is.
        workload: decides how threads are spread.
        threads: the pod's CPU request, rounded up; at least 1.
        features: those of the profile.
        level: an exclusiveness that the pod asks for; by default that of its workload.

    Returns:
        The placement, on cores of one kind, or None where the node has no room that leaves CPUs to pods without a
        binding.
    """
    level = level or default_level(workload, features)
    candidates = candidates_for(occupancy, workload, level)
    kinds = occupancy.index.kinds if workload in _FAST else tuple(reversed(occupancy.index.kinds))
    for kind in kinds or (candidates,):
        if (found := allocate_among(occupancy, candidates & kind, workload, threads, features, level)) is not None:
            return found
    return None


def allocate_among(
    occupancy: Occupancy, candidates: int, workload: WorkloadType, threads: int, features: Features, level: Level
) -> Placement | None:
    """`allocate`, of the candidates (bits) only: CPUs that a new binding of the level may name."""
    node = _Choice(occupancy, candidates, level, features)
    chosen = node.choose(workload, threads)
    if chosen and not leaves_shared(occupancy, chosen, level):
        # Enough for the pod, but nothing would be left: leave out the smallest group, and see whether the rest suffices
        groups = [g & node.candidates for g in occupancy.index.groups(level) if g & node.candidates]
        smallest = min(groups, key=lambda group: (group.bit_count(), group & -group))
        node = _Choice(occupancy, node.candidates & ~smallest, level, features)
        chosen = node.choose(workload, threads)
        if chosen and not leaves_shared(occupancy, chosen, level):
            return None
    return Placement(chosen, occupancy.index.mems(chosen), level) if chosen else None


def leaves_shared(occupancy: Occupancy, chosen: int, level: Level) -> bool:
    """Whether pods without a binding have a CPU beside a new binding of these CPUs (bits)."""
    claims = (*occupancy.claims, Claim(chosen, level))
    return shared_pool(occupancy.index, occupancy.kubelet_exclusive, claims) != 0


class _Choice:
    """One choice of CPUs among the candidates of a node. All methods return CPUs as bits, 0 if there are too few."""

    def __init__(self, occupancy: Occupancy, candidates: int, level: Level, features: Features) -> None:
        self.index: TopologyIndex = occupancy.index
        self.candidates = candidates
        self._occupancy = occupancy
        self._level = level
        self._whole_cores = features.physical_cores
        self._one_shared_cpu = features.best_effort_shared_cpus
        busy = occupancy.taken() | occupancy.reserved
        self._cores = [core for core in self.index.cores if core & candidates]
        self._idle = [core for core in self._cores if not core & busy]
        self._shared = [core for core in self._cores if core & busy]

    def choose(self, workload: WorkloadType, threads: int) -> int:
        if workload == "best-effort":
            return self._best_effort()
        if workload == "io-bound":
            return self._io_bound(threads)
        room = len(self._cores) if self._whole_cores else self.candidates.bit_count()
        if room < threads:
            return 0
        return self._memory_bound(threads) if workload == "memory-bound" else self._cpu_bound(threads)

    def _cpu_bound(self, threads: int) -> int:
        """Idle cores of one near group; of one socket with their siblings, if no socket has so many cores."""
        if (near := self._nearest(self._idle, threads, roomiest=True)) is not None:
            return _first_of_each([core for core in self._idle if core & near], self.candidates, threads)
        sockets = self.index.sockets
        exceeds_sockets = threads > max(sum(1 for core in self.index.cores if core & each) for each in sockets)
        if exceeds_sockets and not self._whole_cores:
            parts = [[core for core in self._idle if core & socket] for socket in sockets]
            fits = [part for part in parts if self._count(part) >= threads]
            if fits:
                return self._with_siblings(max(fits, key=len), threads)
        if len(self._idle) >= threads:
            return self._round_robin([[c for c in self._idle if c & socket] for socket in sockets], threads)
        chosen = self._with_siblings(self._idle, threads)
        return chosen | self._with_siblings(self._shared, threads - chosen.bit_count())

    def _memory_bound(self, threads: int) -> int:
        """Round robin over memory nodes: idle cores, then their siblings, then siblings of others' cores."""
        nodes = [mask for _, mask in self.index.numa]
        chosen = self._round_robin([[core for core in self._idle if core & node] for node in nodes], threads)
        if not self._whole_cores:
            for cores in (self._idle, self._shared):
                left = self.candidates & ~chosen
                rest = [[1 << cpu for core in cores for cpu in bits(core & left & node)] for node in nodes]
                chosen |= self._round_robin(rest, threads - chosen.bit_count())
        elif chosen.bit_count() < threads:
            rest = [[core for core in self._shared if core & node] for node in nodes]
            chosen |= self._round_robin(rest, threads - chosen.bit_count())
        if self._level in ("Socket", "NUMA") and threads > 1 and len(nodes) > 1 and len(self.index.mems(chosen)) < 2:
            return 0  # packed on one memory node, and the others are kept: the opposite of what the type asks for
        return chosen if chosen.bit_count() == threads else 0

    def _io_bound(self, threads: int) -> int:
        """Siblings of one core, then of the next; the last threads go where the fewest CPUs are left over."""
        near = self._nearest([1 << cpu for cpu in bits(self.candidates)], threads)
        if near is None:
            if self.candidates.bit_count() < threads:
                return 0
            near = self.index.online
        cores = [core & self.candidates & near for core in self._cores if core & near]
        cores = sorted((core for core in cores if core), key=lambda core: (-core.bit_count(), core & -core))
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

    def _best_effort(self) -> int:
        """One CPU: the least used of those that best-effort pods share, else one of the most used core."""
        shared: dict[int, int] = {}
        for claim in self._occupancy.claims:
            for cpu in bits(claim.cpus & self.candidates):
                shared[cpu] = shared.get(cpu, 0) + 1
        if shared:
            least = min(shared, key=lambda cpu: (shared[cpu], cpu))
            if self._one_shared_cpu or shared[least] < BEST_EFFORT_PODS_PER_CPU:
                return 1 << least
        unused = self.candidates & ~sum(1 << cpu for cpu in shared)
        cores = [core & unused for core in self._cores if core & unused]
        if not cores:
            return 1 << least if shared else 0
        best = min(cores, key=lambda core: (core.bit_count(), core & -core))
        return best & -best

    # --- parts of the rules

    def _count(self, cores: Iterable[int]) -> int:
        return sum((core & self.candidates).bit_count() for core in cores)

    def _with_siblings(self, cores: Sequence[int], threads: int) -> int:
        """Up to ``threads`` CPUs: one of each core, then the second of each, and so on in the cores' order."""
        chosen = _first_of_each(cores, self.candidates, threads)
        for core in cores:
            for cpu in bits(core & self.candidates & ~chosen):
                if chosen.bit_count() == threads:
                    return chosen
                chosen |= 1 << cpu
        return chosen

    def _round_robin(self, queues: Iterable[Sequence[int]], threads: int) -> int:
        """Up to ``threads`` CPUs, one of each group in turn; the queue with most groups begins."""
        ordered = sorted(enumerate(queues), key=lambda each: (-len(each[1]), each[0]))
        chosen = 0
        for turn in range(threads):
            for _, queue in ordered:
                if turn < len(queue) and chosen.bit_count() < threads:
                    free = queue[turn] & self.candidates
                    chosen |= free & -free
        return chosen

    def _nearest(self, groups: Sequence[int], count: int, *, roomiest: bool = False) -> int | None:
        """A domain of the smallest kind that holds ``count`` of the groups: the fullest of these, or the roomiest."""
        for domains in self.index.near_domains:
            fits = []
            for position, domain in enumerate(domains):
                held = sum(1 for group in groups if group & domain)
                if held >= count:
                    fits.append((-held if roomiest else held, position, domain))
            if fits:
                return min(fits)[2]
        return None


def _first_of_each(cores: Iterable[int], candidates: int, count: int) -> int:
    chosen = 0
    for core in cores:
        if chosen.bit_count() == count:
            break
        free = core & candidates
        chosen |= free & -free
    return chosen
