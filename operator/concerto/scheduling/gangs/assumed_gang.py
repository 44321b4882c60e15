"""A gang whose pods are assumed on their nodes, to find out whether they fit there beside more pods. Pure.

CPUs that a pod has for itself, its volumes, and what is claimed for large pods are in no index before it is assumed. So
all pods of the gang on a row are taken off, and assumed there again one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.api.volumes import NO_BINDINGS, VolumeBindings
from concerto.scheduling.framework import Reach
from concerto.scheduling.gangs.gang_queries import GangQueries
from concerto.scheduling.gangs.trial import Trial
from concerto.scheduling.nominated_room import refusal_beside


class AssumedGang:
    """Pods of a gang on their rows.

    Args:
        queries: the gang.
        assignments: where its pods go; they are assumed there.
    """

    def __init__(self, queries: GangQueries, assignments: Iterable[Assignment]) -> None:
        self._queries = queries
        self._trial = Trial(queries.cluster, queries.now)
        self._on: dict[int, list[tuple[PodView, Assignment]]] = {}
        self._reserved: dict[str, VolumeBindings] = {}  # by UID
        self._version = 0  # of the reservations, with these
        pods = {pod.uid: pod for pod in queries.gang.members}
        for assignment in assignments:
            pod, row = pods[assignment.uid], queries.cluster.row_of[assignment.node]
            self._on.setdefault(row, []).append((pod, replace(assignment, pin=None, volumes=NO_BINDINGS)))
            self._assume(pod, assignment)
        self._note_reservations()

    @property
    def rows(self) -> Set[int]:
        """The rows that its pods are on."""
        return self._on.keys()

    def take_back(self) -> None:
        """None of its pods is assumed any more."""
        self._trial.take_back()

    def fits_on(self, row: int) -> bool:
        """Whether its pods on the row fit there beside all others that are there now; some are taken off if not."""
        pods = self._on[row]
        for pod, _ in pods:
            self._trial.withdraw(pod)
        fits = all(self._takes(row, pod, assignment) for pod, assignment in pods)
        if fits:
            self._note_reservations()
        return fits

    def _note_reservations(self) -> None:
        """Volumes that are reserved as before have the version of before: what was found out by it still holds."""
        reservations = self._queries.cluster.volumes.reservations
        reserved = {pod.uid: reservations.of(pod.uid) for pods in self._on.values() for pod, _ in pods}
        if reserved == self._reserved:
            reservations.version = self._version
        self._reserved, self._version = reserved, reservations.version

    def _takes(self, row: int, pod: PodView, assignment: Assignment) -> bool:
        cluster, rows = self._queries.cluster, np.array([row])
        filters = self._queries.prepared(pod, lambda reach: reach is not Reach.NOWHERE)
        if any(plugin.check(state, rows)[0] for plugin, state in filters):
            return False
        own = {each.uid for each in self._queries.gang.members}
        nominated = [each for each in cluster.nominations.beside(pod, assignment.node) if each.uid not in own]
        if nominated and refusal_beside(cluster, row, filters, nominated):
            return False
        for plugin, state in filters:
            assignment = plugin.reserve(state, assignment)
        self._assume(pod, assignment)
        return True

    def _assume(self, pod: PodView, assignment: Assignment) -> None:
        self._trial.assume(pod, assignment, self._queries.request(pod).required_cpu or 0.0)
