"""Random: any node with room for one more pod by the kubelet's limit. What looking at nothing gives."""

from __future__ import annotations

import numpy as np

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.policies.base import QueueingPolicy
from concerto.simulation.scheduling.workloads import SimPod


class RandomChoice(QueueingPolicy):
    """Takes nodes at random."""

    def attach(self, world: World) -> None:
        """See Policy."""
        super().attach(world)
        self.count = np.zeros(len(world.nodes), dtype=int)
        self.limit = np.array([n.max_pods for n in world.nodes])
        self.held: dict[str, int] = {}

    def place(self, pod: SimPod, now: float) -> int | None:
        """See QueueingPolicy."""
        free = np.flatnonzero((self.count < self.limit) & np.array(self.ready))
        if not free.size:
            return None
        node = int(free[self.world.rng.integers(free.size)])
        self.count[node] += 1
        self.held[pod.uid] = node
        return node

    def forget(self, pod: SimPod) -> None:
        """See QueueingPolicy."""
        node = self.held.pop(pod.uid, None)
        if node is not None:
            self.count[node] -= 1

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.forget(pod)
