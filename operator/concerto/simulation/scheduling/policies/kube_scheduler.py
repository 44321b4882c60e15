"""kube-scheduler as it is without plugins of others: requests only.

Source: k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources (v1.35): Fit with LeastAllocated, and
BalancedAllocation, each of weight 1 over cpu and memory; pods without requests count 100m and 200Mi in the scores; one
of the best nodes is taken at random.
"""

from __future__ import annotations

import numpy as np

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import MIB
from concerto.simulation.scheduling.policies.base import QueueingPolicy
from concerto.simulation.scheduling.workloads import SimPod

NONZERO_MILLICORES = 100
NONZERO_MEMORY = 200 * MIB


class KubeScheduler(QueueingPolicy):
    """Places by requests.

    Args:
        cpu_request_millicores: overrides what jobs request, as in the request sweep; None takes theirs.
    """

    def __init__(self, cpu_request_millicores: int | None = None) -> None:
        self.override = cpu_request_millicores

    def attach(self, world: World) -> None:
        """See Policy."""
        super().attach(world)
        self.allocatable = np.array([[n.cores * 1000, n.memory_bytes] for n in world.nodes])
        self.requested = np.array([[float(n.reserved_millicores), n.reserved_memory_bytes] for n in world.nodes])
        self.nonzero = self.requested.copy()
        self.count = np.zeros(len(world.nodes), dtype=int)
        self.max_pods = np.array([n.max_pods for n in world.nodes])
        self.held: dict[str, int] = {}
        for pod in world.setup.jobs:
            if pod.node is not None:
                self.requested[pod.node] += self.requests(pod)[0] * pod.count

    def requests(self, job: object) -> tuple[np.ndarray, np.ndarray]:
        """What fits and what scores count for a pod of the job: millicores and bytes."""
        cpu = self.override if self.override is not None else job.cpu_request_millicores  # type: ignore[attr-defined]
        memory = job.memory_request_bytes  # type: ignore[attr-defined]
        return (
            np.array([float(cpu), memory]),
            np.array([float(cpu) or NONZERO_MILLICORES, memory or NONZERO_MEMORY]),
        )

    def feasible(self, request: np.ndarray) -> np.ndarray:
        """Nodes on which the request fits."""
        fits = (self.requested + request <= self.allocatable).all(axis=1)
        return np.asarray(fits & (self.count < self.max_pods) & np.array(self.ready))

    def scores(self, scored: np.ndarray) -> np.ndarray:
        """LeastAllocated + BalancedAllocation of each node, each an integer of 0 to 100."""
        fractions = np.clip((self.nonzero + scored) / self.allocatable, 0.0, 1.0)
        least = np.floor((1 - fractions).mean(axis=1) * 100)
        balanced = np.floor((1 - np.abs(fractions[:, 0] - fractions[:, 1]) / 2) * 100)
        return np.asarray(least + balanced)

    def place(self, pod: SimPod, now: float) -> int | None:
        """See QueueingPolicy."""
        request, scored = self.requests(pod.job)
        feasible = np.flatnonzero(self.feasible(request))
        if not feasible.size:
            return None
        scores = self.scores(scored)[feasible]
        best = feasible[scores == scores.max()]
        node = int(best[self.world.rng.integers(best.size)])
        self.requested[node] += request
        self.nonzero[node] += scored
        self.count[node] += 1
        self.held[pod.uid] = node
        return node

    def forget(self, pod: SimPod) -> None:
        """See QueueingPolicy."""
        node = self.held.pop(pod.uid, None)
        if node is not None:
            request, scored = self.requests(pod.job)
            self.requested[node] -= request
            self.nonzero[node] -= scored
            self.count[node] -= 1

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.forget(pod)
