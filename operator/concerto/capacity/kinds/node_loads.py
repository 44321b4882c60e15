"""Which nodes can take a pod of a known cost, and how much of it: head room in every resource, and work at a pace.

A node whose CPUs just do not idle runs pods whose natural shares add up to its cores (Little's law, kind by kind). So
a pod is admitted while the shares of the pods there, counted from the moment they are placed, leave room for it, and
while the node is not being given work faster than it can do it: tokens grow with the cores that paced pods
find, and a pod costs its CPU time and that of its start and end. That keeps pods of one burst from computing all at
the same time.

Head room keeps its sign: a node that is over its cores takes nothing until pods have ended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from concerto.capacity.kinds.cost import Cost
from concerto.capacity.kinds.head_room import HeadRoom
from concerto.capacity.kinds.pace import Pace
from concerto.capacity.kinds.settings import KindSettings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = slice | NDArray[np.int64]


_LITTLE = 0.1
"""Part of the cores that a node is filled to which may be left on a filled one."""
_MAX_MEMORY_BYTES = 2.0**50
"""Of a pod, that counts: beside much larger numbers a float has no place for the bytes of other pods."""
_WITHIN = 0.5
"""Part of the pods that wait which has to find room within the head room, if none of them is to be paced."""
_SMALL = 0.5
"""Share of a pod at most that is small beside others, in parts of the mean share of the pods on its node."""


class Held(NamedTuple):
    """What room is held for on some nodes, beside the pods that are there.

    Attributes:
        cpu: (R,) cores, or a number that holds for each of them.
        memory: bytes, likewise.
    """

    cpu: Floats | float
    memory: Floats | float


NONE_HELD = Held(0.0, 0.0)


class NodeLoads:
    """What is committed on N nodes, by the costs of the pods placed there.

    Every method that takes ``rows`` answers for those nodes alone: a slice for many, an array for some.

    Attributes:
        cores: (N,) CPUs.
        memory_bytes: (N,) memory.
        own_cpu: (N,) cores that what is no pod uses.
        kept_cpu: (N,) cores that pods with exclusive CPUs keep from others beyond what their kinds cost.
        own_memory: (N,) bytes that what is no pod uses.
        cpu: (N,) cores committed to pods.
        memory: (N,) bytes committed to pods.
        pods: (N,) pods placed.
        beyond: what nodes are filled to beyond it now (``KindSettings.last_pods``), in parts of their cores.
        unpaced: whether all pods that wait find room now, and most of them within it, so that they are not paced.
    """

    def __init__(self, settings: KindSettings | None = None) -> None:
        self.settings = settings or KindSettings()
        self.cores: Floats = np.zeros(0)
        self.memory_bytes: Floats = np.zeros(0)
        self.own_cpu: Floats = np.zeros(0)
        self.kept_cpu: Floats = np.zeros(0)
        self.own_memory: Floats = np.zeros(0)
        self.cpu: Floats = np.zeros(0)
        self.memory: Floats = np.zeros(0)
        self.pods: Floats = np.zeros(0)
        self.beyond = 0.0
        self.unpaced = False
        # What follows from the columns above alone, and is the same for pods of every kind: settle, _recount
        self._usable_cpu: Floats = np.zeros(0)  # cores that pods may use
        self._memory_to: Floats = np.zeros(0)  # what is filled of it
        self._cpu_left: Floats = np.zeros(0)
        self._memory_left: Floats = np.zeros(0)
        self._cpu_part: Floats = np.zeros(0)
        self._memory_part: Floats = np.zeros(0)
        self._per_core: Floats = np.zeros(0)
        self._per_byte: Floats = np.zeros(0)
        self._unsettled: set[int] = set()
        self._uncounted: set[int] = set()  # rows on which other pods are since _recount
        self._pace, self._head_room = Pace(), HeadRoom()

    def grow(self, width: int) -> None:
        """Make room for that many nodes."""
        self._unsettled.update(range(len(self.cores), width))
        self._pace.grow(width)
        self._head_room.grow(width, self.settings)
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                setattr(self, name, np.concatenate([values, np.zeros(max(0, width - len(values)))]))

    @property
    def head_room(self) -> Floats:
        """(N,) shares that each node is filled to, in parts of its cores."""
        self.settle()
        return self._head_room.filled_to

    def set_node(self, row: int, cores: float, memory_bytes: float) -> None:
        """How large the node is."""
        self.cores[row], self.memory_bytes[row] = cores, memory_bytes
        self._unsettled.add(row)

    def set_own(self, row: int, cpu: float, memory: float) -> None:
        """Cores and bytes that what is no pod uses on the node."""
        self.own_cpu[row], self.own_memory[row] = cpu, memory
        self._unsettled.add(row)

    def set_kept(self, row: int, cpu: float) -> None:
        """Cores that pods with exclusive CPUs keep from others and do not use."""
        if self.kept_cpu[row] != cpu:
            self.kept_cpu[row] = cpu
            self._unsettled.add(row)

    def clear(self, row: int) -> None:
        """The row stands for another node from now on; its pods have been removed."""
        self.cores[row] = self.memory_bytes[row] = self.own_cpu[row] = self.own_memory[row] = 0.0
        self.cpu[row] = self.memory[row] = self.pods[row] = self.kept_cpu[row] = 0.0
        self._pace.clear(row)
        self._head_room.clear(row, self.settings)
        self._unsettled.add(row)

    def add_pod(self, row: int, cost: Cost) -> None:
        """A pod is there."""
        self._count(row, cost, 1.0)
        self._uncounted.add(row)

    def give_work(self, row: int, cost: Cost, now: float) -> None:
        """The node is given the work of such a pod."""
        if row in self._unsettled:
            self.settle()
        self._pace.give(row, cost, self._usable_cpu, self.settings, now)

    def remove_pod(self, row: int, cost: Cost) -> None:
        """A pod has ended; ``cost`` is what it was added with, or what ``change_cost`` has made of it since."""
        self._count(row, cost, -1.0)
        self._uncounted.add(row)

    def change_cost(self, rows: NDArray[np.int64], before: Cost, after: Cost, pods: Floats) -> None:
        """More is known of the kind of pods that are on these rows, each row once, and so many on each."""
        self._count(rows, before, -pods)
        self._count(rows, after, pods)
        self._recount(rows)

    def _count(self, rows: int | NDArray[np.int64], cost: Cost, pods: Floats | float) -> None:
        self.cpu[rows] += pods * cost.share
        self.memory[rows] += pods * self.memory_of(cost)
        self._head_room.add(rows, cost, pods)
        self._pace.add(rows, cost, pods)
        self.pods[rows] += pods

    def memory_of(self, cost: Cost) -> float:
        """Bytes that such a pod takes; of a kind whose memory nobody knows, the default."""
        return self.settings.default_memory if cost.memory is None else min(cost.memory, _MAX_MEMORY_BYTES)

    def tokens(self, rows: Rows, now: float) -> Floats:
        """Core-seconds of work that the nodes may be given; negative after more was given than the pace allows."""
        self.settle()
        return self._pace.tokens(rows, self._usable_cpu, self.settings, now)

    def settle(self) -> None:
        """Bring the columns up to date that follow from others, on the rows of nodes that have changed."""
        if self._uncounted:
            self._recount(_index(self._uncounted))
            self._uncounted.clear()
        if not self._unsettled:
            return
        rows = np.fromiter(self._unsettled, np.int64, len(self._unsettled))
        self._unsettled.clear()
        self._usable_cpu[rows] = usable = np.maximum(self.cores[rows] - self.own_cpu[rows] - self.kept_cpu[rows], 0.0)
        self._per_core[rows] = 1.0 / np.maximum(usable, 1e-6)
        in_all = self.memory_bytes[rows]
        self._memory_to[rows] = self.settings.memory * in_all - self.own_memory[rows]
        self._per_byte[rows] = 1.0 / np.maximum(in_all, 1.0)
        self._pace.note_cores(rows)
        self._recount(rows)

    def _recount(self, rows: int | NDArray[np.int64]) -> None:
        """Other pods are on the row or rows."""
        cpu, memory = self.cpu[rows], self.memory[rows]
        usable = self._usable_cpu[rows]
        self._cpu_left[rows] = self._head_room.recount(rows, cpu, self.pods[rows], usable, self.settings) * usable - cpu
        self._cpu_part[rows] = cpu * self._per_core[rows]
        self._memory_left[rows] = self._memory_to[rows] - memory
        self._memory_part[rows] = (self.own_memory[rows] + memory) * self._per_byte[rows]

    def cpu_left(self, rows: Rows) -> Floats:
        """Cores that are not committed; negative where a node is over."""
        self.settle()
        left: Floats = self._cpu_left[rows]
        return left

    def memory_left(self, rows: Rows) -> Floats:
        """Bytes that are not committed; negative where a node is over."""
        self.settle()
        left: Floats = self._memory_left[rows]
        return left

    def left(self, row: int) -> tuple[float, float]:
        """Cores and bytes of memory that the row's node has left, signed."""
        self.settle()
        return float(self._cpu_left[row]), float(self._memory_left[row])

    def capacity(self, cost: Cost, rows: Rows, held: Held = NONE_HELD) -> Floats:
        """Pods of that cost that the nodes can take beside what they hold, signed."""
        by_cpu = (self.cpu_left(rows) - held.cpu) / max(cost.share, 1e-6)
        by_memory = (self.memory_left(rows) - held.memory) / max(self.memory_of(cost), 1.0)
        return np.minimum(by_cpu, by_memory)

    def fits(self, cost: Cost, rows: Rows, held: Held = NONE_HELD) -> Bools:
        """Which nodes have room for one such pod, whatever their pace.

        Args:
            cost: of the pod.
            rows: the nodes.
            held: what room is held for on each.
        """
        return self.fits_cpu(cost, rows, held) & self.fits_memory(cost, rows, held)

    def fits_cpu(self, cost: Cost, rows: Rows, held: Held = NONE_HELD) -> Bools:
        """``fits`` by CPU alone: an empty node takes any pod, however large."""
        fits: Bools = self.settings.overhang * cost.share + held.cpu <= self.cpu_left(rows)
        if fits.all():
            return fits
        fits |= self.pods[rows] == 0.0
        if cost.work is not None:
            of_last = _of_last_pods(self.cpu[rows], self.pods[rows], cost.share, self.settings)
            has_to_fit = of_last if self.beyond else cost.share
            fits |= has_to_fit + held.cpu <= self.cpu_left(rows) + self._beyond(cost, rows)
        return fits

    def _beyond(self, cost: Cost, rows: Rows) -> Floats:
        """Cores that the nodes may be filled to beyond their head room now for such a pod, which will end.

        The last pods that wait may go beyond it. So may light ones where a large pod has: else they would wait until a
        large pod has ended, whose place the next large one takes.
        """
        for_light = _beyond_for_light(self.cpu[rows], self.pods[rows], cost.share, self.settings)
        for_last = self._head_room.for_last(rows, self.settings) if self.beyond else 0.0
        wanted = np.maximum(for_last / self._per_core[rows], for_light)
        most = (self.settings.max_head_room - self.head_room[rows]) / self._per_core[rows]
        beyond: Floats = np.minimum(wanted, most)
        return beyond

    def has_room(self, row: int) -> bool:
        """Whether the row's node has room for some pod, however small."""
        cpu, memory = self.left(row)
        return memory > 0.0 and cpu + float(_beyond_for_light(self.cpu[row], self.pods[row], 0.0, self.settings)) > 0.0

    def beyond_for(self, cost: Cost, row: int) -> tuple[float, float]:
        """What the node is filled to beyond its head room for such a pod, which it takes: parts of its cores, cores."""
        rows = slice(row, row + 1)
        if cost.work is None or self.settings.overhang * cost.share <= self.cpu_left(rows)[0] or not self.pods[row]:
            return 0.0, 0.0
        beyond = float(self._beyond(cost, rows)[0])
        return beyond * float(self._per_core[row]), beyond

    def fits_memory(self, cost: Cost, rows: Rows, held: Held = NONE_HELD) -> Bools:
        """``fits`` by memory alone: an empty node that has memory left takes any pod, where no room is held for others.

        What is said of a kind that no node takes is never corrected; pods that really need as much request it.
        """
        left = self.memory_left(rows)
        fits: Bools = self.memory_of(cost) + held.memory <= left
        if fits.all():
            return fits
        is_free: Bools = (self.pods[rows] == 0.0) & (left > 0.0) & (np.asarray(held.memory) == 0.0)
        return fits | is_free

    def paced(self, cost: Cost, rows: Rows, now: float) -> Bools:
        """Which nodes may be given the work of one such pod now."""
        if cost.work is None or self.unpaced:
            return np.ones(len(self.pods[rows]), dtype=np.bool_)
        self.settle()
        paced: Bools = self._pace.free_from(cost, rows, self._usable_cpu, self.settings, now) <= now
        return paced if paced.all() else paced | (self.pods[rows] == 0.0)

    def blind_pods(self, rows: Rows) -> Floats:
        """Pods of a kind that nothing is known of which a node may run at once."""
        blind: Floats = np.maximum(1.0, np.floor(self.cores[rows] / self.settings.blind_cores))
        return blind

    def seconds_until_paced(self, cost: Cost, rows: Rows, now: float) -> float:
        """Seconds until the first of the nodes with room for one such pod may be given its work; infinity: never."""
        waiting = self.fits(cost, rows) & ~self.paced(cost, rows, now)
        if not waiting.any():
            return np.inf
        return float(self._pace.free_from(cost, rows, self._usable_cpu, self.settings, now)[waiting].min()) - now

    def commitment(self, cost: Cost, rows: Rows) -> Floats:
        """How much of its scarcest resource a node has committed once it has taken such a pod, in parts of it."""
        self.settle()
        cpu = self._cpu_part[rows] + cost.share * self._per_core[rows]
        memory = self._memory_part[rows] + self.memory_of(cost) * self._per_byte[rows]
        return np.maximum(cpu, memory)

    def observe(self, row: int, used: float, waiting: bool, now: float, wanting: float | None = None) -> None:
        """What was measured: a filled node that idles while pods wait is given more head room, one that does not, less.

        Args:
            row: the node.
            used: its CPU utilisation, in parts of it.
            waiting: whether pods wait for a place.
            now: seconds.
            wanting: pods that compute, or wait for a CPU altogether, per core; None if that is unknown.
        """
        left, pods = self.left(row)[0], self.pods[row]
        # There is little room, or none for one more pod like those that are there on average
        little = max(self.settings.overhang * self.cpu[row] / max(pods, 1.0), _LITTLE * (self.cpu[row] + left))
        filled = bool(waiting and pods > 0.0 and left <= little)
        self._head_room.report(row, used, filled, now, self.settings)
        self._pace.note_wanting(row, wanting)
        self._unsettled.add(row)

    def set_waiting(self, cores: float, rows: Rows = slice(None), held: Held = NONE_HELD) -> None:
        """Note what all waiting pods take together; it counts until the next call.

        The last pods of a Job may fill nodes a little beyond their head room: else it takes a pod's life longer. What
        nodes are over already is taken off. So pods of a steady stream are not all placed so.

        Args:
            cores: their sum; infinity if it is not known.
            rows: the nodes that take pods.
            held: what room is held for on each, and not for those pods.
        """
        settings, left = self.settings, self.cpu_left(rows) - held.cpu
        beyond = self._head_room.for_last(rows, settings) * self._usable_cpu[rows]
        within, most = (float(np.maximum(room, 0.0).sum()) for room in (left, left + beyond))
        self.unpaced = bool(settings.last_pods) and cores <= min(most, within / _WITHIN)
        self.beyond = settings.last_pods if within < cores <= most else 0.0

    def forget_waiting(self) -> None:
        """No pods wait that have been counted together (``set_waiting``)."""
        self.beyond, self.unpaced = 0.0, False

    def set_head_room(self, row: int, head_room: float) -> None:
        """Fill the node to that part of its cores, within the bounds that the settings name."""
        self.settle()
        self._head_room.set(row, head_room, self.settings)
        self._unsettled.add(row)


