"""Simulated nodes: start-up, processor sharing, spikes of the container runtime, memory and its exhaustion.

All experiments use this model, and so do the simulated nodes in e2e/testbed/hollow.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from concerto.capacity.kinds.contention import StartsAndEnds
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.simulation.scheduling.node_model import Change, NodeModelSettings, PodLoad, Transition
from concerto.simulation.scheduling.node_telemetry import Floats, Rates, Readings, Telemetry
from concerto.simulation.scheduling.processor_sharing import Group, NodeState, RunningPod, RuntimeWork


class NodeFleet:
    """Nodes with a kubelet and a kernel each; `advance` moves them through time.

    Args:
        cores: CPUs of each node, N numbers.
        memory_bytes: memory of each node, N numbers.
        rng: random numbers for start-up and end delays.
        settings: constants of the node model.
        now: the time at which the fleet begins, in seconds.
    """

    def __init__(
        self,
        cores: Sequence[float],
        memory_bytes: Sequence[float],
        rng: np.random.Generator,
        settings: NodeModelSettings | None = None,
        now: float = 0.0,
    ) -> None:
        self.settings = settings or NodeModelSettings()
        self._rng = rng
        self._nodes = [NodeState(float(c), float(m), touched=now) for c, m in zip(cores, memory_bytes, strict=True)]
        for node in self._nodes:
            node.memory, node.looks_at = self.settings.system_memory_bytes, float(rng.random())
        self.cores = np.array(cores, dtype=float)
        self.memory_bytes = np.array(memory_bytes, dtype=float)
        self._telemetry = Telemetry(
            self.memory_bytes, self.settings.non_pod_cpu, self.settings.system_memory_bytes, now
        )
        self._events: list[tuple[float, int, int, int, RunningPod | None]] = []
        self._sequence = 0
        self._out: list[Transition] = []
        self.oom_kills = 0

    # -- what kubelets and operators of the cluster do

    def start(self, key: Hashable, node: int, load: PodLoad, now: float, *, held: bool = False) -> None:
        """The kubelet of `node` has seen the pod: its container runs after the start-up delay.

        A pod that is held begins to work only once it is released, too.
        """
        if not self._nodes[node].alive:
            return
        pod = RunningPod(key, node, load)
        pod.seen, pod.held = now, held
        self._nodes[node].pods[key] = pod
        full = float(self._telemetry.pressure_rate[node])
        delay = self._draw(self.settings.start_seconds) + self.settings.start_when_full_seconds * full
        # The runtime makes the container's cgroup and works, then the container runs.
        self._push(now + delay - self.settings.spike_seconds, _CONTAINER, node, pod)
        if not self.settings.start_core_seconds:
            self._push(now + delay, _RUN, node, pod)
        pod.begins = now + delay + self.settings.start_core_seconds + self._wait_of(pod)

    def release(self, key: Hashable, node: int, now: float) -> None:
        """The pod begins to work now if its container runs, else once it does."""
        pod = self._nodes[node].pods.get(key)
        if pod is not None and pod.held and not pod.over:
            pod.held = False
            if pod.running:
                pod.begins = now + self._wait_of(pod)
                self._push(pod.begins, _COMPUTE, node, pod)

    def delete(self, key: Hashable, node: int, now: float) -> None:
        """The pod has been deleted through the API: stop it."""
        pod = self._nodes[node].pods.get(key)
        if pod is not None and not pod.over:
            self._exit(pod, now, "Deleted")

    def fail(self, node: int, now: float) -> None:
        """The node is lost with all that runs on it: its pods report nothing any more."""
        state = self._nodes[node]
        self._telemetry.count(node, now)
        for pod in state.pods.values():
            pod.over = True
        state.pods, state.groups, state.spikes, state.alive = {}, {}, 0, False
        state.starts_and_ends = StartsAndEnds()
        self._telemetry.set_rates(node, Rates(0.0, 0.0, 0.0, 0.0))

    def restore(self, node: int, now: float) -> None:
        """The node is back, empty."""
        state = self._nodes[node]
        state.alive, state.memory, state.touched = True, self.settings.system_memory_bytes, now
        self._telemetry.memory_used[node] = state.memory
        self._refresh(node, now)

    # -- time

    def next_time(self) -> float:
        """Time of the next event; infinity without one."""
        return self._events[0][0] if self._events else math.inf

    def advance(self, now: float) -> list[Transition]:
        """Process all events up to `now`, and return the transitions in order."""
        events = self._events
        while events and events[0][0] <= now:
            at, _, what, node, pod = heapq.heappop(events)
            if not self._nodes[node].alive or (pod is not None and pod.over and what not in _AFTER_THE_END):
                continue
            _HANDLERS[what](self, at, node, pod)
        out, self._out = self._out, []
        return out

    def readings(self, now: float) -> Readings:
        """Telemetry since the previous call (which must have been earlier), after `advance(now)`."""
        return self._telemetry.read(now)

    # -- for recorders and the oracle, not for the code under test

    def runnable(self, node: int) -> float:
        """Threads that want a CPU on the node at this moment."""
        state = self._nodes[node]
        return sum(g.threads for g in state.groups.values()) + state.spikes * self.settings.spike_threads

    def busy_core_seconds(self, now: float) -> Floats:
        """CPU time used since the beginning, N numbers."""
        return np.asarray(self._telemetry.busy_seconds(now) * self.cores)

    def load_factor(self, node: int) -> float:
        """Runnable threads per core at this moment."""
        return self.runnable(node) / self._nodes[node].cores

    def outlook(self, node: int, now: float) -> list[list[float]]:
        """For each pod on the node: when it begins to compute, core-seconds each thread needs then, its threads."""
        state = self._nodes[node]
        state.attain(now)
        found = []
        for pod in state.pods.values():
            if pod.over:
                continue
            per_thread = pod.load.per_thread
            if pod.computing and pod.group is not None:
                found.append([now, pod.finish - pod.group.attained, float(pod.load.threads)])
            else:
                found.append([pod.begins, per_thread, float(pod.load.threads)])
        return found

    def pods_used(self, node: int, keys: Iterable[Hashable], now: float) -> dict[Any, float]:
        """CPU time that these pods of the node have had so far, fractions of the node times seconds."""
        state = self._nodes[node]
        state.attain(now)
        return {key: pod.cpu_time() / state.cores for key in keys if (pod := state.pods.get(key)) is not None}

    def pods_wanted(self, node: int, keys: Iterable[Hashable], now: float) -> float:
        """Seconds in which these pods of the node computed or were held up so far (`RunningPod.wanted`), added up."""
        state = self._nodes[node]
        state.attain(now)
        return sum(pod.wanted() for key in keys if (pod := state.pods.get(key)) is not None)

    def pod_measurements(self, node: int, keys: Iterable[Hashable], now: float) -> dict[Any, PodMeasurement]:
        """What the node's agent measures of these pods: CPU time and stalls of their cgroups, life, memory."""
        state = self._nodes[node]
        state.attain(now)
        return {key: pod.measured(now) for key in keys if (pod := state.pods.get(key)) is not None}

    # -- inside

    def _draw(self, bounds: tuple[float, float]) -> float:
        return bounds[0] + (bounds[1] - bounds[0]) * float(self._rng.random())

    def _push(self, at: float, what: int, node: int, pod: RunningPod | None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, what, node, pod))

    def _refresh(self, node: int, now: float) -> None:
        """Share the cores anew after threads have come or gone, and schedule the next end of a burst."""
        state = self._nodes[node]
        self._telemetry.count(node, now)
        self._telemetry.set_rates(node, state.share_cores(self.settings))
        if (soonest := state.next_finish(now)) < math.inf:
            # An event that was scheduled before the rates changed finds nothing finished, and does nothing
            self._push(soonest, _FINISH, node, None)

    def _finish(self, at: float, node: int, pod: RunningPod | None) -> None:
        state = self._nodes[node]
        state.attain(at)
        changed = False
        for group in state.groups.values():
            while group.finishes and group.finishes[0][0] <= group.attained + 1e-9:
                done = heapq.heappop(group.finishes)[2]
                changed = True  # also where it was stopped: the next end has to be scheduled
                if done.over or not done.computing:
                    continue
                done.finish = group.attained  # its work is done, exactly
                done.end_burst()
                if isinstance(done, RuntimeWork):
                    self._push(max(at, done.not_before), done.then, node, done.of)
                    continue
                if done.bursts_left > 0:
                    done.bursts_left -= 1
                if done.bursts_left == 0:
                    self._over(done, at, "Completed")
                else:
                    done.begins = at + self._wait_of(done)
                    self._push(done.begins, _COMPUTE, node, done)
        if changed:
            self._refresh(node, at)

    @staticmethod
    def _wait_of(pod: RunningPod) -> float:
        return pod.load.wait_seconds / max(pod.load.bursts, 1)

    def _container(self, at: float, node: int, pod: RunningPod | None) -> None:
        assert pod is not None
        self._out.append(Transition(at, Change.CGROUP_CREATED, pod.key, node))
        self._nodes[node].attain(at)
        self._nodes[node].spikes += 1
        self._push(at + self.settings.spike_seconds, _SPIKE_OFF, node, None)
        if self.settings.start_core_seconds:
            self._compute_for(RuntimeWork(pod, self.settings.start_core_seconds, _RUN, at))
        self._refresh(node, at)

    def _compute_for(self, work: RuntimeWork) -> None:
        """Kubelet and runtime begin to compute; the caller has brought the node up to date, and shares its cores."""
        self._begin_burst(work, self._nodes[work.node].runtime_group())

    def _begin_burst(self, pod: RunningPod, group: Group) -> None:
        pod.begin_burst(group)
        self._sequence += 1
        heapq.heappush(group.finishes, (pod.finish, self._sequence, pod))

    def _run(self, at: float, node: int, pod: RunningPod | None) -> None:
        assert pod is not None
        pod.running, pod.ran_from = True, at
        self._out.append(Transition(at, Change.RUNNING, pod.key, node))
        if not pod.held:
            self._push(at + self._wait_of(pod), _COMPUTE, node, pod)
        self._push(at, _MEMORY, node, pod)

    def _compute(self, at: float, node: int, pod: RunningPod | None) -> None:
        assert pod is not None
        load = pod.load
        state = self._nodes[node]
        state.attain(at)
        self._begin_burst(pod, state.group_of(load))
        self._refresh(node, at)

    def _take_memory(self, at: float, node: int, pod: RunningPod | None) -> None:
        assert pod is not None
        load, state = pod.load, self._nodes[node]
        step = load.memory_bytes / (self.settings.memory_steps if load.memory_ramp_seconds else 1)
        pod.memory += step
        state.memory += step
        if pod.memory < load.memory_bytes - 1.0:
            self._push(at + load.memory_ramp_seconds / (self.settings.memory_steps - 1), _MEMORY, node, pod)
        while state.memory > state.memory_bytes:
            victim = max((p for p in state.pods.values() if not p.over), key=lambda p: p.memory)
            self.oom_kills += 1
            self._exit(victim, at, "OOMKilled")
        self._telemetry.memory_used[node] = state.memory

    def _exit(self, pod: RunningPod, at: float, reason: str) -> None:
        """End a pod that has not finished by itself."""
        state = self._nodes[pod.node]
        state.attain(at)
        if pod.computing:
            pod.end_burst()
        self._over(pod, at, reason)
        self._refresh(pod.node, at)

    def _over(self, pod: RunningPod, at: float, reason: str) -> None:
        state = self._nodes[pod.node]
        pod.over, pod.until = True, at
        state.memory -= pod.memory
        self._telemetry.memory_used[pod.node] = state.memory
        self._out.append(Transition(at, Change.EXITED, pod.key, pod.node, reason))
        if pod.running:
            state.spikes += 1  # the caller shares the cores anew
            self._push(at + self.settings.spike_seconds, _SPIKE_OFF, pod.node, None)
        pod.reason = reason
        self._push(state.sees_end_at(at, self.settings), _ENDED, pod.node, pod)

    def _ended(self, at: float, node: int, pod: RunningPod | None) -> None:
        """The kubelet shows that the container has ended, and begins to take the pod down."""
        assert pod is not None
        state = self._nodes[node]
        state.attain(at)
        pod.end_shows(state.starts_and_ends, at)
        self._out.append(Transition(at, Change.ENDED, pod.key, node, pod.reason, pod.measurement))
        down_at = at + self.settings.teardown_seconds
        if self.settings.end_core_seconds:
            self._compute_for(RuntimeWork(pod, self.settings.end_core_seconds, _TERMINATED, down_at))
            self._refresh(node, at)
        else:
            self._push(down_at, _TERMINATED, node, pod)

    def _terminated(self, at: float, node: int, pod: RunningPod | None) -> None:
        assert pod is not None
        self._nodes[node].pods.pop(pod.key, None)
        self._out.append(Transition(at, Change.TERMINATED, pod.key, node, pod.reason, pod.measurement))

    def _spike_off(self, at: float, node: int, pod: RunningPod | None) -> None:
        state = self._nodes[node]
        state.attain(at)
        state.spikes = max(0, state.spikes - 1)
        self._refresh(node, at)


_CONTAINER, _RUN, _COMPUTE, _FINISH, _MEMORY, _SPIKE_OFF, _ENDED, _TERMINATED = range(8)
_AFTER_THE_END = (_ENDED, _TERMINATED)
_HANDLERS = {
    _CONTAINER: NodeFleet._container,
    _RUN: NodeFleet._run,
    _COMPUTE: NodeFleet._compute,
    _FINISH: NodeFleet._finish,
    _MEMORY: NodeFleet._take_memory,
    _SPIKE_OFF: NodeFleet._spike_off,
    _ENDED: NodeFleet._ended,
    _TERMINATED: NodeFleet._terminated,
}
