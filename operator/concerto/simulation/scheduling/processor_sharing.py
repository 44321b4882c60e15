"""Processor sharing on one node, exact between events.

Runnable threads share the cores equally. One number for each CPU limit (service attained by a thread) therefore shows
when each pod finishes, and an event costs O(log pods on the node).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from concerto.capacity.kinds.contention import StartsAndEnds, leave_out
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.node_telemetry import Rates


class Group:
    """Pods of a node with one CPU limit per thread: all their threads run at one rate."""

    __slots__ = ("attained", "cap", "finishes", "held_up", "rate", "stalled", "threads")

    def __init__(self, cap: float) -> None:
        self.cap = cap  # cores a thread may use at most
        self.attained = 0.0  # service a thread of this group has had, in core-seconds
        self.rate = 0.0
        # by a pod's number of threads: the mean of `some` and `full` of its own cpu.pressure, summed, in seconds
        self.stalled: dict[int, float] = {}
        self.held_up: dict[int, float] = {}  # likewise: its ``full``, in seconds
        self.threads = 0
        self.finishes: list[tuple[float, int, RunningPod]] = []

    @property
    def runnable(self) -> float:
        """Threads that run or wait for a CPU, on average; one that its own quota holds back does neither."""
        return self.threads * (self.rate if self.cap < 1.0 and self.rate >= self.cap else 1.0)


class RunningPod:
    """A pod on its node, from its start to its end."""

    __slots__ = (
        "begins",
        "bursts_left",
        "computing",
        "finish",
        "group",
        "held",
        "held_up",
        "key",
        "load",
        "measurement",
        "memory",
        "node",
        "over",
        "ran_from",
        "reason",
        "running",
        "seen",
        "stalled",
        "until",
        "used",
    )

    def __init__(self, key: Hashable, node: int, load: PodLoad) -> None:
        self.key = key
        self.node = node
        self.load = load
        self.bursts_left = load.bursts if load.bursts else -1
        self.memory = 0.0
        self.group: Group | None = None
        self.computing = False
        self.running = False
        self.held = False  # whether it does not begin to work before it is released
        self.over = False
        self.reason = ""
        self.begins = math.inf  # when it next begins to compute; infinity while that is open
        self.used = 0.0
        self.seen = 0.0  # when the kubelet saw it
        self.ran_from = math.inf  # when its container began
        self.until = math.inf  # when it ended
        self.measurement: PodMeasurement | None = None  # the agent's last, once its end has been shown
        self.held_up = 0.0  # likewise
        self.stalled = 0.0  # over bursts that have ended; during one, less what its group had before it
        self.finish = 0.0  # service attained in its group at which its present burst ends

    def begin_burst(self, group: Group) -> None:
        """Its threads become runnable."""
        self.group, self.computing = group, True
        self.stalled -= group.stalled.setdefault(self.load.threads, 0.0)
        self.held_up -= group.held_up.setdefault(self.load.threads, 0.0)
        group.threads += self.load.threads
        self.finish = group.attained + self.load.per_thread

    def end_burst(self) -> None:
        """Its threads have done their work, or are killed."""
        assert self.group is not None
        self.held_up += self.group.held_up[self.load.threads]
        self.used, self.stalled, self.computing = self.cpu_time(), self._stalled(), False
        self.group.threads -= self.load.threads

    def cpu_time(self) -> float:
        """CPU time that it has had, core-seconds."""
        if not self.computing or self.group is None:
            return self.used
        return self.used + self.load.threads * max(0.0, self.load.per_thread - (self.finish - self.group.attained))

    def _stalled(self) -> float:
        if not self.computing or self.group is None:
            return self.stalled
        return self.stalled + self.group.stalled[self.load.threads]

    def wanted(self) -> float:
        """Its CPU time, and the seconds in which none of its threads ran though they could: no quota held it back."""
        if self.load.cpu_limit is not None:
            return self.cpu_time()
        group = self.group if self.computing else None
        return self.cpu_time() + self.held_up + (group.held_up[self.load.threads] if group is not None else 0.0)

    def measured(self, now: float) -> PodMeasurement:
        """What its cgroup has shown of it; its node must have been brought up to ``now``."""
        life = now - self.seen
        work = self.cpu_time()
        # While it computes and is not stalled, it uses a core for each thread
        peak_work = work * self.load.peak
        whole = PodMeasurement(work, life, life, self.memory, self.over, peak_work=peak_work)
        return leave_out(whole, self._stalled(), self.load.cpu_limit)

    def end_shows(self, starts_and_ends: StartsAndEnds, now: float) -> None:
        """Kubelet shows that its container has ended, which completes what its node's agent has measured of it."""
        self.measurement = self.measured(now)
        if self.running:
            # The plant has all work of a start before its container runs, which the pod's cgroup does not show
            held_up = starts_and_ends.held_up((self.ran_from - self.seen) + (now - self.until))
            self.measurement = leave_out(self.measurement, held_up, self.load.cpu_limit)


