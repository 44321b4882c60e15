"""The meter of cpu: utilisation and pressure of the machine or of one cgroup, and which CPUs the node has."""

from __future__ import annotations

import math
from pathlib import Path

from concerto.api.capacity_settings import CpuFormula
from concerto.capacity import readings
from concerto.capacity.node_status import Problem
from concerto_agent.cgroups import Cgroup
from concerto_agent.files import KeptFile, parse_cpu_times, parse_cpus, parse_field, parse_pressure
from concerto_agent.meter import Reading, pressure_name
from concerto_agent.node_files import NodeFiles
from concerto_agent.pod_usage import PodUsage
from concerto_agent.rates import NAN, Rate, Share, clip

_NEIGHBOUR_TURNS = 10
"""Looks at the node's CPUs for each look at its neighbours': two nodes on one machine are not moved by the second."""


class Cpus:
    """Which CPUs the node has, those online or those of its cgroup's cpuset, and what others take of them."""

    def __init__(self, settings: NodeFiles, scope: Cgroup) -> None:
        self._online = KeptFile(settings.sys / "devices" / "system" / "cpu" / "online")
        self._stat = KeptFile(settings.proc / "stat")
        self._scope = scope if settings.scope == "Cgroup" else None
        self._cpus: frozenset[int] = frozenset()
        self._before: bytes | None = None  # the machine's times at the last call of `others`
        self._looks = 0
        self._shared: Problem | None = None

    @property
    def count(self) -> int:
        """How many there are; 0 if it is unknown."""
        return len(self._cpus)

    def look(self) -> None:
        """Read which they are."""
        before, online = self._cpus, parse_cpus(self._online.read()) or frozenset()
        if self._scope is None:
            self._cpus = online
            return
        self._cpus = self._scope.effective_cpus() or online
        if self._cpus != before:
            self._before = None
        if self._cpus != before or self._looks % _NEIGHBOUR_TURNS == 0:
            self._shared = self._overlap(self._scope, self._cpus)
        self._looks += 1

    def files(self) -> list[KeptFile]:
        """What `others` reads."""
        return [] if self._scope is None else [self._stat]

    def others(self, own: float, pressure: float, seconds: float) -> float:
        """Part of them that others took while the node's tasks waited, since the last call; 0 where none is known of.

        Others are the processes outside of the node's cgroup.

        Args:
            own: the part that the node's own took in the same time.
            pressure: part of that time in which tasks of the node waited.
            seconds: that time; 0 if it is not to be trusted.
        """
        if self._scope is None:
            return 0.0
        data, now = self._before, self._stat.read()
        self._before = now
        if not seconds or not pressure > 0.0:  # the file is long: it is parsed where it matters
            return 0.0
        before, after = (parse_cpu_times(each, self._cpus) for each in (data, now))
        if before is None or after is None:
            return 0.0
        return pressure * max((readings.utilisation(before, after) or 0.0) - own, 0.0)

    def problem(self) -> Problem | None:
        """The node shares CPUs with another one, as far as can be seen."""
        return self._shared

    def close(self) -> None:
        """Give back every descriptor."""
        self._online.close()
        self._stat.close()

    @staticmethod
    def _overlap(scope: Cgroup, cpus: frozenset[int]) -> Problem | None:
        for sibling in scope.siblings():
            if sibling.find_kubepods() is None:
                continue  # not a node: its load is this machine's, as any daemon's is
            shared = cpus & (sibling.effective_cpus() or frozenset())
            if shared:
                names = ",".join(str(cpu) for cpu in sorted(shared))
                return Problem(
                    "SharedCPUs",
                    f"CPUs {names} also belong to the node in cgroup {sibling.path}, so the load of the two "
                    "nodes can't be separated. Give each node's cgroup CPUs of its own.",
                )
        return None


