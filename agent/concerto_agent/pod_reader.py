"""What each of the node's pods has used so far, from its cgroup: CPU time, time that its tasks waited, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.files import parse_pressure, parse_pressure_full

_MEMORY_TURNS = 5
"""Memory is read at a pod's first reads, then every fifth time: it changes slowly, and its files are the longest."""


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
    """

    cpu_seconds: float
    waited_seconds: float | None = None
    stalled_seconds: float | None = None
    memory_bytes: float | None = None


class PodReader:
    """Reads pods through descriptors that stay open.

    Attributes:
        waiting: UIDs of pods whose tasks wait for a CPU now and then: those that were read once, and those whose
            pressure has grown since the read before.
    """

    def __init__(self, hierarchies: Hierarchies) -> None:
        """Nothing is read before `read`."""
        self.waiting: set[str] = set()
        self._hierarchies = hierarchies
        self._cgroups: dict[str, Cgroup] = {}
        self._reads: dict[str, int] = {}
        self._waited: dict[str, float] = {}

    def read(self, paths: Mapping[str, str]) -> dict[str, PodReading]:
        """The readings of those pods that can be read, by UID; other pods' descriptors are given back.

        Args:
            paths: of the pods' cgroups, by UID.
        """
        for uid in [uid for uid, cgroup in self._cgroups.items() if paths.get(uid, "").strip("/") != cgroup.path]:
            self._forget(uid)
        readings = {}
        for turn, (uid, path) in enumerate(paths.items()):
            if uid not in self._cgroups:
                self._cgroups[uid] = Cgroup(self._hierarchies, path)
                self._reads[uid] = -_MEMORY_TURNS - turn % _MEMORY_TURNS  # not of all pods at the same time
            self._reads[uid] += 1
            due = self._reads[uid] <= 0 or self._reads[uid] % _MEMORY_TURNS == 0
            reading = _read(self._cgroups[uid], memory=due)
            if reading is not None:
                readings[uid] = reading
                self._note_waiting(uid, reading.waited_seconds)
        return readings

    def _note_waiting(self, uid: str, waited: float | None) -> None:
        if waited is None or waited <= self._waited.get(uid, -1.0):
            self.waiting.discard(uid)
        else:
            self.waiting.add(uid)
            self._waited[uid] = waited

    def _forget(self, uid: str) -> None:
        if (cgroup := self._cgroups.pop(uid, None)) is not None:
            cgroup.close()
        self._reads.pop(uid, None)
        self._waited.pop(uid, None)
        self.waiting.discard(uid)

    def add_up_pressure(self) -> None:
        """Have the kernel add up what the ``waiting`` pods have waited; to be called several times a second.

        It does so at every read, and else every 2 s, and takes the mean over the CPUs that a cgroup's tasks were on
        meanwhile. A task that moved from one CPU to another in that time seems to have waited for half as long. Of the
        run delay of one task among many on two CPUs, cpu.pressure had 0.62 without such reads, 0.79 with one a second
        and 0.96 with ten. Source: Linux, kernel/sched/psi.c, collect_percpu_times.
        """
        for uid in self.waiting:
            if (file := self._cgroups[uid].pressure_file("cpu")) is not None:
                file.read()

    def read_last(self, uid: str, path: str) -> PodReading | None:
        """Everything of one pod that is about to go; None if it is gone already."""
        cgroup = self._cgroups.get(uid) or Cgroup(self._hierarchies, path)
        try:
            return _read(cgroup, memory=True)
        finally:
            cgroup.close()
            self._forget(uid)

    def close(self) -> None:
        """Give back every descriptor."""
        for uid in list(self._cgroups):
            self._forget(uid)


def _read(cgroup: Cgroup, *, memory: bool) -> PodReading | None:
    cpu_seconds = cgroup.cpu_seconds()
    if cpu_seconds is None:
        return None
    file = cgroup.pressure_file("cpu")
    pressure = file.read() if file else None
    some, full = parse_pressure(pressure), parse_pressure_full(pressure)
    # Before Linux 5.13 there is no full for cpu
    stalled = some if full is None or some is None else (some + full) / 2
    return PodReading(cpu_seconds, some, stalled, cgroup.memory_bytes() if memory else None)
