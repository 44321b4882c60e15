"""How many cores a pod uses while it computes, from readings of its CPU time and of its stalls."""

from __future__ import annotations

import os

_MIN_SECONDS = 0.05
"""Time that a reading has to span: the kernel adds up CPU time and stalls at different instants."""
_FIRST_CORES = 1.0
"""Cores that a pod is taken to have used before its first reading: when it computed until then, nobody knows."""


class PeakUse:
    """What one pod has used, each part of its CPU time times the cores that it used then.

    Over its CPU time it is the mean number of cores while it computes. Stalls are left out: a pod that has every other
    turn of a CPU uses one core while it runs.

    Attributes:
        work: that sum, core-seconds times cores.
    """

    def __init__(self) -> None:
        """Nothing is known before `note`."""
        self.work = 0.0
        self._last: tuple[float, float, float] | None = None
        self._cores = float(os.cpu_count() or 1)

    def note(self, now: float, cpu_seconds: float, stalled_seconds: float) -> None:
        """Take a reading.

        Args:
            now: monotonic seconds.
            cpu_seconds: CPU time since the pod's cgroup was made.
            stalled_seconds: time that it lost to others since then; 0 where nobody knows.
        """
        if self._last is None:
            self.work = _FIRST_CORES * cpu_seconds
            self._last = now, cpu_seconds, stalled_seconds
            return
        at, cpu_before, stalled_before = self._last
        if now - at < _MIN_SECONDS:
            return
        self._last = now, cpu_seconds, stalled_seconds
        used, stalled = max(0.0, cpu_seconds - cpu_before), max(0.0, stalled_seconds - stalled_before)
        if used:
            self.work += used * min(used / max(now - at - stalled, 1e-6), self._cores)
