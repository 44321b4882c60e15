"""What a pod's start and end cost its node beyond the pod's own CPU time: the work of kubelet and container runtime.

That work is outside of the pods' cgroups, and comes with every pod. On a small node and for short pods it is a large
part of what a pod costs.
"""

from __future__ import annotations

from dataclasses import replace

from concerto.capacity.kinds.sums import PodMeasurement

_FORGET_PER_POD = 1.0 / 32
_FIRST_PODS = 1.0
"""Pods that are taken to have cost nothing, so that the first one is not charged with the starts of all others."""


class StartCost:
    """The mean over the last pods of one node.

    Attributes:
        core_seconds: CPU time that a pod's start and end have cost, together.
    """

    def __init__(self) -> None:
        """Nothing is known before `spent`."""
        self._spent = 0.0
        self._halves = 2.0 * _FIRST_PODS  # starts and ends
        self._total = 0.0

    @property
    def core_seconds(self) -> float:
        """See the class."""
        return self._spent / (0.5 * self._halves)

    def started_or_ended(self) -> None:
        """One more pod has started, or has ended."""
        keep = 1.0 - 0.5 * _FORGET_PER_POD
        self._spent, self._halves = self._spent * keep, self._halves * keep + 1.0

    def spent(self, total_core_seconds: float) -> None:
        """What the node has spent on starts and ends so far, in all."""
        self._spent += max(0.0, total_core_seconds - self._total)
        self._total = total_core_seconds

    def added_to(self, pod: PodMeasurement) -> PodMeasurement:
        """The pod with its part of it."""
        return replace(pod, started=self.core_seconds)
