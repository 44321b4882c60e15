"""Pods on rows, bound or assumed, and the indexes that follow them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.volume_reservations import VolumeReservations


@dataclass(slots=True)
class PlacedPod:
    """A pod on a row, as it is accounted there.

    Attributes:
        pod: the pod.
        row: the row.
        bound: whether it is bound, and not only assumed.
    """

    pod: PodView
    row: int
    bound: bool


class PlacedPods:
    """Pods on rows, by UID.

    Args:
        indexes: what follows the pods; called in this order.
        reservations: volumes that decisions have reserved, until the pod is bound or gone.
    """

    def __init__(self, indexes: Sequence[PodIndex], reservations: VolumeReservations) -> None:
        self._indexes = indexes
        self._adding = [each for each in indexes if type(each).pod_added is not PodIndex.pod_added]
        self._pod_added = [each.pod_added for each in self._adding]
        self._pod_bound = [each.pod_bound for each in indexes if type(each).pod_bound is not PodIndex.pod_bound]
        self._reservations = reservations
        self._by_uid: dict[str, PlacedPod] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether the pod is on a row."""
        return uid in self._by_uid

    def get(self, uid: str) -> PlacedPod | None:
        """The pod and its row; None if it is on no row."""
        return self._by_uid.get(uid)

    def on_row(self, row: int, uids: Iterable[str]) -> dict[str, PodView]:
        """Of these pods, those on the row, by UID."""
        found = ((uid, self._by_uid.get(uid)) for uid in uids)
        return {uid: placed.pod for uid, placed in found if placed is not None and placed.row == row}

    def add(self, pod: PodView, row: int, *, bound: bool) -> None:
        """The pod is on the row. If an index can't take it, it is in none, and the index's error is raised."""
        self._by_uid[pod.uid] = PlacedPod(pod, row, bound)
        done = 0
        try:
            for pod_added in self._pod_added:
                pod_added(pod, row)
                done += 1
        except Exception:
            for index in self._adding[:done]:
                index.pod_removed(pod, row)
            del self._by_uid[pod.uid]
            raise

    def update(self, pod: PodView) -> bool:
        """The pod, which is on a row, is bound there and has changed.

        If an index can't take the change, the pod stays in all of them as it was, and the index's error is raised.

        Returns:
            Whether other pods' selectors may match it now and did not before, or the other way round.
        """
        placed = self._by_uid[pod.uid]
        before, placed.pod, placed.bound = placed.pod, pod, True
        done = 0
        try:
            for index in self._indexes:
                index.pod_updated(before, pod, placed.row)
                done += 1
        except Exception:
            placed.pod = before
            for index in self._indexes[:done]:
                index.pod_updated(pod, before, placed.row)
            raise
        return _matched_as(before) != _matched_as(pod)

    def confirm(self, uid: str) -> PlacedPod | None:
        """The pod is bound to its row; returns it, or None if it is on no row."""
        self._reservations.unreserve(uid)
        placed = self._by_uid.get(uid)
        if placed is not None:
            placed.bound = True
            for pod_bound in self._pod_bound:
                pod_bound(placed.pod, placed.row)
        return placed

    def remove(self, uid: str) -> Change:
        """The pod, which is on a row, is not there any more; returns what may be possible by that."""
        change = Change.ENDED | (Change.VOLUMES if self._reservations.of(uid) else Change.NOTHING)
        self._reservations.unreserve(uid)
        placed = self._by_uid.pop(uid)
        for index in self._indexes:
            index.pod_removed(placed.pod, placed.row)
        return change


def is_accounted_alike(one: PodView, other: PodView) -> bool:
    """Whether nothing that is accounted by row differs; a resize may change the limits and leave the requests."""
    return (one.requests, one.nonzero, one.shape) == (other.requests, other.nonzero, other.shape)


def _matched_as(pod: PodView) -> tuple[object, ...]:
    """What decides whether selectors of other pods match it where it runs."""
    return (pod.node_name, pod.labels, pod.deleting)
