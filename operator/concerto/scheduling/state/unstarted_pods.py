"""Bound pods that never start, because an image can't be pulled for instance: they use nothing that is measured."""

from __future__ import annotations

from dataclasses import replace

from concerto.api.pod import PodView

START_SECONDS = 120.0
"""For so long after its kubelet has accepted it, a pod whose start fails keeps its measured units. Kubelets pull an
image again after 10, 20 and 40 s: what a registry refuses for a moment is there by then."""


class UnstartedPods:
    """Pods whose start fails, and from when on they take nothing of measured capacity."""

    def __init__(self) -> None:
        self._keeping: dict[str, PodView] = {}  # those that still keep their units

    def accounted(self, pod: PodView, now: float) -> PodView:
        """The pod as measured capacity is to count it: it takes nothing if its start has failed for long.

        Args:
            pod: as the API server has it now.
            now: seconds since the epoch.
        """
        self._keeping.pop(pod.uid, None)
        if not (pod.start_fails and pod.counted and pod.node_name) or pod.started is None:
            return pod
        if now - pod.started >= START_SECONDS:
            return replace(pod, counted=False, uses_nothing=True)
        self._keeping[pod.uid] = pod
        return pod

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        self._keeping.pop(uid, None)

    def due(self, now: float) -> list[PodView]:
        """Pods that are to be accounted anew: their time is over."""
        return [pod for pod in self._keeping.values() if now - (pod.started or now) >= START_SECONDS]
