"""Decisions that count while it is found out whether all of them can be made. Pure.

Nothing remains of decisions that are taken back. Nothing else may read the cluster before they are kept or taken back:
there must be no await in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.scheduling.state.cluster import ClusterState


class Trial:
    """Pods that are assumed on nodes for a while.

    Args:
        cluster: the cluster.
        now: seconds since the epoch.
    """

    def __init__(self, cluster: ClusterState, now: float) -> None:
        self._cluster = cluster
        self._now = now
        self._assumed: list[tuple[PodView, int]] = []

    def __len__(self) -> int:
        """Pods that are assumed."""
        return len(self._assumed)

    def __iter__(self) -> Iterator[tuple[PodView, int]]:
        """Each pod that is assumed, and its row."""
        return iter(self._assumed)

    def assume(self, pod: PodView, assignment: Assignment, millicores: float) -> None:
        """Count a decision, as ``ClusterState.assume`` does."""
        if self._cluster.assume(pod, assignment, self._now, millicores):
            self._assumed.append((pod, self._cluster.row_of[assignment.node]))

    def withdraw(self, pod: PodView) -> None:
        """Take one pod back, if it is assumed."""
        kept = [each for each in self._assumed if each[0].uid != pod.uid]
        if len(kept) < len(self._assumed):
            self._assumed = kept
            self._cluster.forget(pod.uid)

    def keep(self) -> None:
        """The decisions are carried out."""
        for pod, row in self._assumed:
            self._cluster.kinds.give_work(pod, row, self._now)
        self._assumed.clear()

    def take_back(self) -> None:
        """The decisions are not carried out."""
        while self._assumed:
            self._cluster.forget(self._assumed.pop()[0].uid)
