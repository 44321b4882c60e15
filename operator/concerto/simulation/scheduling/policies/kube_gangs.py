"""kube-scheduler with priorities, preemption and three ways to place gangs, all by requests.

Sources: k8s.io/kubernetes v1.37, pkg/scheduler/schedule_one_podgroup.go (a gang is decided on as a whole) and
framework/preemption; kubernetes-sigs/scheduler-plugins, pkg/coscheduling, and GangScheduling of v1.35 (room is
reserved pod by pod, and given back if the rest does not come in time).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.policies.kube_scheduler import KubeScheduler
from concerto.simulation.scheduling.workloads import SimPod

ONE_BY_ONE, RESERVE_AND_WAIT, WHOLE = "one-by-one", "reserve-and-wait", "gangs"
MODES = (ONE_BY_ONE, RESERVE_AND_WAIT, WHOLE)
PERMIT_SECONDS = 300.0
"""How long reserved room waits for the rest of a gang (v1.35, ``permitTimeoutDuration``)."""
BACKOFF_SECONDS = 10.0
"""Longest pause before a pod is tried again (``podMaxBackoffSeconds``)."""


class KubeGangs(KubeScheduler):
    """Places by requests; pods of higher priority first, and by the eviction of others.

    Args:
        mode: one of `MODES`.
        cpu_request_millicores: what every pod requests.
    """

    def __init__(self, mode: str, cpu_request_millicores: int) -> None:
        super().__init__(cpu_request_millicores)
        self._mode = mode

    def attach(self, world: World) -> None:
        """See Policy."""
        super().attach(world)
        self._reserved: dict[str, dict[str, tuple[SimPod, int]]] = {}
        self._not_before: dict[str, float] = {}  # by gang
        self._nominated: dict[str, tuple[SimPod, int]] = {}
        self._leaving: dict[str, set[str]] = {}  # by pod or gang, the victims that have not ended

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        super().pod_ended(pod, now)
        for victims in self._leaving.values():
            victims.discard(pod.uid)

    def feasible(self, request: np.ndarray) -> np.ndarray:
        """See KubeScheduler; less what is kept for pods that others were evicted for."""
        kept = np.zeros_like(self.requested)
        for pod, node in self._nominated.values():
            if pod.job.priority >= self._priority and pod.uid != self._uid:
                kept[node] += self.requests(pod.job)[0]
        self.requested += kept
        fits = super().feasible(request)
        self.requested -= kept
        return fits

    def place(self, pod: SimPod, now: float) -> int | None:
        """See QueueingPolicy."""
        self._priority, self._uid = pod.job.priority, pod.uid
        node = super().place(pod, now)
        if node is not None:
            self._nominated.pop(pod.uid, None)
        return node

    def schedule(self, now: float) -> Sequence[tuple[SimPod, int]]:
        """See Policy."""
        waiting = [pod for pod in self.pending if pod.node is None]
        waiting.sort(key=lambda pod: (-pod.job.priority, pod.created_at))
        placed: list[tuple[SimPod, int]] = []
        left: list[SimPod] = []
        refused: set[str] = set()  # jobs that have found no node in this cycle, and gangs that were decided on
        for pod in waiting:
            if pod.gang and self._mode == WHOLE:
                if pod.gang not in refused:
                    refused.add(pod.gang)
                    placed += self._whole([each for each in waiting if each.gang == pod.gang], now)
                if pod.uid not in self.held:
                    left.append(pod)
            elif pod.job.name in refused or now < self._not_before.get(pod.gang, 0.0):
                left.append(pod)
            elif (node := self.place(pod, now)) is None:
                refused.add(pod.job.name)
                left.append(pod)
                self._preempt([pod], pod.uid)
            elif pod.gang and self._mode == RESERVE_AND_WAIT:
                placed += self._reserve(pod, node, now)
            else:
                placed.append((pod, node))
        self.pending = deque(left)
        return placed

    # -- gangs

    def _whole(self, members: list[SimPod], now: float) -> list[tuple[SimPod, int]]:
        """All pods of a gang, or none."""
        if len(members) < members[0].job.gang:
            return []
        found: list[tuple[SimPod, int]] = []
        for pod in members:
            node = self.place(pod, now)
            if node is None:
                for other, _ in found:
                    self.forget(other)
                self._preempt(members, pod.gang)
                return []
            found.append((pod, node))
        return found

    def _reserve(self, pod: SimPod, node: int, now: float) -> list[tuple[SimPod, int]]:
        """Keep the room; returns all pods of the gang once each has room."""
        reserved = self._reserved.setdefault(pod.gang, {})
        if not reserved:
            self.world.after(PERMIT_SECONDS, lambda: self._give_back(pod.gang, reserved))
        reserved[pod.uid] = (pod, node)
        self.world.gangs.holds(pod, now)
        if len(reserved) < pod.job.gang:
            return []
        del self._reserved[pod.gang]
        return [*reserved.values()]

    def _give_back(self, gang: str, reserved: dict[str, tuple[SimPod, int]]) -> None:
        """The rest of the gang has not come in time: all of its pods begin anew, after a pause."""
        if self._reserved.get(gang) is not reserved:
            return
        del self._reserved[gang]
        pause = BACKOFF_SECONDS * float(self.world.rng.random())
        self._not_before[gang] = self.world.now + pause
        for pod, _ in reserved.values():
            self.forget(pod)
            self.world.gangs.lets_go(pod, self.world.now)
            self.pending.append(pod)
        self.world.wake()
        self.world.after(pause, self.world.wake)

    # -- preemption

    def _preempt(self, pods: list[SimPod], key: str) -> None:
        """Evict pods of lower priority, so that all of these fit, if that is possible and not under way."""
        priority = pods[0].job.priority
        if self._leaving.get(key):
            return
        lower = [self.world.pods[uid] for uid in self.held if self.world.pods[uid].job.priority < priority]
        lower = [pod for pod in lower if pod.node is not None and pod.phase in ("Pending", "Running")]
        found = self._on_one_node(pods[0], lower) if len(pods) == 1 else self._for_all(pods, lower)
        if found is None:
            return
        nodes, victims = found
        self._nominated |= {pod.uid: (pod, node) for pod, node in zip(pods, nodes)}
        self._leaving[key] = {victim.uid for victim in victims}
        for victim in victims:
            self.world.evict(victim)

    def _on_one_node(self, pod: SimPod, lower: list[SimPod]) -> tuple[list[int], list[SimPod]] | None:
        """The node on which the least important and fewest pods have to go, and those pods."""
        candidates = []
        for node in range(len(self.allocatable)):
            victims = self._spare([pod], [node], [each for each in lower if each.node == node])
            if victims:
                importance = sorted((victim.job.priority for victim in victims), reverse=True)
                candidates.append((importance[0], sum(importance), len(victims), node, victims))
        if not candidates:
            return None
        *_, node, victims = min(candidates, key=lambda candidate: candidate[:4])
        return [node], victims

    def _for_all(self, pods: list[SimPod], lower: list[SimPod]) -> tuple[list[int], list[SimPod]] | None:
        """Nodes for all of the pods where no pod of lower priority were there, and the pods that have to go."""
        nodes: list[int] = []
        free = self._free_without(lower)
        for pod in pods:
            request = self.requests(pod.job)[0]
            fits = np.flatnonzero((free >= request).all(axis=1) & np.array(self.ready))
            if not fits.size:
                return None
            nodes.append(int(fits[free[fits, 0].argmax()]))
            free[nodes[-1]] -= request
        victims = self._spare(pods, nodes, [each for each in lower if each.node in nodes])
        return (nodes, victims) if victims else None

    def _spare(self, pods: list[SimPod], nodes: list[int], lower: list[SimPod]) -> list[SimPod]:
        """Of pods of lower priority, those that have to go: the most important ones stay where they can."""
        free = self._free_without(lower)
        for pod, node in zip(pods, nodes):
            free[node] -= self.requests(pod.job)[0]
        if (free[nodes] < 0).any():
            return []
        victims = []
        for pod in sorted(lower, key=lambda each: (-each.job.priority, each.bound_at or 0.0)):
            request = self.requests(pod.job)[0]
            assert pod.node is not None
            if (free[pod.node] >= request).all():
                free[pod.node] -= request
            else:
                victims.append(pod)
        return victims

    def _free_without(self, pods: Iterable[SimPod]) -> np.ndarray:
        free = self.allocatable - self.requested
        for pod in pods:
            assert pod.node is not None
            free[pod.node] += self.requests(pod.job)[0]
        return np.asarray(free)
