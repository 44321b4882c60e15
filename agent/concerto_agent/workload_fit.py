"""Whether a pinned pod uses its CPUs as its workload type says, from its CPU time and its pressure (PSI).

CPU time and pressure show whether a pod computes, waits for CPUs, waits for I/O, or does nothing. They do not show
whether it waits for memory: a CPU that waits for memory is busy. So nothing is suggested between cpu-bound and
memory-bound, which `concerto classify` distinguishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from concerto.api.conditions import Condition
from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.cpusets import Claim, Grant
from concerto_agent.files import parse_pressure
from concerto_agent.pinning_settings import FitSettings

CONDITION = "WorkloadTypeFits"
_COMPUTING = frozenset({"cpu-bound", "memory-bound"})


@dataclass(frozen=True)
class Use:
    """What a pod has used over a window.

    Attributes:
        cpus: mean number of busy CPUs.
        cpu_wait: share of time in which one of its tasks waited for a CPU, 0 to 1; None where it is not known.
        io_wait: the same for I/O.
    """

    cpus: float
    cpu_wait: float | None = None
    io_wait: float | None = None


def judge_fit(kind: str, cpus: int, use: Use, settings: FitSettings) -> Condition:
    """The condition WorkloadTypeFits of a pod.

    Args:
        kind: its workload type.
        cpus: CPUs that it is bound to.
        use: what it used.
        settings: thresholds.
    """
    share = use.cpus / cpus
    io_wait, cpu_wait = use.io_wait or 0.0, use.cpu_wait or 0.0
    better, reason = kind, "AsLabelled"
    if kind != "best-effort" and share < settings.idle and io_wait < settings.waits:
        better, reason = "best-effort", "MostlyIdle"
    elif kind in _COMPUTING and share < settings.low and io_wait >= settings.waits:
        better, reason = "io-bound", "WaitsForIO"
    elif kind not in _COMPUTING and share >= settings.high and cpu_wait >= settings.waits:
        better, reason = "cpu-bound", "WaitsForCPU"
    seen = f"Over {settings.window_seconds / 60:g} min it kept {use.cpus:.1f} of {cpus} CPUs busy{_waits(use)}."
    if better == kind:
        return Condition(CONDITION, "True", reason, seen)
    return Condition(CONDITION, "False", reason, f"Type {better} would suit the pod better than {kind}. {seen}")


def _waits(use: Use) -> str:
    known = [(use.cpu_wait, "a CPU"), (use.io_wait, "I/O")]
    parts = [f"waited for {what} {share:.0%} of the time" for share, what in known if share is not None]
    return f" and {' and '.join(parts)}" if parts else ""


class UseMeter:
    """Measures pods over windows, one after the other."""

    def __init__(self, hierarchies: Hierarchies, settings: FitSettings) -> None:
        """Nothing is read before `read`."""
        self._hierarchies = hierarchies
        self._settings = settings
        self._began: dict[str, tuple[str, float, tuple[float | None, ...]]] = {}  # path, time and readings, by UID

    def read(self, paths: Mapping[str, str], now: float) -> dict[str, Use]:
        """What those pods have used whose window is over; their next one begins.

        Args:
            paths: of the pods' cgroups, by UID; other pods are forgotten.
            now: monotonic seconds.
        """
        self._began = {uid: began for uid, began in self._began.items() if paths.get(uid) == began[0]}
        found = {}
        for uid, path in paths.items():
            began = self._began.get(uid)
            if began is not None and now - began[1] < self._settings.window_seconds:
                continue
            readings = self._readings(path)
            self._began[uid] = (path, now, readings)
            if began is None:
                continue
            rates = [
                None if a is None or b is None else max(b - a, 0.0) / (now - began[1])
                for a, b in zip(began[2], readings, strict=True)
            ]
            if rates[0] is not None:
                found[uid] = Use(rates[0], *(None if each is None else min(each, 1.0) for each in rates[1:]))
        return found

    def _readings(self, path: str) -> tuple[float | None, ...]:
        """CPU time, time waited for a CPU and for I/O; seconds since the cgroup was made."""
        cgroup = Cgroup(self._hierarchies, path)
        try:
            files = (cgroup.pressure_file("cpu"), cgroup.pressure_file("io"))
            return (cgroup.cpu_seconds(), *(parse_pressure(file.read()) if file else None for file in files))
        finally:
            cgroup.close()


class Fits:
    """The condition WorkloadTypeFits of the pods that are pinned by a workload type."""

    def __init__(self, hierarchies: Hierarchies, settings: FitSettings) -> None:
        """Nothing is read before `look`."""
        self._settings = settings
        self._use = UseMeter(hierarchies, settings)
        self._fits: dict[str, tuple[Claim, Condition]] = {}  # by UID of the pod

    def of(self, uid: str) -> Condition | None:
        """The pod's condition; None as long as its first window is not over."""
        return self._fits[uid][1] if uid in self._fits else None

    def look(self, grants: Mapping[str, Grant], paths: Mapping[str, str], now: float) -> None:
        """Judge the pods whose window is over.

        Args:
            grants: by UID of the pod.
            paths: of the pods' cgroups, by UID.
            now: monotonic seconds.
        """
        typed = {uid: grant.claim for uid, grant in grants.items() if grant.claim.workload_type}
        self._fits = {uid: fit for uid, fit in self._fits.items() if typed.get(uid) == fit[0]}
        there = {uid: paths[uid] for uid in typed if uid in paths}
        for uid, use in self._use.read(there, now).items():
            claim = typed[uid]
            self._fits[uid] = claim, judge_fit(claim.workload_type, len(claim.cpus), use, self._settings)
