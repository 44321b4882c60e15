"""How much of the node is in use, ten times a second: one number in [0, 1] per resource (algorithms section 1).

A reading that can't be had is NaN, never a guess and never an old value; what is wrong comes with it as a problem that
ends up in the condition TelemetryComplete. Time is monotonic and passed in: differences of counters are taken over the
time that really went by, and a gap too long to be a sample (a suspended machine, a starved agent) is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from concerto.api.capacity_settings import CapacitySettings, CpuFormula, MemoryFormula
from concerto.capacity import readings
from concerto.capacity.node_status import Problem
from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.files import (
    KeptFile,
    parse_cpu_list,
    parse_cpu_times,
    parse_field,
    parse_number,
    parse_pressure,
)

NAN = math.nan


@dataclass(frozen=True)
class SamplerSettings:
    """What is measured where; the agent's own settings, not the CRD's.

    Attributes:
        scope: ``Machine``: the machine's files; ``Cgroup``: one cgroup's, for nodes that share a machine.
        cgroup: path of the node's cgroup, relative to the hierarchies' roots; "" is the root.
        memory_capacity_bytes: what the node's memory is measured against in scope ``Cgroup``; None: MemTotal.
        proc: where the machine's /proc is seen.
        sys: where the machine's /sys is seen.
        longest_gap_seconds: differences of counters over a longer time are dropped.
        slow_period_seconds: how often what changes rarely is read: the CPUs, the neighbours' cpusets, the usage of the
            pods that are not counted.
    """

    scope: Literal["Machine", "Cgroup"] = "Machine"
    cgroup: str = ""
    memory_capacity_bytes: int | None = None
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    longest_gap_seconds: float = 2.0
    slow_period_seconds: float = 1.0


@dataclass(frozen=True)
class Reading:
    """One resource at one instant.

    Attributes:
        usage: fraction of the node, NaN if it was not measured.
        utilisation: what load-aware scores average: for cpu without the pressure, else the same as ``usage``.
        non_pod: the part of it outside the pods that are counted, NaN if it can't be told apart.
    """

    usage: float
    utilisation: float
    non_pod: float = NAN


NOTHING = Reading(NAN, NAN)
_MEMINFO_FIELDS = (b"MemTotal", b"MemAvailable", b"MemFree", b"Buffers", b"Cached")


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


class Rate:
    """Growth per second of a counter; nothing is said about a time in which it went backwards (it was made anew)."""

    def __init__(self) -> None:
        self._last: float | None = None

    def update(self, value: float | None, seconds: float) -> float:
        """The growth since the last update, per second; NaN if there is none to speak of.

        Args:
            value: the counter now, None if it can't be read.
            seconds: time since the last update; 0 if that time is not to be trusted.
        """
        last, self._last = self._last, value
        if value is None or last is None or seconds <= 0 or value < last:
            return NAN
        return (value - last) / seconds


class Share:
    """A rate as a part of what is possible at most, in [0, 1].

    Counters are read a moment after the clock, later still where tasks queue for the CPU: what is over 1 in one sample
    is missing in the next, and carried there. Cut off instead, a node that is full all the time would read as 0.9.
    """

    def __init__(self) -> None:
        self._over_seconds = 0.0

    def update(self, rate: float, seconds: float) -> float:
        """The part; NaN if the rate is.

        Args:
            rate: growth per second over what it can be at most.
            seconds: time that the rate spans.
        """
        if math.isnan(rate):
            self._over_seconds = 0.0
            return NAN
        total = rate + self._over_seconds / seconds
        share = clip(total)
        # Never for longer than a sample: what can be at most may itself have been told wrong
        self._over_seconds = min(total - share, 1.0) * seconds
        return share


class Meter(Protocol):
    """Measures one resource."""

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """The resource now.

        Args:
            seconds: time since the last read; 0 if there was none or it is too long ago.
            problems: what is missing is added to it.
        """
        ...

    def close(self) -> None:
        """Give back every descriptor."""
        ...


def clip(value: float) -> float:
    """Into [0, 1]; NaN stays NaN."""
    return value if math.isnan(value) else min(max(value, 0.0), 1.0)


class PodUsage:
    """CPU and memory of the pods' cgroups, to tell pods from everything else on the node.

    Pods that are not counted (static and DaemonSet pods) are part of what the node uses anyway, so that their usage is
    given back to it; it is read once a second, as it changes slowly and every pod costs reads.
    """

    def __init__(self, hierarchies: Hierarchies, scope: Cgroup) -> None:
        self._hierarchies = hierarchies
        self._scope = scope
        self._kubepods: Cgroup | None = None
        self._cpu = Rate()
        self._uncounted: dict[str, tuple[Cgroup, Rate]] = {}
        self._uncounted_cpu = 0.0
        self._uncounted_memory = 0.0

    @property
    def found(self) -> bool:
        """Whether there is a kubepods cgroup."""
        return self._kubepods is not None

    def look(self, seconds: float, uncounted: Iterable[str]) -> None:
        """Find the kubepods cgroup, and read the pods that are not counted.

        Args:
            seconds: time since the last look; 0 if there was none or it is too long ago.
            uncounted: paths of their cgroups.
        """
        path = self._scope.find_kubepods()
        if path is None or self._kubepods is None or self._kubepods.path != path:
            if self._kubepods is not None:
                self._kubepods.close()
            self._kubepods = None if path is None else Cgroup(self._hierarchies, path)
            self._cpu = Rate()
        paths = set(uncounted)
        for gone in self._uncounted.keys() - paths:
            self._uncounted.pop(gone)[0].close()
        for new in paths - self._uncounted.keys():
            self._uncounted[new] = (Cgroup(self._hierarchies, new), Rate())
        cpu = [rate.update(cgroup.cpu_seconds(), seconds) for cgroup, rate in self._uncounted.values()]
        memory = [cgroup.memory_bytes() or 0.0 for cgroup, _ in self._uncounted.values()]
        self._uncounted_cpu = sum(rate for rate in cpu if not math.isnan(rate))
        self._uncounted_memory = sum(memory)

    def cpus(self, seconds: float) -> float:
        """CPUs that the counted pods kept busy since the last call; NaN if unknown."""
        used = self._cpu.update(self._kubepods.cpu_seconds() if self._kubepods else None, seconds)
        return max(used - self._uncounted_cpu, 0.0) if not math.isnan(used) else NAN

    def memory_bytes(self) -> float:
        """Memory of the counted pods; NaN if unknown."""
        used = self._kubepods.memory_bytes() if self._kubepods else None
        return NAN if used is None else max(used - self._uncounted_memory, 0.0)

    def close(self) -> None:
        """Give back every descriptor."""
        for cgroup, _ in self._uncounted.values():
            cgroup.close()
        self._uncounted.clear()
        if self._kubepods:
            self._kubepods.close()


class Cpus:
    """Which CPUs the node has, those online or those of its cgroup's cpuset, and what others take of them."""

    def __init__(self, settings: SamplerSettings, scope: Cgroup) -> None:
        self._online = settings.sys / "devices" / "system" / "cpu" / "online"
        self._stat = KeptFile(settings.proc / "stat")
        self._scope = scope if settings.scope == "Cgroup" else None
        self._cpus: frozenset[int] = frozenset()
        self._times: tuple[int, ...] | None = None
        self._shared: Problem | None = None

    @property
    def count(self) -> int:
        """How many there are; 0 if that can't be told."""
        return len(self._cpus)

    def look(self) -> None:
        """Read which they are."""
        before, online = self._cpus, parse_cpu_list(_content(self._online)) or frozenset()
        if self._scope is None:
            self._cpus = online
            return
        self._cpus = self._scope.effective_cpus() or online
        self._shared = self._overlap(self._scope, self._cpus)
        if self._cpus != before:
            self._times = None

    def others(self, own: float, seconds: float) -> float:
        """Part of them that processes outside of the node's cgroup took since the last call; 0 where none is known of.

        Args:
            own: the part that the node's took in the same time.
            seconds: that time; 0 if it is not to be trusted.
        """
        if self._scope is None:
            return 0.0
        before, self._times = self._times, parse_cpu_times(self._stat.read(), self._cpus)
        if before is None or self._times is None or not seconds:
            return 0.0
        return max((readings.utilisation(before, self._times) or 0.0) - own, 0.0)

    def problem(self) -> Problem | None:
        """The node shares CPUs with another one, as far as can be seen."""
        return self._shared

    def close(self) -> None:
        """Give back every descriptor."""
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
                    f"CPUs {names} also belong to the node in cgroup {sibling.path}: the load of the two can't be told "
                    "apart. Give each node's cgroup CPUs of its own.",
                )
        return None


