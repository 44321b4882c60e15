"""The schedules of one PredictiveHPA. They are checked once, and looked for again when a window may open or close."""

from __future__ import annotations

from concerto.api.predictivehpa import PredictiveHPA
from concerto.autoscaling.schedules import CronTimes, Schedule, open_schedules
from concerto.controllers.autoscaling.spec import schedules_of


class ScheduleWindows:
    """Which windows of an object are open.

    Attributes:
        searched: how many times of schedules the last call of `open` has looked for.
    """

    def __init__(self) -> None:
        """No spec was seen."""
        self.searched = 0
        self._spec: PredictiveHPA | None = None
        self._valid: tuple[Schedule, ...] = ()
        self._error = ""
        self._times = CronTimes()

    def open(self, spec: PredictiveHPA, now: float) -> tuple[tuple[Schedule, ...], str]:
        """The schedules whose window is open, and why others are not valid; empty without errors.

        Args:
            spec: of the object.
            now: seconds.
        """
        if spec is not self._spec:
            self._spec, self._times = spec, CronTimes()
            self._valid, self._error = schedules_of(spec)
        before = self._times.searches
        found = open_schedules(self._valid, now, self._times)
        self.searched = self._times.searches - before
        return found, self._error
