"""What each of the node's pods has used so far, from its cgroup: CPU time, time that its tasks waited, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.files import parse_pressure, parse_pressure_full
from concerto_agent.peak_use import PeakUse

_MEMORY_TURNS = 5
"""Memory is read at a pod's first reads, then every fifth time: it changes slowly, and its files are the longest.

Of a pod that has not run since, it is read seldom (``_IDLE_MEMORY_TURNS``): few things but a task that runs take more.
"""
_IDLE_MEMORY_TURNS = 12 * _MEMORY_TURNS
"""A pod that does not run takes more by what its sockets receive, and by file pages that another pod makes active."""


@dataclass(frozen=True)
class PodReading:
    """One pod, since its cgroup was made.

    Attributes:
        cpu_seconds: CPU time.
        waited_seconds: time in which at least one of its tasks waited for a CPU (``some`` of its cpu.pressure); None
            where the kernel does not report it.
        stalled_seconds: time that it lost by that: the mean of ``some`` and ``full``, as ``some`` alone counts time in
            which others of the pod's tasks ran. None as above.
        memory_bytes: memory that it holds; None if it was not read this time.
        peak_work: CPU time, each part of it times the cores that were used then (`PeakUse`).
        held_up_seconds: time in which some of its tasks waited and none ran (``full``); None where the kernel does not
            report it: before Linux 5.13.
    """

    cpu_seconds: float
    waited_seconds: float | None = None
    stalled_seconds: float | None = None
    memory_bytes: float | None = None
    peak_work: float = 0.0
    held_up_seconds: float | None = None


class _Pod:
    """One pod's files, how often they were read, and what they held last.

    Attributes:
        waits: whether its pressure had grown at the last read, or was read for the first time.
    """

    def __init__(self, cgroup: Cgroup, path: str, turn: int) -> None:
        self.cgroup = cgroup
        self.path = path
        self.waits = False
        self._pressure = cgroup.pressure_file("cpu")
        self._reads = -_MEMORY_TURNS - turn % _MEMORY_TURNS  # not of all pods at the same time
        self._content: bytes | None = None
        self._has_run = False  # since its memory was read
        self._last: PodReading | None = None
        self._peak = PeakUse()

    def read(self, now: float, *, everything: bool = False) -> PodReading | None:
        """What it has used; None if it can't be read. Memory only when it is its turn, or if everything is wanted."""
        self._reads += 1
        before, self._content = self._content, self.cgroup.cpu_content()
        due = everything or self._reads <= 0 or self._reads % _MEMORY_TURNS == 0
        last = self._last
        has_run = last is None or last.waited_seconds is None or self.waits or self._content != before
        if last is not None and not has_run and not everything:
            # Most pods are idle at most times. Should a task wait already, its pressure shows that once it has run
            self._peak.note(now, last.cpu_seconds, last.stalled_seconds or 0.0)
            memory = self._memory_now() if due and (self._has_run or self._reads % _IDLE_MEMORY_TURNS == 0) else None
            if memory != last.memory_bytes:
                self._last = replace(last, memory_bytes=memory)
            return self._last
        self._has_run = True
        cpu_seconds = self.cgroup.cpu_seconds_in(self._content)
        if cpu_seconds is None:
            self._last = None
            return None
        waited, stalled, held_up = self._waited()
        known = None if last is None else last.waited_seconds
        self.waits = waited is not None and (known is None or waited > known)
        self._peak.note(now, cpu_seconds, stalled or 0.0)
        memory = self._memory_now() if due else None
        self._last = PodReading(cpu_seconds, waited, stalled, memory, self._peak.work, held_up)
        return self._last

    def _memory_now(self) -> float | None:
        memory = self.cgroup.memory_bytes()
        self._has_run = memory is None
        return memory

    def _waited(self) -> tuple[float | None, float | None, float | None]:
        pressure = self._pressure.read() if self._pressure else None
        some, full = parse_pressure(pressure), parse_pressure_full(pressure)
        # Before Linux 5.13 there is no full for cpu
        return some, some if full is None or some is None else (some + full) / 2, full

    def add_up_pressure(self, now: float) -> None:
        """Have the kernel add up what the pod has waited, and note how much it computes."""
        if self._pressure is None:
            return
        _, stalled, _ = self._waited()
        if (cpu_seconds := self.cgroup.cpu_seconds_in(self.cgroup.cpu_content())) is not None:
            self._peak.note(now, cpu_seconds, stalled or 0.0)


class PodReader:
    """Reads pods through descriptors that stay open.

    Attributes:
        waiting: UIDs of pods whose tasks wait for a CPU now and then: those that were read once, and those whose
            pressure has grown since the read before.
    """

    def __init__(self, hierarchies: Hierarchies, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is read before `read`; ``clock`` is monotonic, in seconds."""
        self._clock = clock
        self.waiting: set[str] = set()
        self._hierarchies = hierarchies
        self._pods: dict[str, _Pod] = {}

    def read(self, paths: Mapping[str, str]) -> dict[str, PodReading]:
        """The readings of those pods that can be read, by UID; other pods' descriptors are given back.

        Args:
            paths: of the pods' cgroups, by UID.
        """
        for uid in [uid for uid, pod in self._pods.items() if paths.get(uid) != pod.path]:
            self._forget(uid)
        readings = {}
        for turn, (uid, path) in enumerate(paths.items()):
            pod = self._pods.get(uid)
            if pod is None:
                pod = self._pods[uid] = _Pod(Cgroup(self._hierarchies, path), path, turn)
            reading = pod.read(self._clock())
            if reading is not None:
                readings[uid] = reading
        self.waiting = {uid for uid, pod in self._pods.items() if pod.waits}
        return readings

    def _forget(self, uid: str) -> None:
        if (pod := self._pods.pop(uid, None)) is not None:
            pod.cgroup.close()
        self.waiting.discard(uid)

    def add_up_pressure(self) -> None:
        """Have the kernel add up what the ``waiting`` pods have waited; to be called several times a second.

        It does so at every read, and else every 2 s, and takes the mean over the CPUs that a cgroup's tasks were on
        meanwhile. A task that moved from one CPU to another in that time seems to have waited for half as long. Of the
        run delay of one task among many on two CPUs, cpu.pressure had 0.62 without such reads, 0.79 with one a second
        and 0.96 with ten. Source: Linux, kernel/sched/psi.c, collect_percpu_times.
        """
        for uid in self.waiting:
            self._pods[uid].add_up_pressure(self._clock())

    def read_last(self, uid: str, path: str) -> PodReading | None:
        """Everything of one pod that is about to go; None if it is gone already."""
        pod = self._pods.get(uid) or _Pod(Cgroup(self._hierarchies, path), path, 0)
        try:
            return pod.read(self._clock(), everything=True)
        finally:
            pod.cgroup.close()
            self._forget(uid)

    def close(self) -> None:
        """Give back every descriptor."""
        for uid in list(self._pods):
            self._forget(uid)