class MachineUtilisation:
    """Utilisation from /proc/stat."""

    def __init__(self, stat: Path) -> None:
        self._file = KeptFile(stat)
        self._times: tuple[int, ...] | None = None

    def read(self, seconds: float, problems: list[Problem]) -> float:
        """Fraction of the node's CPUs that was busy; see ``Meter`` for the arguments."""
        before, self._times = self._times, parse_cpu_times(self._file.read())
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
    """Utilisation from a cgroup's own accounting, measured against the CPUs of its cpuset."""

    def __init__(self, scope: Cgroup, cpus: Cpus) -> None:
        self._scope = scope
        self._cpus = cpus
        self._usage = Rate()
        self._share = Share()

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

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        own = self._busy.read(seconds, problems)
        waited = parse_pressure(self._psi.read() if self._psi else None)
        if waited is None:
            problems.append(Problem("NoPressure", f"{_psi_name(self._psi)}: cpu is the utilisation alone."))
        pressure = self._waiting.update(self._pressure.update(waited, seconds), seconds)
        # Time that processes outside of the node's cgroup took of its CPUs while its own tasks waited is to it what
        # steal is to a machine, and counts as busy. Without, a node on busy CPUs would never look full.
        others = self._cpus.others(own, seconds)
        busy = own if math.isnan(pressure) else clip(own + others * pressure)
        # Pressure that is there, only not for this sample (NaN), makes the reading unknown: utilisation alone would be
        # another quantity than the samples before and after it
        usage = readings.cpu(busy, None if waited is None else pressure, self._formula)
        of_pods = self._pods.cpus(seconds) / self._cpus.count if self._cpus.count else NAN
        if math.isnan(busy) or math.isnan(of_pods):
            return Reading(usage, busy)
        return Reading(usage, busy, float(readings.non_pod_cpu(usage, busy, of_pods)))

    def close(self) -> None:
        """See ``Meter``."""
        self._busy.close()
        if self._psi:
            self._psi.close()


