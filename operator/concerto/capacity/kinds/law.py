"""Which nodes can take a pod of a known cost, and how much of it: head room in every resource, and work at a pace.

A node whose CPUs just do not idle runs pods whose natural shares add up to its cores (Little's law, kind by kind). So
a pod is admitted while the shares of the pods there, counted from the moment they are placed, leave room for it, and
while the node is not being given work faster than it can do it: tokens grow with its cores, and a pod costs its CPU
time. That keeps pods of one burst from computing all at the same time.

Head room keeps its sign: a node that is over its cores takes nothing until pods have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.capacity.kinds.cost import Cost

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]


@dataclass(frozen=True)
class KindSettings:
    """Constants of the law.

    Attributes:
        head_room: shares that a node is filled to, in parts of its cores: pods are unsteady, and some are always about
            to begin or to end.
        max_head_room: the same where a filled node is seen to idle.
        pace: core-seconds of work that a node is given in a second, in parts of its cores.
        burst: work that a node may be given at once, in parts of what it does in a pod's life.
        overhang: part of a pod's share that has to fit: the last pod of a node may stand over by the rest.
        memory: part of the memory that is filled.
        default_memory: bytes that a pod is taken to use while nothing is known.
        default_life_seconds: a pod's life while nothing is known.
        blind_cores: cores for each pod of which nothing is known yet.
    """

    head_room: float = 1.15
    max_head_room: float = 2.0
    pace: float = 1.0
    burst: float = 0.15
    overhang: float = 0.3
    memory: float = 0.95
    default_memory: float = 64 * 2.0**20
    default_life_seconds: float = 2.0
    blind_cores: float = 4.0


class NodeLoads:
    """What is committed on N nodes, by the costs of the pods placed there.

    Attributes:
        cores: (N,) CPUs.
        memory_bytes: (N,) memory.
        max_pods: (N,) pods that the kubelet takes.
        own_cpu: (N,) cores that what is no pod uses.
        own_memory: (N,) bytes that what is no pod uses.
        cpu: (N,) cores committed to pods.
        memory: (N,) bytes committed to pods.
        pods: (N,) pods placed.
        head_room: (N,) see ``KindSettings``.
        tokens: (N,) core-seconds of work that may be given now; negative after more was given than the pace allows.
    """

    def __init__(self, settings: KindSettings, cores: Floats, memory_bytes: Floats, max_pods: Floats) -> None:
        count = len(cores)
        self.settings = settings
        self.cores, self.memory_bytes, self.max_pods = cores.astype(float), memory_bytes.astype(float), max_pods
        self.own_cpu, self.own_memory = np.zeros(count), np.zeros(count)
        self.cpu, self.memory, self.pods = np.zeros(count), np.zeros(count), np.zeros(count)
        self.head_room = np.full(count, settings.head_room)
        self.tokens = np.full(count, np.inf)
        self._tokens_at = 0.0
        self._used = np.zeros(count)

    def add_pod(self, row: int, cost: Cost, *, new: bool = True) -> None:
        """A pod has been placed; one that was found there has been given its work before."""
        self.cpu[row] += cost.share
        self.memory[row] += self._memory_of(cost)
        self.pods[row] += 1.0
        if new and cost.work is not None:
            self.tokens[row] -= cost.work

    def remove_pod(self, row: int, cost: Cost) -> None:
        """A pod has ended; ``cost`` is what it was added with, or what ``change_cost`` has made of it since."""
        self.cpu[row] -= cost.share
        self.memory[row] -= self._memory_of(cost)
        self.pods[row] -= 1.0

    def change_cost(self, row: int, before: Cost, after: Cost, pods: float = 1.0) -> None:
        """More is known of the kind of pods that are there."""
        self.cpu[row] += pods * (after.share - before.share)
        self.memory[row] += pods * (self._memory_of(after) - self._memory_of(before))

    def _memory_of(self, cost: Cost) -> float:
        return self.settings.default_memory if cost.memory is None else cost.memory

    def cpu_left(self) -> Floats:
        """(N,) cores that are not committed; negative where a node is over."""
        left: Floats = self.head_room * np.maximum(self.cores - self.own_cpu, 0.0) - self.cpu
        return left

    def memory_left(self) -> Floats:
        """(N,) bytes that are not committed; negative where a node is over."""
        left: Floats = self.settings.memory * self.memory_bytes - self.own_memory - self.memory
        return left

    def capacity(self, cost: Cost) -> Floats:
        """(N,) pods of that cost that the nodes can hold beside what they hold, signed."""
        by_cpu = self.cpu_left() / max(cost.share, 1e-6)
        by_memory = self.memory_left() / max(self._memory_of(cost), 1.0)
        capacity: Floats = np.minimum(np.minimum(by_cpu, by_memory), self.max_pods - self.pods)
        return capacity

    def feasible(self, cost: Cost, like: Floats, now: float) -> Bools:
        """(N,) which nodes may take one such pod now.

        Args:
            cost: of the pod.
            like: (N,) pods of its kind that are there; they matter while nothing is known of it.
            now: seconds.
        """
        self._grow(cost, now)
        alone = self.pods == 0.0
        fits: Bools = (self.settings.overhang * cost.share <= self.cpu_left()) | alone
        fits &= self._memory_of(cost) <= self.memory_left()
        fits &= self.pods < self.max_pods
        if not cost.known:
            fits &= like < np.maximum(1.0, self.cores // self.settings.blind_cores)
        if cost.work is not None:
            fits &= (self.tokens >= 0.0) | alone
        return fits

    def _grow(self, cost: Cost, now: float) -> None:
        life = cost.held or self.settings.default_life_seconds
        grown = self.tokens + self.settings.pace * self.cores * max(0.0, now - self._tokens_at)
        self.tokens, self._tokens_at = np.minimum(grown, self.settings.burst * self.cores * life), now

    def commitment(self, cost: Cost) -> Floats:
        """(N,) how much of its scarcest resource a node has committed once it has taken such a pod, in parts of it."""
        cpu = (self.cpu + cost.share) / np.maximum(self.cores - self.own_cpu, 1e-6)
        memory = (self.own_memory + self.memory + self._memory_of(cost)) / np.maximum(self.memory_bytes, 1.0)
        commitment: Floats = np.maximum(cpu, memory)
        return commitment

    def observe(self, used: Floats, waiting: bool, seconds: float) -> None:
        """What was measured: a filled node that idles while pods wait is given more head room, one that does not, less.

        Args:
            used: (N,) CPU utilisation, in parts of the node.
            waiting: whether pods wait for a place.
            seconds: since the last call.
        """
        self._used += min(1.0, 0.2 * seconds) * (used - self._used)
        if waiting:
            full = self.cpu >= 0.9 * self.head_room * self.cores
            step = np.where(full, 0.1 * seconds * (0.97 - self._used), 0.0)
            self.head_room = np.clip(self.head_room + step, self.settings.head_room, self.settings.max_head_room)
