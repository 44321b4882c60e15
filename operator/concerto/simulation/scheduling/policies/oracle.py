"""An oracle: it knows each pod's waiting and work, and what every node runs. A bound, not a scheduler.

A node takes a pod if fewer than `slack` times its cores' worth of threads, the pod's own counted, will be runnable once
the new pod starts to compute.
"""

from __future__ import annotations

import numpy as np

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import Change, Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.policies.base import QueueingPolicy
from concerto.simulation.scheduling.workloads import SimPod


class Oracle(QueueingPolicy):
    """Knows work, waiting and start-up of all pods.

    Args:
        slack: runnable threads per core that it aims at.
    """

    def __init__(self, slack: float = 1.25) -> None:
        self.slack = slack

    def attach(self, world: World) -> None:
        """See Policy."""
        super().attach(world)
        plant = world.setup.plant
        self.start_seconds = sum(plant.start_seconds) / 2 + plant.start_core_seconds
        # Placed, but not yet seen by the node: [time at which it begins to compute, core-seconds a thread, threads].
        self.sent: list[dict[str, list[float]]] = [{} for _ in world.nodes]
        self.memory = np.array([world.setup.plant.system_memory_bytes] * len(world.nodes))
        self.held: dict[str, int] = {}

    def _share(self, pods: list[list[float]], cores: float, begin: float, end: float) -> float:
        """Let `pods` compute from begin to end, sharing the cores; returns the threads runnable at the end."""
        now = begin
        while True:
            active = [p for p in pods if p[0] <= now and p[1] > 1e-9]
            threads = sum(p[2] for p in active)
            if now >= end:
                return threads
            rate = min(1.0, cores / threads) if threads else 0.0
            until = min([end, *(p[0] for p in pods if p[0] > now), *(now + p[1] / rate + 1e-6 for p in active)])
            for p in active:
                p[1] = max(0.0, p[1] - rate * (until - now))
            now = until

    def place(self, pod: SimPod, now: float) -> int | None:
        """See QueueingPolicy."""
        at = now + self.start_seconds + pod.load.wait_seconds
        best, least = None, np.inf
        for node, spec in enumerate(self.world.nodes):
            if not self.ready[node] or self.memory[node] + pod.load.memory_bytes > spec.memory_bytes * 0.95:
                continue
            pods = self.world.fleet.outlook(node, now) + [p.copy() for p in self.sent[node].values()]
            later = sum(p[2] for p in pods if p[0] > at)
            threads = self._share(pods, spec.cores, now, at) + later + pod.load.threads
            if threads <= max(self.slack * spec.cores, pod.load.threads) and threads / spec.cores < least:
                best, least = node, threads / spec.cores
        if best is not None:
            load = pod.load
            self.sent[best][pod.uid] = [at, load.core_seconds / load.threads, float(load.threads)]
            self.memory[best] += load.memory_bytes
            self.held[pod.uid] = best
        return best

    def forget(self, pod: SimPod) -> None:
        """See QueueingPolicy."""
        node = self.held.pop(pod.uid, None)
        if node is not None:
            self.sent[node].pop(pod.uid, None)
            self.memory[node] -= pod.load.memory_bytes

    def containers_ended(self, pod: SimPod, now: float) -> None:
        """See Policy: its memory is free."""
        self.forget(pod)

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.forget(pod)

    def transition(self, change: Transition) -> None:
        """See Policy."""
        if change.change is Change.CGROUP_CREATED:
            self.sent[change.node].pop(str(change.pod), None)

    def sample(self, readings: Readings, now: float) -> None:
        """See Policy: it looks again ten times a second."""
        if self.pending:
            self.world.wake()
