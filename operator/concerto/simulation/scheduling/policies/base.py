"""What policies share: a queue of pending pods and doing nothing where a policy has no interest."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.workloads import SimPod


class QueueingPolicy:
    """Pods in order of arrival; subclasses say where the next one goes."""

    def attach(self, world: World) -> None:
        """See Policy."""
        self.world = world
        self.pending: deque[SimPod] = deque()
        self.ready = [True] * len(world.nodes)

    def pod_pending(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.pending.append(pod)

    def pod_bound(self, pod: SimPod, now: float) -> None:
        """See Policy."""

    def pod_running(self, pod: SimPod, now: float) -> None:
        """See Policy."""

    def containers_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""

    def bind_failed(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.forget(pod)
        self.pending.append(pod)

    def node_ready(self, node: int, ready: bool, now: float) -> None:
        """See Policy."""
        self.ready[node] = ready

    def sample(self, readings: Readings, now: float) -> None:
        """See Policy."""

    def transition(self, change: Transition) -> None:
        """See Policy."""

    def forget(self, pod: SimPod) -> None:
        """Undo what was assumed when the pod was placed."""

    def place(self, pod: SimPod, now: float) -> int | None:
        """The node for one pod, assumed at once; None if no node fits."""
        raise NotImplementedError

    def schedule(self, now: float) -> Sequence[tuple[SimPod, int]]:
        """See Policy. Once no node takes a pod, pods that are like it wait for the next cycle, too."""
        placed: list[tuple[SimPod, int]] = []
        waiting: deque[SimPod] = deque()
        refused: set[str] = set()
        while self.pending:
            pod = self.pending.popleft()
            if pod.node is not None:
                continue
            node = None if pod.job.name in refused else self.place(pod, now)
            if node is None:
                waiting.append(pod)
                refused.add(pod.job.name)
                if len(refused) == len(self.world.setup.jobs):
                    break
            else:
                placed.append((pod, node))
        waiting.extend(self.pending)
        self.pending = waiting
        return placed
