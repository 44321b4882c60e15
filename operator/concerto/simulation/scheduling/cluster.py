"""The virtual-time cluster: an event queue, nodes, an API with latencies and faults, and one policy that places pods.

Everything that happens is an event at a virtual time; nothing reads a clock. The policy sees only what a real scheduler
would see: objects as watches deliver them, and telemetry as 10 Hz samples.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from concerto.simulation.scheduling.false_telemetry import FalseTelemetry
from concerto.simulation.scheduling.gangs import Gangs
from concerto.simulation.scheduling.node_fleet import NodeFleet
from concerto.simulation.scheduling.node_model import Change, Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.recorder import Recorder
from concerto.simulation.scheduling.setup import Fault, Setup
from concerto.simulation.scheduling.workloads import SimPod, first_name, make_pods, successor


class Policy(Protocol):
    """A scheduler with its node agents."""

    def attach(self, world: World) -> None:
        """Called once before time begins."""

    def pod_pending(self, pod: SimPod, now: float) -> None:
        """A pod without a node has been seen."""

    def pod_bound(self, pod: SimPod, now: float) -> None:
        """A pod's binding has been seen."""

    def pod_running(self, pod: SimPod, now: float) -> None:
        """A pod's status has become Running."""

    def containers_ended(self, pod: SimPod, now: float) -> None:
        """A pod's status shows that its containers have ended. Its phase says so only once it has been taken down."""

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """A pod's terminal phase (or deletion) has been seen."""

    def bind_failed(self, pod: SimPod, now: float) -> None:
        """A binding was refused, or its outcome is unknown; the pod has been read again and has no node."""

    def node_ready(self, node: int, ready: bool, now: float) -> None:
        """A node's Ready condition has been seen to change."""

    def sample(self, readings: Readings, now: float) -> None:
        """One 10 Hz sample of all nodes."""

    def transition(self, change: Transition) -> None:
        """Something happened on a node that its agent could see (its cgroups)."""

    def schedule(self, now: float) -> Sequence[tuple[SimPod, int]]:
        """One cycle: the placements to be bound."""


