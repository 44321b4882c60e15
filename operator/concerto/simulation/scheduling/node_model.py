"""What nodes do with pods: processor sharing, pressure, start-up, spikes, memory and its exhaustion.

The plant of every experiment, and of the simulated nodes in e2e/testbed/hollow. Exact between events: runnable threads
share the cores equally, so one number per node and CPU limit (service attained by a thread) tells when each pod
finishes, and an event costs O(log pods on the node). Telemetry counters are arrays over nodes.

Source: evaluation of 000 §5 (workloads), 000 §2.3.10 (start-up up to 4 s when full), PSI as measured on Linux: with C
CPUs and R runnable threads `some` is clip((R - C)/C, 0, 1), and a thread throttled by its own quota counts, too.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class PodLoad:
    """What one pod does from the moment its container runs.

    It repeats `bursts` times: not on the CPU for its share of `wait_seconds`, then its share of `core_seconds` on
    `threads` threads at once.

    Attributes:
        wait_seconds: seconds of its life not on a CPU, over all bursts.
        core_seconds: CPU time it needs, over all bursts and threads.
        threads: threads that are runnable while it computes.
        bursts: how often waiting and computing alternate; 0 goes on for ever with each burst of the sizes above.
        memory_bytes: memory held once it has reached its level.
        memory_ramp_seconds: time from start to that level; 0 takes it at once.
        cpu_limit: cores its quota allows, or None.
    """

    wait_seconds: float = 0.0
    core_seconds: float = 1.0
    threads: int = 1
    bursts: int = 1
    memory_bytes: float = 20 * MIB
    memory_ramp_seconds: float = 0.0
    cpu_limit: float | None = None

    @property
    def per_thread(self) -> float:
        """CPU time that each thread needs in a burst, core-seconds."""
        return self.core_seconds / max(self.bursts, 1) / self.threads


@dataclass(frozen=True)
class NodeModelSettings:
    """Constants of the plant.

    Attributes:
        start_seconds: bounds of the time from the kubelet's seeing the pod to its running, on a node that is not full.
        start_when_full_seconds: what is added to it on a node at full pressure (000 §2.3.10: 4 s in all).
        end_seconds: bounds of the time from a container's exit to the kubelet's noticing (it relists every second).
        spike_seconds: how long the container runtime works at each start and stop (000 §4.2.2: 200 ms).
        spike_threads: threads it keeps runnable meanwhile.
        system_cpu: fraction of the node that is used without any pod.
        system_memory_bytes: memory used without any pod.
        memory_steps: steps in which a memory ramp is climbed.
    """

    start_seconds: tuple[float, float] = (1.0, 2.0)
    start_when_full_seconds: float = 2.0
    end_seconds: tuple[float, float] = (0.2, 1.2)
    spike_seconds: float = 0.2
    spike_threads: int = 1
    system_cpu: float = 0.02
    system_memory_bytes: float = 600 * MIB
    memory_steps: int = 4


class Change(Enum):
    """What happened to a pod on its node."""

    CGROUP_CREATED = "CgroupCreated"
    """Its first container's cgroup is there: from here on an agent counts the pod."""
    RUNNING = "Running"
    EXITED = "Exited"
    """The container has ended: the truth that recorders use."""
    TERMINATED = "Terminated"
    """The kubelet has noticed: the status is written and the pod's cgroup is gone."""


@dataclass(frozen=True)
class Transition:
    """One change of one pod; `reason` is Completed, OOMKilled or Deleted on EXITED and TERMINATED."""

    at: float
    change: Change
    pod: Hashable
    node: int
    reason: str = ""


@dataclass(frozen=True)
class Readings:
    """What /proc would have said since the reading before, one entry per node, each in [0, 1].

    Attributes:
        utilisation: share of CPU time that was not idle.
        pressure: PSI cpu `some`.
        memory: share of memory in use now.
        system_cpu: utilisation by what is no pod (the system and the container runtime's spikes).
        system_memory: the same for memory.
    """

    utilisation: Floats
    pressure: Floats
    memory: Floats
    system_cpu: Floats
    system_memory: Floats


class _Group:
    """Pods of a node under one CPU limit: all their threads run at one rate."""

    __slots__ = ("attained", "cap", "finishes", "rate", "threads")

    def __init__(self, cap: float) -> None:
        self.cap = cap  # cores a thread may use at most
        self.attained = 0.0  # service a thread of this group has had, in core-seconds
        self.rate = 0.0
        self.threads = 0
        self.finishes: list[tuple[float, int, _Pod]] = []