def _psi_name(file: KeptFile | None) -> str:
    if file is None:
        return "No cgroup hierarchy (v2 or unified) tells pressure"
    return f"{file.path} tells no pressure"


class MachineMemory:
    """memory from /proc/meminfo."""

    def __init__(self, settings: SamplerSettings, formula: MemoryFormula, pods: PodUsage) -> None:
        self._meminfo = KeptFile(settings.proc / "meminfo")
        self._formula = formula
        self._pods = pods

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        data = self._meminfo.read()
        fields = {name: _whole(parse_field(data, name + b":")) for name in _MEMINFO_FIELDS}
        total = fields[b"MemTotal"] or 0
        info = readings.Meminfo(total, *(fields[name] for name in _MEMINFO_FIELDS[1:]))
        usage = readings.memory_available(info) if self._formula == "Available" else None
        if usage is None:
            usage = readings.memory_free_buffers_cached(info)
            if usage is not None and self._formula == "Available":
                message = "has no MemAvailable: memory is 1 - (MemFree + Buffers + Cached) / MemTotal, blind to tmpfs."
                problems.append(Problem("NoMemAvailable", f"{self._meminfo.path} {message}"))
        if usage is None:
            message = f"{self._meminfo.path} lacks fields: memory is not measured."
            problems.append(Problem("Unreadable", message, "memory"))
            return NOTHING
        return Reading(usage, usage, _without(usage, self._pods.memory_bytes() / (total * 1024)))

    def close(self) -> None:
        """See ``Meter``."""
        self._meminfo.close()


class CgroupMemory:
    """memory from a cgroup's own accounting, measured against a capacity that is given."""

    def __init__(self, settings: SamplerSettings, scope: Cgroup, pods: PodUsage) -> None:
        self._capacity = settings.memory_capacity_bytes
        self._meminfo = KeptFile(settings.proc / "meminfo")
        self._scope = scope
        self._pods = pods

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        used = self._scope.memory_bytes()
        if self._capacity is None:
            total = parse_field(self._meminfo.read(), b"MemTotal:")
            self._capacity = None if total is None else int(total * 1024)
        if used is None or not self._capacity:
            what = "memory usage" if used is None else "memory capacity (give --memory-capacity)"
            message = f"cgroup {self._scope.path} has no {what}: memory is not measured."
            problems.append(Problem("Unreadable", message, "memory"))
            return NOTHING
        usage = clip(used / self._capacity)
        return Reading(usage, usage, _without(usage, self._pods.memory_bytes() / self._capacity))

    def close(self) -> None:
        """See ``Meter``."""
        self._meminfo.close()
        self._scope.close()


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _without(usage: float, of_pods: float) -> float:
    return NAN if math.isnan(of_pods) else max(usage - of_pods, 0.0)


class Io:
    """io: the share of time in which some task waited for a disk (PSI)."""

    def __init__(self, file: KeptFile | None) -> None:
        self._file = file
        self._pressure = Rate()

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        waited = parse_pressure(self._file.read() if self._file else None)
        if waited is None:
            problems.append(Problem("NoPressure", f"{_psi_name(self._file)}: io is not measured.", "io"))
        usage = clip(self._pressure.update(waited, seconds))
        return Reading(usage, usage)

    def close(self) -> None:
        """See ``Meter``."""
        if self._file:
            self._file.close()