class World:
    """One run of one policy.

    Args:
        setup: the scenario.
        policy: the scheduler.
        seed: seed of all random numbers. Pods are the same under every policy.
    """

    SAMPLE_SECONDS = 0.1

    def __init__(self, setup: Setup, policy: Policy, seed: int) -> None:
        self.setup = setup
        self.policy = policy
        streams = np.random.SeedSequence(seed).spawn(5)
        pods_rng, plant_rng, api_rng, policy_rng, ends_rng = (np.random.default_rng(s) for s in streams)
        self.rng = policy_rng
        self._api_rng = api_rng
        # Of its own: who waits for phases has the same run whenever containers' ends are shown
        self._ends_rng = ends_rng
        self.now = 0.0
        self.nodes = [spec for spec in setup.nodes for _ in range(spec.count)]
        self.fleet = NodeFleet(
            [n.cores for n in self.nodes], [n.memory_bytes for n in self.nodes], plant_rng, setup.plant
        )
        self.recorder = Recorder(len(self.nodes), setup.jobs)
        self.gangs = Gangs(setup.jobs)
        self.pods: dict[str, SimPod] = {}
        self._arriving = make_pods(setup.jobs, pods_rng)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._dirty = False
        self._next_cycle = 0.0
        self._wanted = sum(job.count for job in setup.jobs if not job.endless)
        self._done: set[str] = set()
        self._lost = [False] * len(self.nodes)
        self._api_down_until = -1.0
        self._started: set[str] = set()
        self._agent_dead = np.zeros(len(self.nodes), dtype=bool)
        self._false_telemetry = FalseTelemetry()

    # -- for policies

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Call ``what`` after so many seconds."""
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + seconds, self._sequence, what))

    def watch(self, what: Callable[[], None], rng: np.random.Generator | None = None) -> None:
        """Deliver a watch event: after the watch's latency, and not while the API server is down."""
        delay = self._draw(self.setup.api.watch_seconds, rng)
        self.after(delay + max(0.0, self._api_down_until - self.now), what)

    def write(self, what: Callable[[], None], rng: np.random.Generator | None = None) -> bool:
        """Send a write; False if the API server is down, so that nothing was sent."""
        if self.api_down:
            return False
        self.after(self._draw(self.setup.api.write_seconds, rng), what)
        return True

    def wake(self) -> None:
        """Something changed: run a scheduling cycle soon."""
        self._dirty = True

    def evict(self, pod: SimPod) -> None:
        """Delete a pod for another one: its container is stopped, and its Job makes a new one."""
        if self.write(lambda: self._evicted(pod)):
            self.gangs.evicted()

    @property
    def api_down(self) -> bool:
        """Whether the API server is down."""
        return self.now < self._api_down_until

    def agent_dead(self, node: int) -> bool:
        """Whether the node's agent is dead (or its node is)."""
        return bool(self._agent_dead[node]) or self._lost[node]

    # -- the run

    def run(self) -> Recorder:
        """Run until all jobs are complete or the limit is reached, and return what was recorded."""
        self.policy.attach(self)
        for fault in self.setup.faults:
            self.after(self.setup.warmup_seconds + fault.at_seconds, partial(self._begin, fault))
        for pod in self._arriving:
            pod.created_at += self.setup.warmup_seconds
            self.after(pod.created_at, partial(self._create, pod))
        self.after(self.setup.warmup_seconds, lambda: self.recorder.begin(self.now, self.fleet))
        next_sample = self.SAMPLE_SECONDS
        while len(self._done) < self._wanted and self.now < self.setup.limit_seconds:
            self.now = min(
                self._queue[0][0] if self._queue else np.inf,
                self.fleet.next_time(),
                next_sample,
                self._next_cycle if self._dirty else np.inf,
            )
            for change in self.fleet.advance(self.now):
                self._changed(change)
            while self._queue and self._queue[0][0] <= self.now:
                heapq.heappop(self._queue)[2]()
            if next_sample <= self.now:
                next_sample += self.SAMPLE_SECONDS
                readings = self.fleet.readings(self.now)
                self.recorder.sample(self.now, readings, self.fleet)
                self.policy.sample(self._false_telemetry.apply(readings), self.now)
            if self._dirty and self._next_cycle <= self.now:
                self._dirty = False
                self._next_cycle = self.now + self.setup.api.cycle_seconds
                for pod, node in self.policy.schedule(self.now):
                    self._bind(pod, node)
        self.recorder.finish(self.now, self.fleet)
        self.gangs.finish(self.now)
        return self.recorder

    # -- the API server, the Job controller, the node controller

    def _draw(self, bounds: tuple[float, float], rng: np.random.Generator | None = None) -> float:
        return bounds[0] + (bounds[1] - bounds[0]) * float((rng or self._api_rng).random())

    def _create(self, pod: SimPod) -> None:
        if self.api_down:
            self.after(self._api_down_until - self.now, lambda: self._create(pod))
            return
        self.pods[pod.uid] = pod
        self.recorder.created(pod, self.now)
        self.gangs.created(pod, self.now)
        if pod.job.node is not None:
            self._bind(pod, pod.job.node)
        else:
            self.watch(lambda: self._seen_pending(pod))

    def _seen_pending(self, pod: SimPod) -> None:
        if pod.phase == "Pending" and pod.node is None:
            self.policy.pod_pending(pod, self.now)
            self.wake()

    def _bind(self, pod: SimPod, node: int) -> None:
        self.recorder.decided(pod, node, self.now)
        self.gangs.holds(pod, self.now)
        if not self.write(lambda: self._bound(pod, node)):
            self.after(1.0, lambda: self._bind_failed(pod))  # connection refused: back off

    def _bind_failed(self, pod: SimPod) -> None:
        if pod.node is None:
            self.recorder.undecided(pod)
            self.gangs.lets_go(pod, self.now)
            self.policy.bind_failed(pod, self.now)
            self.wake()

    def _bound(self, pod: SimPod, node: int) -> None:
        if pod.node is not None or pod.phase != "Pending":
            return  # 409: it has a node already
        # The server may have gone away with the request in flight: half of such writes have taken effect.
        if self.api_down and self._api_rng.random() < 0.5:
            self.after(self._api_down_until - self.now + 1.0, lambda: self._bind_failed(pod))
            return
        pod.node, pod.bound_at = node, self.now
        self.recorder.bound(pod, node, self.now)
        self.watch(lambda: self._kubelet_sees(pod, node))
        self.watch(lambda: self.policy.pod_bound(pod, self.now) if pod.phase == "Pending" else None)

    def _kubelet_sees(self, pod: SimPod, node: int) -> None:
        if pod.phase == "Pending" and not self._lost[node] and pod.uid not in self._started:
            self._started.add(pod.uid)
            self.fleet.start(pod.uid, node, pod.load, self.now, held=bool(pod.gang))

    def _changed(self, change: Transition) -> None:
        pod = self.pods[str(change.pod)]
        self.recorder.transition(pod, change)
        self.policy.transition(change)
        if change.change is Change.RUNNING:
            for uid, node in self.gangs.runs(pod, change.node, change.at).items():
                self.fleet.release(uid, node, change.at)
            self._status(pod, "Running")
        elif change.change is Change.EXITED:
            self.gangs.exited(pod, change.at, completed=change.reason == "Completed")
            if change.reason == "Completed":
                self._done.add(first_name(pod))  # a pod whose end was not seen runs again, and counts once
        elif change.change is Change.ENDED:
            self._show_end(pod)
        elif change.change is Change.TERMINATED:
            if change.reason == "Deleted" and change.measured is not None:
                self.gangs.lost(change.measured.work)
            self._status(pod, "Succeeded" if change.reason == "Completed" else "Failed")

    def _show_end(self, pod: SimPod) -> None:
        """The kubelet writes that the containers have ended, and tries again while the API server is down."""

        def written() -> None:
            if pod.phase in ("Pending", "Running"):
                pod.ended = True
                self.watch(seen, self._ends_rng)

        def seen() -> None:
            if pod.phase in ("Pending", "Running"):
                self.policy.containers_ended(pod, self.now)

        if not self.write(written, self._ends_rng):
            self.after(1.0, lambda: self._show_end(pod))

    def _status(self, pod: SimPod, phase: str) -> None:
        """The kubelet writes a pod's status, and tries again while the API server is down."""
        if not self.write(lambda: self._status_written(pod, phase)):
            self.after(1.0, lambda: self._status(pod, phase))

    def _status_written(self, pod: SimPod, phase: str) -> None:
        if pod.phase in ("Succeeded", "Failed", "Deleted"):
            return
        pod.phase = phase
        if phase == "Running":
            self.watch(lambda: self.policy.pod_running(pod, self.now))
            return
        self.watch(lambda: self._seen_ended(pod))
        if phase == "Failed" and not pod.job.endless:
            self.after(1.0, lambda: self._create(successor(pod, self.now)))

    def _evicted(self, pod: SimPod) -> None:
        if pod.node is None or pod.phase not in ("Pending", "Running"):
            return
        pod.deleting = True
        if pod.uid in self._started:
            self.fleet.delete(pod.uid, pod.node, self.now)
        else:
            self._gone(pod)

    def _seen_ended(self, pod: SimPod) -> None:
        self.policy.pod_ended(pod, self.now)
        self.wake()

    # -- faults

    def _affected(self, fault: Fault) -> Sequence[int]:
        return fault.nodes or range(len(self.nodes))

    def _begin(self, fault: Fault) -> None:
        end = partial(self.after, fault.for_seconds)
        if fault.kind == "ApiOutage":
            self._api_down_until = self.now + fault.for_seconds
            end(self.wake)
            return
        for node in self._affected(fault):
            if fault.kind == "AgentDeath":
                self._agent_dead[node] = True
                end(partial(self._agent_back, node))
            elif fault.kind == "NodeLoss":
                self._lose(node)
                end(partial(self._restore, node))
            else:
                self._false_telemetry.begin(node, fault.kind)
                end(partial(self._false_telemetry.end, node))

    def _agent_back(self, node: int) -> None:
        self._agent_dead[node] = False

    def _lose(self, node: int) -> None:
        """The node stops; later it is NotReady, its pods are evicted, and their Jobs create new ones."""
        self._lost[node] = True
        self.fleet.fail(node, self.now)
        self.recorder.node_lost(node, self.now)
        self.after(self.setup.not_ready_seconds, lambda: self._not_ready(node))

    def _not_ready(self, node: int) -> None:
        if self._lost[node]:
            self.watch(lambda: self._seen_ready(node, False))
            self.after(self.setup.eviction_seconds, lambda: self._evict(node) if self._lost[node] else None)

    def _seen_ready(self, node: int, ready: bool) -> None:
        self.policy.node_ready(node, ready, self.now)
        self.wake()

    def _evict(self, node: int) -> None:
        for pod in [p for p in self.pods.values() if p.node == node and p.phase in ("Pending", "Running")]:
            self._gone(pod)

    def _gone(self, pod: SimPod) -> None:
        pod.phase = "Deleted"
        self.recorder.deleted(pod, self.now)
        self.watch(lambda: self._seen_ended(pod))
        if not pod.job.endless:
            self._create(successor(pod, self.now))

    def _restore(self, node: int) -> None:
        """The node is back: pods that ran on it have failed, pods that were bound to it since start now."""
        self._lost[node] = False
        self.fleet.restore(node, self.now)
        self.watch(lambda: self._seen_ready(node, True))
        for pod in [p for p in self.pods.values() if p.node == node and p.phase in ("Pending", "Running")]:
            if pod.uid in self._started:
                self._gone(pod)
            else:
                self._kubelet_sees(pod, node)
