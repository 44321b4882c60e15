"""The meters of io, of network, and of resources that somebody else measures into a file."""

from __future__ import annotations

import math
from pathlib import Path

from concerto.capacity.node_status import Problem
from concerto_agent.files import KeptFile, parse_number, parse_pressure
from concerto_agent.meter import NOTHING, Reading, content, pressure_name
from concerto_agent.node_files import NodeFiles
from concerto_agent.rates import NAN, Rate, clip


class Io:
    """io: the share of time in which some task waited for a disk (PSI)."""

    def __init__(self, file: KeptFile | None) -> None:
        self._file = file
        self._pressure = Rate()

    def files(self) -> list[KeptFile]:
        """See ``Meter``."""
        return [self._file] if self._file else []

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        waited = parse_pressure(self._file.read() if self._file else None)
        if waited is None:
            problems.append(Problem("NoPressure", f"{pressure_name(self._file)}: io is not measured.", "io"))
        usage = clip(self._pressure.update(waited, seconds))
        return Reading(usage, usage)

    def close(self) -> None:
        """See ``Meter``."""
        if self._file:
            self._file.close()


class Network:
    """network: the busiest direction of the busiest physical interface, as a fraction of its speed."""

    def __init__(self, settings: NodeFiles) -> None:
        self._class = settings.sys / "class" / "net"
        self._counters: dict[tuple[str, str], tuple[KeptFile, Rate]] = {}

    def files(self) -> None:
        """Interfaces come and go."""

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        usages = []
        for interface in self._interfaces():
            speed = parse_number(content(self._class / interface / "speed"))  # Mbit/s; -1 if unknown
            if speed is None or speed <= 0:
                continue
            for direction in ("rx_bytes", "tx_bytes"):
                path = self._class / interface / "statistics" / direction
                file, rate = self._counters.setdefault((interface, direction), (KeptFile(path), Rate()))
                usages.append(clip(rate.update(parse_number(file.read()), seconds) * 8 / (speed * 1e6)))
        if not usages:
            message = f"No physical interface in {self._class} reports its speed: network is not measured."
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

    def files(self) -> None:
        """The file is another one each time it is replaced."""

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """See ``Meter``."""
        if self._path is None:
            message = f"Resource {self._name} has no entry in spec.gauges: it is not measured."
            problems.append(Problem("InvalidGauge", message, self._name))
            return NOTHING
        value = parse_number(content(self._path))
        if value is None or not 0 <= value <= 1:
            what = "does not hold a number" if value is None else f"holds {value:g}, which is not"
            message = f"{self._path} {what} in [0, 1]: {self._name} is not measured."
            problems.append(Problem("InvalidGauge", message, self._name))
            return NOTHING
        return Reading(value, value)

    def close(self) -> None:
        """Nothing is kept."""