class MachineUtilisation:
    """Utilisation and running tasks from /proc/stat.

    Attributes:
        runnable: tasks that ran or waited for a CPU at the last read, this process left out; NaN if unknown.
    """

    def __init__(self, stat: Path) -> None:
        self.runnable = NAN
        self._file = KeptFile(stat)
        self._times: tuple[int, ...] | None = None

    def files(self) -> list[KeptFile]:
        """See ``Meter``."""
        return [self._file]

    def read(self, seconds: float, problems: list[Problem]) -> float:
        """Fraction of the node's CPUs that was busy; see ``Meter`` for the arguments."""
        data = self._file.read()
        before, self._times = self._times, parse_cpu_times(data)
        running = parse_field(data, b"procs_running")
        self.runnable = NAN if running is None else max(running - 1.0, 0.0)
        if self._times is None:
            problems.append(Problem("Unreadable", f"{self._file.path} holds no cpu line: cpu is not measured.", "cpu"))
        if before is None or self._times is None or not seconds:
            return NAN
        busy = readings.utilisation(before, self._times)
        return NAN if busy is None else busy

    def close(self) -> None:
        """See ``Meter``."""
        self._file.close()


class CgroupUtilisation:
    """Utilisation from a cgroup's own accounting, measured against the CPUs of its cpuset.

    Attributes:
        runnable: NaN; the kernel counts tasks for the whole machine only.
    """

    runnable = NAN

    def __init__(self, scope: Cgroup, cpus: Cpus) -> None:
        self._scope = scope
        self._cpus = cpus
        self._usage = Rate()
        self._share = Share()

    def files(self) -> list[KeptFile]:
        """See ``Meter``."""
        return self._scope.cpu_files()

    def read(self, seconds: float, problems: list[Problem]) -> float:
        """Fraction of the node's CPUs that was busy; see ``Meter`` for the arguments."""
        used = self._scope.cpu_seconds()
        if used is None:
            message = f"cgroup {self._scope.path} has no CPU usage: cpu is not measured."
            problems.append(Problem("Unreadable", message, "cpu"))
        rate = self._usage.update(used, seconds)
        return self._share.update(rate / self._cpus.count, seconds) if self._cpus.count else NAN

    def close(self) -> None:
        """See ``Meter``."""
        self._scope.close()


class Cpu:
    """cpu: utilisation and pressure as one number."""

    def __init__(
        self,
        busy: MachineUtilisation | CgroupUtilisation,
        psi: KeptFile | None,
        formula: CpuFormula,
        cpus: Cpus,
        pods: PodUsage,
    ) -> None:
        self._busy = busy
        self._psi = psi
        self._formula = formula
        self._cpus = cpus
        self._pods = pods
        self._pressure = Rate()
        self._waiting = Share()

    def files(self) -> list[KeptFile]:
        """See ``Meter``."""
        pressure = [self._psi] if self._psi else []
        return [*self._busy.files(), *pressure, *self._cpus.files(), *self._pods.cpu_files()]

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        own = self._busy.read(seconds, problems)
        waited = parse_pressure(self._psi.read() if self._psi else None)
        if waited is None:
            problems.append(Problem("NoPressure", f"{pressure_name(self._psi)}: cpu is utilisation only."))
        pressure = self._waiting.update(self._pressure.update(waited, seconds), seconds)
        # Time that processes outside of the node's cgroup took of its CPUs while its own tasks waited is to it what
        # steal is to a machine, and counts as busy. Without, a node on busy CPUs would never look full.
        others = self._cpus.others(own, pressure, seconds)
        busy = own if math.isnan(pressure) else clip(own + others)
        # Pressure that is there, only not for this sample (NaN), makes the reading unknown: utilisation alone would be
        # another quantity than the samples before and after it
        usage = readings.cpu(busy, None if waited is None else pressure, self._formula)
        of_pods = self._pods.cpus(seconds) / self._cpus.count if self._cpus.count else NAN
        runnable = self._busy.runnable / self._cpus.count if self._cpus.count else NAN
        if math.isnan(busy) or math.isnan(of_pods):
            return Reading(usage, busy, runnable=runnable)
        return Reading(usage, busy, float(readings.non_pod_cpu(usage, busy, of_pods)), runnable, max(busy - own, 0.0))

    def close(self) -> None:
        """See ``Meter``."""
        self._busy.close()
        if self._psi:
            self._psi.close()
