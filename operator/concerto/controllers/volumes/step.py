"""The step between a placement record and a pod's binding that binds the volumes which the pod claims."""

from __future__ import annotations

from collections.abc import Mapping

from concerto.api.podreservation import Assignment
from concerto.api.schedulingprofile import ProfileSettings
from concerto.controllers.volumes.binder import VolumeBinder
from concerto.scheduling.cycle_result import Decision
from concerto.scheduling.profile import Profile


class VolumeStep:
    """A pod is bound only after all its claims are.

    Args:
        binder: binds the volumes.
        profiles: in use, by scheduler name; they hold the time limit.
    """

    def __init__(self, binder: VolumeBinder, profiles: Mapping[str, Profile]) -> None:
        self._binder = binder
        self._profiles = profiles

    def concerns(self, assignment: Assignment) -> bool:
        """Pods with claims that are not bound yet."""
        return bool(assignment.volumes)

    def begin(self, decision: Decision, record: str) -> None:
        """Nothing is to be done: what the record does not hold, volumes and claims show."""

    async def prepare(self, decision: Decision) -> str | None:
        """Hold or order the volumes, and wait until the claims are bound."""
        profile = self._profiles.get(decision.pod.scheduler_name)
        timeout = profile.settings.bind_timeout_seconds if profile else ProfileSettings.bind_timeout_seconds
        return await self._binder.bind(decision.pod, decision.assignment.volumes, timeout)

    async def undo(self, decision: Decision) -> None:
        """What was written stays: the next decision on the pod starts from there, as in kube-scheduler."""

    def confirm(self, decision: Decision) -> None:
        """The claims stay bound."""