class RuntimeWork(RunningPod):
    """What kubelet and container runtime compute to start or end a pod; it is no pod of the node.

    Attributes:
        then: what happens to the pod once it is done, for the owner of the node's events.
        not_before: when that happens at the earliest.
        of: the pod.
    """

    __slots__ = ("not_before", "of", "then")

    def __init__(self, of: RunningPod, core_seconds: float, then: int, not_before: float) -> None:
        super().__init__(of.key, of.node, PodLoad(core_seconds=core_seconds))
        self.then, self.of, self.not_before = then, of, not_before


_RUNTIME = -1.0
"""Key of the group of runtime work; those of pods have their CPU limit per thread."""


@dataclass
class NodeState:
    """One node: its pods by key, their groups by CPU limit, the runtime's work and spikes, what its agent remembers.

    ``looks_at`` is when its kubelet looks for ended containers, in parts of the time between two looks.
    """

    cores: float
    memory_bytes: float
    groups: dict[float, Group] = field(default_factory=dict)
    spikes: int = 0
    memory: float = 0.0
    touched: float = 0.0
    pods: dict[Hashable, RunningPod] = field(default_factory=dict)
    starts_and_ends: StartsAndEnds = field(default_factory=StartsAndEnds)
    alive: bool = True
    looks_at: float = 0.0
    sharers: float = 0.0  # threads that share the cores
    free_cores: float = 0.0  # that they share

    def sees_end_at(self, at: float, settings: NodeModelSettings) -> float:
        """When its kubelet sees that a container has ended at ``at``: when it next looks."""
        least, most = settings.end_seconds
        period, soonest = most - least, at + least
        return soonest + (self.looks_at * period - soonest) % period if period > 0.0 else soonest

    def attain(self, now: float) -> None:
        """Advance the service that the threads of each group have had."""
        elapsed = now - self.touched
        for group in self.groups.values():
            group.attained += group.rate * elapsed
            for threads in group.stalled:
                some, full = 1.0 - group.rate**threads, (1.0 - group.rate) ** threads
                group.stalled[threads] += (some + full) / 2.0 * elapsed
                group.held_up[threads] += _none_runs(threads, self.sharers, self.free_cores) * elapsed
        self.touched = now

    def group_of(self, load: PodLoad) -> Group:
        """The group of pods with that load's CPU limit per thread."""
        cap = min(1.0, load.cpu_limit / load.threads) if load.cpu_limit is not None else 1.0
        group = self.groups.get(cap)
        if group is None:
            group = self.groups[cap] = Group(cap)
        return group

    def runtime_group(self) -> Group:
        """The group of what kubelet and container runtime compute."""
        return self.groups.setdefault(_RUNTIME, Group(1.0))

    def share_cores(self, settings: NodeModelSettings) -> Rates:
        """Set the rate of each group after threads have come or gone, and return the node's rates."""
        spikes = self.spikes * settings.spike_threads
        threads = spikes
        cores = self.cores * (1.0 - settings.other_cpu)
        free, sharers, throttled = cores, spikes, 1.0
        groups = self.groups
        self.sharers, self.free_cores = spikes + sum(g.threads for g in groups.values()), cores
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
            # Water-filling: the group with the lowest limit first
            for group in sorted(groups.values(), key=lambda g: g.cap):
                share = min(1.0, free / sharers) if sharers else 1.0
                group.rate = min(group.cap, share)
                free -= group.rate * group.threads
                sharers -= group.threads
                if group.threads and group.cap < 1.0:
                    throttled *= max(group.rate, 0.0)
            share = min(1.0, free / spikes) if spikes else share
            busy = cores - free + spikes * share
        waiting = min(1.0, max(0.0, (threads - cores) / cores))
        runtime = groups.get(_RUNTIME)
        by_runtime = spikes * share + (runtime.rate * runtime.threads if runtime else 0.0)
        return Rates(
            busy=min(1.0, busy / self.cores + settings.non_pod_cpu),
            pressure=max(waiting, 1.0 - throttled),
            system=min(1.0, by_runtime / self.cores + settings.non_pod_cpu),
            runnable=(spikes + sum(g.runnable for g in groups.values())) / self.cores + settings.non_pod_cpu,
        )

    def next_finish(self, now: float) -> float:
        """When the next burst ends at the present rates; infinity while nobody computes."""
        soonest = math.inf
        for group in self.groups.values():
            if group.finishes and group.rate > 0:
                soonest = min(soonest, (group.finishes[0][0] - group.attained) / group.rate)
        return now + max(soonest, 0.0)


def _none_runs(threads: int, sharers: float, cores: float) -> float:
    """Probability that no one of a pod's threads runs, where so many threads share the cores, all alike."""
    none_runs = 1.0
    while cores > 0.0 and none_runs > 0.0:
        runs = min(cores, 1.0) * threads / max(sharers, threads)
        none_runs, sharers, cores = none_runs * max(0.0, 1.0 - runs), sharers - 1.0, cores - 1.0
    return none_runs