class Network:
    """network: the busiest direction of the busiest physical interface, as a fraction of its speed."""

    def __init__(self, settings: SamplerSettings) -> None:
        self._class = settings.sys / "class" / "net"
        self._counters: dict[tuple[str, str], tuple[KeptFile, Rate]] = {}

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        usages = []
        for interface in self._interfaces():
            speed = parse_number(_content(self._class / interface / "speed"))  # Mbit/s; -1 if unknown
            if speed is None or speed <= 0:
                continue
            for direction in ("rx_bytes", "tx_bytes"):
                path = self._class / interface / "statistics" / direction
                file, rate = self._counters.setdefault((interface, direction), (KeptFile(path), Rate()))
                usages.append(clip(rate.update(parse_number(file.read()), seconds) * 8 / (speed * 1e6)))
        if not usages:
            message = f"No physical interface in {self._class} tells its speed: network is not measured."
            problems.append(Problem("NetworkSpeedUnknown", message, "network"))
            return NOTHING
        usage = NAN if any(math.isnan(each) for each in usages) else max(usages)
        return Reading(usage, usage)

    def _interfaces(self) -> list[str]:
        """Those with hardware behind them: bridges and the pods' ends of veth pairs would count everything twice."""
        try:
            return [path.name for path in self._class.iterdir() if (path / "device").exists()]
        except OSError:
            return []

    def close(self) -> None:
        """See ``Meter``."""
        for file, _ in self._counters.values():
            file.close()


class GaugeFile:
    """A resource whose usage somebody else writes into a file, as a number in [0, 1].

    The file is opened each time, as it is usually replaced as a whole.
    """

    def __init__(self, name: str, path: Path | None) -> None:
        self._name = name
        self._path = path

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        if self._path is None:
            message = f"Resource {self._name} has no entry in spec.gauges: it is not measured."
            problems.append(Problem("InvalidGauge", message, self._name))
            return NOTHING
        value = parse_number(_content(self._path))
        if value is None or not 0 <= value <= 1:
            what = "holds no number" if value is None else f"holds {value:g}, which is not"
            message = f"{self._path} {what} in [0, 1]: {self._name} is not measured."
            problems.append(Problem("InvalidGauge", message, self._name))
            return NOTHING
        return Reading(value, value)

    def close(self) -> None:
        """Nothing is kept."""


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (OSError, ValueError):
        return None


class Sampler:
    """Reads every resource of ``spec.resources``; made anew when the spec changes."""

    def __init__(self, settings: SamplerSettings, capacity: CapacitySettings) -> None:
        self._settings = settings
        hierarchies = Hierarchies.detect(settings.sys)
        scope = Cgroup(hierarchies, settings.cgroup)
        self._cpus = Cpus(settings, scope)
        self._pods = PodUsage(hierarchies, scope)
        self._meters = {name: self._meter(name, capacity, scope) for name in capacity.resources}
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
        """CPUs of the node; 0 if that can't be told."""
        return self._cpus.count

    def sample(self, now: float, uncounted: Iterable[str] = ()) -> Sample:
        """Read everything.

        Args:
            now: monotonic time, seconds.
            uncounted: paths of the cgroups of pods that are not counted in n.
        """
        if self._looked is None or now - self._looked >= self._settings.slow_period_seconds:
            since = 0.0 if self._looked is None else now - self._looked
            self._looked = now
            since = self._trusted(since, self._settings.slow_period_seconds)
            self._cpus.look()
            self._pods.look(since, uncounted)
        seconds = 0.0 if self._last is None else self._trusted(now - self._last, 0.0)
        self._last = now
        problems: list[Problem] = []
        found = {name: meter.read(seconds, problems) for name, meter in self._meters.items()}
        if shared := self._cpus.problem():
            problems.append(shared)
        if not self._pods.found:
            where = self._settings.cgroup or "/"
            message = f"No kubepods cgroup below {where}: no pod can be seen until kubelet has made it."
            problems.append(Problem("NoPodCgroups", message))
        return Sample(now, seconds, found, tuple(problems))

    def _trusted(self, seconds: float, period: float) -> float:
        return seconds if seconds <= period + self._settings.longest_gap_seconds else 0.0

    def close(self) -> None:
        """Give back every descriptor."""
        for meter in self._meters.values():
            meter.close()
        self._cpus.close()
        self._pods.close()
