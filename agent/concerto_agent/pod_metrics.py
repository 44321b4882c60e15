"""CPU and memory of the node's pods from their cgroups, in the form of kubelet's ``/metrics/resource``.

Counters and levels with the time at which each was read: a reader computes rates over a window of its own. What cannot
be read is left out, never written as zero; a pod's containers are those that its status shows as running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.timestamps import read_timestamp
from concerto_agent.cgroups import Cgroup, Hierarchies, container_id
from concerto_agent.files import subdirectories
from concerto_agent.pod_census import uids_of

FRESH_SECONDS = 1.0
"""Readings serve for so long: callers may come as often as they like, the node pays once a second."""

_FAMILIES = (
    ("cpu_usage_seconds_total", "counter", "Cumulative CPU time consumed by the {what} in core-seconds"),
    ("memory_working_set_bytes", "gauge", "Current working set of the {what} in bytes"),
    ("start_time_seconds", "gauge", "Start time of the {what} since unix epoch in seconds"),
)


@dataclass(frozen=True)
class UsageReading:
    """One pod or container at one instant.

    Attributes:
        labels: as they stand in the text.
        at: when it was read, seconds since the epoch.
        values: by family; without those that could not be read.
    """

    labels: str
    at: float
    values: Mapping[str, float]


class PodMetrics:
    """Reads the pods' cgroups when asked."""

    def __init__(
        self,
        hierarchies: Hierarchies,
        cgroups: Mapping[str, str],
        pods: Mapping[Any, Mapping[str, Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is read yet.

        Args:
            hierarchies: where the cgroups are.
            cgroups: path of each pod's, by UID (``PodWatcher.pods``).
            pods: the node's pods as ``pod_census.trim_pod`` leaves them.
            clock: monotonic time, seconds.
            wall: seconds since the epoch, for the readings' timestamps.
        """
        self._hierarchies = hierarchies
        self._cgroups = cgroups
        self._pods = pods
        self._clock = clock
        self._wall = wall
        self._kept = ""
        self._kept_until = float("-inf")

    def text(self) -> str:
        """The exposition, at most a second old."""
        now = self._clock()
        if now >= self._kept_until:
            self._kept, self._kept_until = self._render(), now + FRESH_SECONDS
        return self._kept

    def _render(self) -> str:
        pods: list[UsageReading] = []
        containers: list[UsageReading] = []
        complete = True
        for pod in self._pods.values():
            path = next((self._cgroups[uid] for uid in uids_of(pod) if uid in self._cgroups), None)
            if path is None:
                continue  # not here yet, or gone already
            meta = pod["metadata"]
            where = f'namespace="{meta["namespace"]}",pod="{meta["name"]}"'
            complete &= self._read(pods, path, f"{{{where}}}", None)
            directories = self._containers_of(path)
            for identity, (name, started) in pod["status"]["running"].items():
                labels = f'{{container="{name}",{where}}}'
                begun = read_timestamp(started, None)
                inner = directories.get(identity)
                complete &= inner is not None and self._read(containers, inner, labels, begun)
        lines = _exposition("container", containers) + _exposition("pod", pods)
        lines.append("# HELP resource_scrape_error 1 if there was an error while getting metrics, 0 otherwise")
        lines.append("# TYPE resource_scrape_error gauge")
        lines.append(f"resource_scrape_error {int(not complete)}")
        return "\n".join(lines) + "\n"

    def _containers_of(self, path: str) -> dict[str, str]:
        root = self._hierarchies.cpu
        assert root is not None, "pods are watched only where there is a hierarchy to watch"
        try:
            names = subdirectories(root / path)
        except OSError:
            return {}
        return {identity: f"{path}/{name}" for name in names if (identity := container_id(name))}

    def _read(self, into: list[UsageReading], path: str, labels: str, started: float | None) -> bool:
        """Read one cgroup; False where something of it could not be."""
        cgroup = Cgroup(self._hierarchies, path)
        at = self._wall()
        read = (cgroup.cpu_seconds(), cgroup.memory_bytes())
        cgroup.close()
        names = [family for family, _, _ in _FAMILIES]
        values = {name: value for name, value in zip(names, (*read, started)) if value is not None}
        into.append(UsageReading(labels, at, values))
        return None not in read


def _exposition(what: str, readings: list[UsageReading]) -> list[str]:
    lines = []
    for family, kind, help_ in _FAMILIES:
        samples = [
            f"{what}_{family}{reading.labels} {reading.values[family]!r} {round(reading.at * 1000)}"
            for reading in readings
            if family in reading.values
        ]
        if samples:
            lines += [f"# HELP {what}_{family} {help_.format(what=what)}", f"# TYPE {what}_{family} {kind}", *samples]
    return lines
