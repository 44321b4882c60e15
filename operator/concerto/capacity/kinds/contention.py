"""What contention adds to the time for which a pod holds its place; that is left out of what the pod costs. Pure.

A pod's own cgroup shows how long its tasks waited for a CPU. On an overloaded node kubelet and container runtime wait
as pods do, and no pod's cgroup shows that: its start and its end only take longer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from concerto.capacity.kinds.sums import PodMeasurement

_REMEMBERED_PODS = 64
"""Pods whose starts and ends are compared: the quickest shows how long one takes on a node that is not held up."""
_UNTIL_KUBELET_LOOKS_SECONDS = 0.5
"""How long on average an end waits until kubelet looks for ended containers, which it does once a second. Source:
kubernetes, pkg/kubelet/kubelet.go, genericPlegRelistPeriod."""


class StartsAndEnds:
    """How long the starts and ends of one node's pods took of late."""

    def __init__(self) -> None:
        """No pod has ended yet."""
        self._took: deque[float] = deque(maxlen=_REMEMBERED_PODS)

    def held_up(self, took: float) -> float:
        """Seconds by which contention made one more pod's start and end longer: beyond the quickest of the last 64.

        The quickest happened to end just before kubelet looked; that others wait for its next look is no contention.

        Args:
            took: seconds for which the pod held its place before its container ran and after it had ended, together.
        """
        self._took.append(took)
        return max(0.0, took - min(self._took) - _UNTIL_KUBELET_LOOKS_SECONDS)


def leave_out(pod: PodMeasurement, seconds: float, cpu_limit: float | None) -> PodMeasurement:
    """The pod as if it had not waited for so long.

    A quota stalls a pod as contention does. If all of that were left out, its share would come out above what it may
    take, and so would its cores.

    Args:
        pod: what was measured; its ``held`` may lack other waits already.
        seconds: in which contention kept it.
        cpu_limit: cores that its quota allows; None without one.
    """
    held, peak_work = max(0.0, pod.held - seconds), pod.peak_work
    if cpu_limit is not None and cpu_limit > 0.0:
        held = min(max(held, pod.work / cpu_limit), pod.life)
        peak_work = min(peak_work, pod.work * cpu_limit)
    return replace(pod, held=held, peak_work=peak_work)
