"""Bound pods that never start, because an image can't be pulled for instance: they use nothing that is measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings


class UnstartedPods:
    """Pods whose start fails; after a while they take no measured capacity.

    The time begins when this process first sees the failure. So neither the clocks of nodes matter, nor how long the
    image was pulled before. After a restart of the operator, such pods keep their units for as long again.

    Attributes:
        wait_seconds: how long a pod whose start fails keeps its measured units, from when the failure is first seen.
            The profiles in use set it (``failedStartWait``).
    """

    def __init__(self) -> None:
        self.wait_seconds = ProfileSettings.failed_start_wait_seconds
        self._failing_since: dict[str, float] = {}  # by UID, also those that have given their units back
        self._keeping: dict[str, PodView] = {}  # pods whose time is not over

    def accounted(self, pod: PodView, now: float) -> PodView:
        """The pod as measured capacity is to count it: it takes nothing if its start has failed for long.

        Args:
            pod: as the API server has it now.
            now: seconds since the epoch.
        """
        self._keeping.pop(pod.uid, None)
        if not (pod.start_fails and pod.counted and pod.node_name):
            self._failing_since.pop(pod.uid, None)
            return pod
        if now - self._failing_since.setdefault(pod.uid, now) >= self.wait_seconds:
            return replace(pod, counted=False, uses_nothing=True)
        self._keeping[pod.uid] = pod
        return pod

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        self._failing_since.pop(uid, None)
        self._keeping.pop(uid, None)

    def due(self, now: float, limit: int | None = None) -> list[PodView]:
        """Pods whose time is over, so many at most; the caller calls `accounted` for them again."""
        since = self._failing_since
        return list(islice((p for uid, p in self._keeping.items() if now - since[uid] >= self.wait_seconds), limit))
