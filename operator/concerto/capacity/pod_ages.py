"""How many pods of each node are younger than each of a few ages, kept up to date at O(1) a sample.

Pods are counted in slots of a tenth of a second by their start; as time moves on, the slot that leaves an age's window
is subtracted. Exact ages are never needed, so no list of pods is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int32]

SLOT_SECONDS = 0.1
"""Resolution of ages: one sample at 10 Hz."""


class PodAges:
    """Counts of young pods, for N nodes and K ages.

    Attributes:
        younger: (K, N) pods younger than the k-th age.
        pods: (N,) all pods.
    """

    def __init__(self, n_nodes: int, ages_seconds: Sequence[float]) -> None:
        """No pods, and no time yet."""
        self._spans = np.array([ceil(age / SLOT_SECONDS - 1e-9) for age in ages_seconds])
        self._length = int(self._spans.max()) + 1
        self._started: Counts = np.zeros((self._length, n_nodes), dtype=np.int32)
        self._head: int | None = None
        self.younger: Counts = np.zeros((len(ages_seconds), n_nodes), dtype=np.int32)
        self.pods: Counts = np.zeros(n_nodes, dtype=np.int32)

    @property
    def now(self) -> float:
        """The time that has come, to the slot, in seconds."""
        return 0.0 if self._head is None else self._head * SLOT_SECONDS

    def advance(self, now: float) -> None:
        """Let time pass until ``now`` (monotonic seconds); a time already passed changes nothing."""
        slot = floor(now / SLOT_SECONDS + 1e-6)
        if self._head is None:
            self._head = slot
        elif slot - self._head >= self._length:
            self._started[:] = 0
            self.younger[:] = 0
            self._head = slot
        while self._head < slot:
            self._head += 1
            self._started[self._head % self._length] = 0
            self.younger -= self._started[(self._head - self._spans) % self._length]

    def started(self, node: int, at: float) -> None:
        """A pod of the node has started at ``at``; that may be long ago."""
        self.advance(at)
        self.pods[node] += 1
        self._count(node, at, 1)

    def ended(self, node: int, started_at: float) -> None:
        """The pod of the node that had started at ``started_at`` is gone."""
        if self.pods[node] > 0:
            self.pods[node] -= 1
            self._count(node, started_at, -1)

    def _count(self, node: int, started_at: float, change: int) -> None:
        assert self._head is not None
        slot = floor(started_at / SLOT_SECONDS + 1e-6)
        age = self._head - slot
        if 0 <= age < self._length:
            self._started[slot % self._length, node] += change
            self.younger[:, node] += change * (age < self._spans)