def _index(rows: set[int]) -> int | NDArray[np.int64]:
    """The rows as an index; of a single one numpy reads an entry in a fraction of the time."""
    return next(iter(rows)) if len(rows) == 1 else np.fromiter(rows, np.int64, len(rows))


def _beyond_for_light(cpu: Floats, pods: Floats, share: float, settings: KindSettings) -> Floats:
    """Cores that nodes may be filled to beyond their head room for a light pod: as many as for an ordinary last pod.

    Args:
        cpu: cores that the pods of each node take together.
        pods: their number on each node.
        share: cores that the pod takes; if that is not light, or not small beside theirs, the answer is 0.
        settings: constants.
    """
    mean_share = cpu / np.maximum(pods, 1.0)
    is_small = share <= np.minimum(settings.light_share, _SMALL * mean_share)
    beyond: Floats = np.where(is_small, (1.0 - settings.overhang) * mean_share, 0.0)
    return beyond


def _of_last_pods(cpu: Floats, pods: Floats, share: float, settings: KindSettings) -> Floats:
    """Cores of a last pod that have to fit, where it goes beyond the head room.

    There is room for all last pods on all nodes together, but maybe on no single one for another whole share. So they
    stand over as others do. A pod that is large beside those on the node does not: it would stall them all.

    Args:
        cpu: cores that the pods of each node take together.
        pods: their number on each node.
        share: cores that the pod takes.
        settings: constants.
    """
    is_ordinary = settings.overhang * share * pods <= cpu
    has_to_fit: Floats = np.where(is_ordinary, settings.overhang, 1.0) * share
    return has_to_fit