class _Pod:
    __slots__ = (
        "begins",
        "bursts_left",
        "computing",
        "finish",
        "group",
        "key",
        "load",
        "memory",
        "node",
        "over",
        "reason",
        "running",
        "used",
    )

    def __init__(self, key: Hashable, node: int, load: PodLoad) -> None:
        self.key = key
        self.node = node
        self.load = load
        self.bursts_left = load.bursts if load.bursts else -1
        self.memory = 0.0
        self.group: _Group | None = None
        self.computing = False
        self.running = False
        self.over = False
        self.reason = ""
        self.begins = math.inf  # when it will next begin to compute, as far as is settled
        self.used = 0.0
        self.finish = 0.0  # service attained in its group at which its present burst is done


@dataclass
class _Node:
    cores: float
    memory_bytes: float
    groups: dict[float, _Group] = field(default_factory=dict)
    spikes: int = 0
    memory: float = 0.0
    touched: float = 0.0
    pods: dict[Hashable, _Pod] = field(default_factory=dict)
    alive: bool = True


class NodeFleet:
    """Nodes with a kubelet and a kernel each, moved on by `advance`.

    Args:
        cores: CPUs of each node, N numbers.
        memory_bytes: memory of each node, N numbers.
        rng: source of chance for start-up and end delays.
        settings: constants of the plant.
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
        self._nodes = [_Node(float(c), float(m), touched=now) for c, m in zip(cores, memory_bytes, strict=True)]
        for node in self._nodes:
            node.memory = self.settings.system_memory_bytes
        count = len(self._nodes)
        self.cores = np.array(cores, dtype=float)
        self.memory_bytes = np.array(memory_bytes, dtype=float)
        self._busy_rate = np.full(count, self.settings.system_cpu)
        self._pressure_rate = np.zeros(count)
        self._system_rate = np.full(count, self.settings.system_cpu)
        self._memory = np.full(count, self.settings.system_memory_bytes)
        self._busy = np.zeros(count)
        self._pressure = np.zeros(count)
        self._system = np.zeros(count)
        self._counted_to = np.full(count, now)
        self._read_at = now
        self._read_busy, self._read_pressure, self._read_system = (np.zeros(count) for _ in range(3))
        self._events: list[tuple[float, int, int, int, _Pod | None]] = []
        self._sequence = 0
        self._out: list[Transition] = []
        self.oom_kills = 0

    # -- what the outside does to the nodes

    def start(self, key: Hashable, node: int, load: PodLoad, now: float) -> None:
        """The kubelet of `node` has seen the pod: its container runs after the start-up delay."""
        if not self._nodes[node].alive:
            return
        pod = _Pod(key, node, load)
        self._nodes[node].pods[key] = pod
        full = float(self._pressure_rate[node])
        delay = self._draw(self.settings.start_seconds) + self.settings.start_when_full_seconds * full
        # The runtime makes the container's cgroup and works, then the container runs.
        self._push(now + delay - self.settings.spike_seconds, _CONTAINER, node, pod)
        self._push(now + delay, _RUN, node, pod)
        pod.begins = now + delay + self._wait_of(pod)

    def delete(self, key: Hashable, node: int, now: float) -> None:
        """The pod has been deleted through the API: stop it."""
        pod = self._nodes[node].pods.get(key)
        if pod is not None and not pod.over:
            self._exit(pod, now, "Deleted")

    def fail(self, node: int, now: float) -> None:
        """The node is lost with all that runs on it: nothing is heard of its pods any more."""
        state = self._nodes[node]
        self._count(node, now)
        for pod in state.pods.values():
            pod.over = True
        state.pods, state.groups, state.spikes, state.alive = {}, {}, 0, False
        self._busy_rate[node] = self._pressure_rate[node] = self._system_rate[node] = 0.0

    def restore(self, node: int, now: float) -> None:
        """The node is back, empty."""
        state = self._nodes[node]
        state.alive, state.memory, state.touched = True, self.settings.system_memory_bytes, now
        self._memory[node] = state.memory
        self._refresh(node, now)

    # -- time

    def next_time(self) -> float:
        """When something will happen next by itself; infinity if nothing will."""
        return self._events[0][0] if self._events else math.inf

    def advance(self, now: float) -> list[Transition]:
        """Let everything happen that is due up to `now`, and return it in order."""
        events = self._events
        while events and events[0][0] <= now:
            at, _, what, node, pod = heapq.heappop(events)
            if not self._nodes[node].alive or (pod is not None and pod.over and what != _TERMINATED):
                continue
            _HANDLERS[what](self, at, node, pod)
        out, self._out = self._out, []
        return out

    def readings(self, now: float) -> Readings:
        """Telemetry since the previous call (which must have been earlier), after `advance(now)`."""
        elapsed = now - self._counted_to
        self._busy += self._busy_rate * elapsed
        self._pressure += self._pressure_rate * elapsed
        self._system += self._system_rate * elapsed
        self._counted_to[:] = now
        span = max(now - self._read_at, 1e-9)
        readings = Readings(
            utilisation=np.clip((self._busy - self._read_busy) / span, 0.0, 1.0),
            pressure=np.clip((self._pressure - self._read_pressure) / span, 0.0, 1.0),
            memory=np.clip(self._memory / self.memory_bytes, 0.0, 1.0),
            system_cpu=np.clip((self._system - self._read_system) / span, 0.0, 1.0),
            system_memory=self.settings.system_memory_bytes / self.memory_bytes,
        )
        self._read_at = now
        self._read_busy[:], self._read_pressure[:], self._read_system[:] = self._busy, self._pressure, self._system
        return readings

    # -- what may be looked at (by recorders and by the oracle, not by the code under test)

    def runnable(self, node: int) -> float:
        """Threads that want a CPU on the node at this moment."""
        state = self._nodes[node]
        return sum(g.threads for g in state.groups.values()) + state.spikes * self.settings.spike_threads

    def busy_core_seconds(self, now: float) -> Floats:
        """CPU time used since the beginning, N numbers."""
        return np.asarray((self._busy + self._busy_rate * (now - self._counted_to)) * self.cores)

    def load_factor(self, node: int) -> float:
        """Runnable threads per core at this moment."""
        return self.runnable(node) / self._nodes[node].cores

    def outlook(self, node: int, now: float) -> list[list[float]]:
        """Of each pod on the node: when it begins to compute, core-seconds each thread then needs, its threads."""
        state = self._nodes[node]
        self._attain(state, now)
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
        self._attain(state, now)
        found = {}
        for key in keys:
            pod = state.pods.get(key)
            if pod is None:
                continue
            used = pod.used
            if pod.computing and pod.group is not None:
                used += pod.load.threads * max(0.0, pod.load.per_thread - (pod.finish - pod.group.attained))
            found[key] = used / state.cores
        return found

    # -- inside

    def _draw(self, bounds: tuple[float, float]) -> float:
        return bounds[0] + (bounds[1] - bounds[0]) * float(self._rng.random())

    def _push(self, at: float, what: int, node: int, pod: _Pod | None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, what, node, pod))

    def _count(self, node: int, now: float) -> None:
        """Bring the telemetry counters of one node up to date before its rates change."""
        elapsed = now - self._counted_to[node]
        self._busy[node] += self._busy_rate[node] * elapsed
        self._pressure[node] += self._pressure_rate[node] * elapsed
        self._system[node] += self._system_rate[node] * elapsed
        self._counted_to[node] = now

    def _attain(self, state: _Node, now: float) -> None:
        elapsed = now - state.touched
        for group in state.groups.values():
            group.attained += group.rate * elapsed
        state.touched = now

    def _refresh(self, node: int, now: float) -> None:
        """Threads have come or gone: share the cores anew and say when the next pod will finish."""
        state = self._nodes[node]
        self._count(node, now)
        settings = self.settings
        spikes = state.spikes * settings.spike_threads
        threads = spikes
        free, sharers, throttled = state.cores, spikes, 1.0
        groups = state.groups
        if len(groups) == 1:  # nearly always
            (group,) = groups.values()
            threads += group.threads
            sharers += group.threads
            share = min(1.0, free / sharers) if sharers else 1.0
            group.rate = min(group.cap, share)
            busy = group.rate * group.threads + spikes * share
            if group.threads and group.cap < 1.0:
                throttled *= max(group.rate, 0.0)
        else:
            share = 1.0
            threads += sum(g.threads for g in groups.values())
            sharers = threads
            # Water-filling: the most tightly limited first.
            for group in sorted(groups.values(), key=lambda g: g.cap):
                share = min(1.0, free / sharers) if sharers else 1.0
                group.rate = min(group.cap, share)
                free -= group.rate * group.threads
                sharers -= group.threads
                if group.threads and group.cap < 1.0:
                    throttled *= max(group.rate, 0.0)
            share = min(1.0, free / spikes) if spikes else share
            busy = state.cores - free + spikes * share
        cores = state.cores
        self._busy_rate[node] = min(1.0, busy / cores + settings.system_cpu)
        waiting = min(1.0, max(0.0, (threads - cores) / cores))
        self._pressure_rate[node] = max(waiting, 1.0 - throttled)
        self._system_rate[node] = min(1.0, spikes * share / cores + settings.system_cpu)
        soonest = math.inf
        for group in groups.values():
            if group.finishes and group.rate > 0:
                soonest = min(soonest, (group.finishes[0][0] - group.attained) / group.rate)
        if soonest < math.inf:
            # An event left from before the rates changed finds nothing finished, and does nothing.
            self._sequence += 1
            heapq.heappush(self._events, (now + max(soonest, 0.0), self._sequence, _FINISH, node, None))

    def _finish(self, at: float, node: int, pod: _Pod | None) -> None:
        state = self._nodes[node]
        self._attain(state, at)
        changed = False
        for group in state.groups.values():
            while group.finishes and group.finishes[0][0] <= group.attained + 1e-9:
                done = heapq.heappop(group.finishes)[2]
                if done.over or not done.computing:
                    continue
                done.computing = False
                done.used += done.load.threads * done.load.per_thread
                group.threads -= done.load.threads
                changed = True
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
    def _wait_of(pod: _Pod) -> float:
        return pod.load.wait_seconds / max(pod.load.bursts, 1)

    def _container(self, at: float, node: int, pod: _Pod | None) -> None:
        assert pod is not None
        self._out.append(Transition(at, Change.CGROUP_CREATED, pod.key, node))
        self._attain(self._nodes[node], at)
        self._nodes[node].spikes += 1
        self._push(at + self.settings.spike_seconds, _SPIKE_OFF, node, None)
        self._refresh(node, at)

    def _run(self, at: float, node: int, pod: _Pod | None) -> None:
        assert pod is not None
        pod.running = True
        self._out.append(Transition(at, Change.RUNNING, pod.key, node))
        self._push(at + self._wait_of(pod), _COMPUTE, node, pod)
        self._push(at, _MEMORY, node, pod)

    def _compute(self, at: float, node: int, pod: _Pod | None) -> None:
        assert pod is not None
        load = pod.load
        state = self._nodes[node]
        self._attain(state, at)
        cap = min(1.0, load.cpu_limit / load.threads) if load.cpu_limit is not None else 1.0
        group = state.groups.get(cap)
        if group is None:
            group = state.groups[cap] = _Group(cap)
        pod.group, pod.computing = group, True
        group.threads += load.threads
        need = load.per_thread
        self._sequence += 1
        pod.finish = group.attained + need
        heapq.heappush(group.finishes, (pod.finish, self._sequence, pod))
        self._refresh(node, at)

    def _take_memory(self, at: float, node: int, pod: _Pod | None) -> None:
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
        self._memory[node] = state.memory

    def _exit(self, pod: _Pod, at: float, reason: str) -> None:
        """End a pod that has not finished by itself."""
        state = self._nodes[pod.node]
        self._attain(state, at)
        if pod.computing and pod.group is not None:
            pod.group.threads -= pod.load.threads
            pod.computing = False
        self._over(pod, at, reason)
        self._refresh(pod.node, at)

    def _over(self, pod: _Pod, at: float, reason: str) -> None:
        state = self._nodes[pod.node]
        pod.over = True
        state.memory -= pod.memory
        self._memory[pod.node] = state.memory
        self._out.append(Transition(at, Change.EXITED, pod.key, pod.node, reason))
        if pod.running:
            state.spikes += 1  # the caller shares the cores anew
            self._push(at + self.settings.spike_seconds, _SPIKE_OFF, pod.node, None)
        pod.reason = reason
        self._push(at + self._draw(self.settings.end_seconds), _TERMINATED, pod.node, pod)

    def _terminated(self, at: float, node: int, pod: _Pod | None) -> None:
        assert pod is not None
        self._nodes[node].pods.pop(pod.key, None)
        self._out.append(Transition(at, Change.TERMINATED, pod.key, node, pod.reason))

    def _spike_off(self, at: float, node: int, pod: _Pod | None) -> None:
        state = self._nodes[node]
        self._attain(state, at)
        state.spikes = max(0, state.spikes - 1)
        self._refresh(node, at)


_CONTAINER, _RUN, _COMPUTE, _FINISH, _MEMORY, _SPIKE_OFF, _TERMINATED = range(7)
_HANDLERS = {
    _CONTAINER: NodeFleet._container,
    _RUN: NodeFleet._run,
    _COMPUTE: NodeFleet._compute,
    _FINISH: NodeFleet._finish,
    _MEMORY: NodeFleet._take_memory,
    _SPIKE_OFF: NodeFleet._spike_off,
    _TERMINATED: NodeFleet._terminated,
}
