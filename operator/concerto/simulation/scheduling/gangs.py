"""Pods that work only together: when they begin, how long that took, and what was wasted meanwhile.

Like the recorder, it counts by the events of pods alone.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from concerto.simulation.scheduling.workloads import JobSpec, SimPod


class Gangs:
    """The gangs of one run, and the pods that were evicted in it.

    A gang begins to work once all of its pods run. A pod that replaces another afterwards works at once.

    Args:
        jobs: of the scenario.
    """

    def __init__(self, jobs: tuple[JobSpec, ...]) -> None:
        self._size = {name: job.gang for job in jobs for name in job.gang_names}
        self._created: dict[str, float] = {}
        self._running: dict[str, dict[str, int]] = defaultdict(dict)
        self._waits: dict[str, tuple[SimPod, float]] = {}
        self._begun: set[str] = set()
        self._ended: dict[str, list[float]] = defaultdict(list)
        self._waiting_core_seconds = 0.0
        self._lost_core_seconds = 0.0
        self._evictions = 0

    def __bool__(self) -> bool:
        """Whether there are any, or any pod was evicted."""
        return bool(self._size) or self._evictions > 0

    # -- events

    def created(self, pod: SimPod, now: float) -> None:
        """A pod object was made."""
        if pod.gang:
            self._created.setdefault(pod.gang, now)

    def holds(self, pod: SimPod, now: float) -> None:
        """Room is kept for the pod on a node: it was bound, or is to be bound together with others."""
        if pod.gang and pod.gang not in self._begun:
            self._waits.setdefault(pod.uid, (pod, now))

    def lets_go(self, pod: SimPod, now: float) -> None:
        """No room is kept for the pod any more, or it waits no longer."""
        if (waited := self._waits.pop(pod.uid, None)) is not None:
            self._waiting_core_seconds += (now - waited[1]) * pod.load.natural_share

    def runs(self, pod: SimPod, node: int, now: float) -> Mapping[str, int]:
        """The container of a pod runs; returns the pods that begin to work with it, and their nodes."""
        if not pod.gang or pod.gang in self._begun:
            return {pod.uid: node} if pod.gang else {}
        running = self._running[pod.gang]
        running[pod.uid] = node
        if len(running) < self._size[pod.gang]:
            return {}
        self._begun.add(pod.gang)
        for waiting, _ in [entry for entry in self._waits.values() if entry[0].gang == pod.gang]:
            self.lets_go(waiting, now)
        return running

    def exited(self, pod: SimPod, now: float, *, completed: bool) -> None:
        """The container of a pod has ended."""
        self.lets_go(pod, now)
        self._running[pod.gang].pop(pod.uid, None)
        if completed and pod.gang:
            self._ended[pod.gang].append(now)

    def evicted(self) -> None:
        """A pod was evicted for another."""
        self._evictions += 1

    def lost(self, core_seconds: float) -> None:
        """A pod that was evicted had used so much CPU time, which its successor needs again."""
        self._lost_core_seconds += core_seconds

    def finish(self, now: float) -> None:
        """The run is over."""
        for pod, _ in list(self._waits.values()):
            self.lets_go(pod, now)

    # -- figures

    def summary(self) -> dict[str, Any]:
        """Figures of the run, ready for JSON; null where not all gangs completed.

        Completion is from the creation of a gang's first pod to the end of its last, in seconds. Wasted core-seconds
        are those that pods of gangs would have used while they held room and waited for others of their gang
        (``waiting_core_s``), and those that evicted pods had used (``lost_core_s``).
        """
        done = {gang: ends for gang, ends in self._ended.items() if len(ends) >= self._size[gang]}
        seconds = [max(ends) - self._created[gang] for gang, ends in done.items()]
        complete = bool(seconds) and len(seconds) == len(self._size)
        return {
            "complete": len(seconds),
            "count": len(self._size),
            "median_s": round(statistics.median(seconds), 3) if complete else None,
            "worst_s": round(max(seconds), 3) if complete else None,
            "waiting_core_s": round(self._waiting_core_seconds, 3),
            "lost_core_s": round(self._lost_core_seconds, 3),
            "evictions": self._evictions,
        }
