"""How much of each resource of the node is in use, ten times a second, in [0, 1] (docs/references.md, "Telemetry").

A reading that fails is NaN, never a guess and never an old value. The reason comes with it as a problem, which the
condition TelemetryComplete shows. Time is monotonic and passed in: differences of counters are taken over the
time that really went by, and a gap too long to be a sample (a suspended machine, a starved agent) is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from concerto.api.capacity_settings import CapacitySettings
from concerto.capacity.node_status import Problem
from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.cpu_meter import CgroupUtilisation, Cpu, Cpus, MachineUtilisation
from concerto_agent.device_meters import GaugeFile, Io, Network
from concerto_agent.files import KeptFile
from concerto_agent.memory_meter import CgroupMemory, MachineMemory
from concerto_agent.meter import Meter, Reading
from concerto_agent.node_files import NodeFiles
from concerto_agent.pod_usage import PodUsage


@dataclass(frozen=True)
class Sample:
    """All resources at one instant.

    Attributes:
        at: monotonic time, seconds.
        seconds: how long the counters' differences span; 0 for the first sample.
        readings: by resource, in the order of ``spec.resources``.
        problems: what was missing.
    """

    at: float
    seconds: float
    readings: dict[str, Reading]
    problems: tuple[Problem, ...]


class Sampler:
    """Reads every resource of ``spec.resources``; made anew when the spec changes."""

    def __init__(self, settings: NodeFiles, capacity: CapacitySettings) -> None:
        self._settings = settings
        hierarchies = Hierarchies.detect(settings.sys)
        scope = Cgroup(hierarchies, settings.cgroup)
        self._cpus = Cpus(settings, scope)
        self._pods = PodUsage(hierarchies, scope)
        self._meters = {name: self._meter(name, capacity, scope) for name in capacity.resources}
        self._files: list[KeptFile] = []  # what each sample reads
        self._at_once = False  # whether something else has to be read for it, too
        self._taken: list[tuple[float, list[bytes | None]]] = []  # when, and what the files held
        self._samples: list[Sample] = []
        self._last: float | None = None
        self._looked: float | None = None

    def _meter(self, name: str, capacity: CapacitySettings, scope: Cgroup) -> Meter:
        settings, machine = self._settings, self._settings.scope == "Machine"
        psi = {
            resource: KeptFile(settings.proc / "pressure" / resource) if machine else scope.pressure_file(resource)
            for resource in ("cpu", "io")
        }
        if name == "cpu":
            busy = MachineUtilisation(settings.proc / "stat") if machine else CgroupUtilisation(scope, self._cpus)
            return Cpu(busy, psi["cpu"], capacity.cpu_formula, self._cpus, self._pods)
        if name == "memory" and machine:
            return MachineMemory(settings, capacity.memory_formula, self._pods)
        if name == "memory":
            return CgroupMemory(settings, scope, self._pods)
        if name == "io":
            return Io(psi["io"])
        if name == "network":
            return Network(settings)
        path = next((gauge.path for gauge in capacity.gauges if gauge.name == name), None)
        return GaugeFile(name, None if path is None else Path(path))

    @property
    def cpus(self) -> int:
        """CPUs of the node; 0 if it is unknown."""
        return self._cpus.count

    @property
    def taken(self) -> int:
        """Samples taken since `samples` was called."""
        return len(self._taken) + len(self._samples)

    def take(self, now: float, uncounted: Iterable[str] = ()) -> None:
        """Take a sample: read everything that it needs.

        Between two samples of an idle node the CPU's caches forget the agent's code, so that it runs several times
        faster for ten samples one after the other than ten times for one. `samples` runs it.

        Args:
            now: monotonic time, seconds.
            uncounted: paths of the cgroups of pods that are not counted in n.
        """
        if self._looked is None or now - self._looked >= self._settings.slow_period_seconds:
            since = 0.0 if self._looked is None else now - self._looked
            self._looked = now
            self._work_out()  # the samples before belong to what is known before
            since = self._trusted(since, self._settings.slow_period_seconds)
            self._cpus.look()
            self._pods.look(since, uncounted)
            self._find_files()
        self._taken.append((now, [file.read() for file in self._files]))
        if self._at_once:
            self._work_out()

    def _find_files(self) -> None:
        found = [meter.files() for meter in self._meters.values()]
        self._files = [file for files in found for file in files or ()]
        self._at_once = None in found

    def samples(self) -> list[Sample]:
        """The samples taken since the last call, in order."""
        self._work_out()
        found, self._samples = self._samples, []
        return found

    def _work_out(self) -> None:
        taken, self._taken = self._taken, []
        try:
            for at, contents in taken:
                for file, content in zip(self._files, contents):
                    file.hold(content)
                self._samples.append(self._sample(at))
        finally:
            for file in self._files:
                file.release()

    def _sample(self, now: float) -> Sample:
        seconds = 0.0 if self._last is None else self._trusted(now - self._last, 0.0)
        self._last = now
        problems: list[Problem] = []
        found = {name: meter.read(seconds, problems) for name, meter in self._meters.items()}
        if shared := self._cpus.problem():
            problems.append(shared)
        if not self._pods.found:
            where = self._settings.cgroup or "/"
            message = f"No kubepods cgroup below {where}: no pod can be counted until kubelet has created it."
            problems.append(Problem("NoPodCgroups", message))
        return Sample(now, seconds, found, tuple(problems))

    def _trusted(self, seconds: float, period: float) -> float:
        return seconds if seconds <= period + self._settings.max_gap_seconds else 0.0

    def close(self) -> None:
        """Give back every descriptor."""
        for meter in self._meters.values():
            meter.close()
        self._cpus.close()
        self._pods.close()
