"""VolumeRestrictions: no pod has what only one may have: a disk of the node, or a ReadWriteOncePod claim.

Source: kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_volumes import DiskPlace
from concerto.api.volumes import ClaimKey
from concerto.scheduling.framework import CountsPods, FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.claim_users import ClaimUsers
from concerto.scheduling.state.columns import NO_ROWS, Codes, Ints, Rows
from concerto.scheduling.state.volumes import VolumeIndex

_ONE_POD = "ReadWriteOncePod"


@dataclass
class _State:
    """What other pods have of the pod's disks and claims.

    Attributes:
        disks: places of the pod's disks, and whether one of them is exclusive there: two pods may have a thousand each,
            all at the same place.
        conflicts: by row, disks of pods there that the node cannot have beside the pod's.
        claims: the pod's claims that only one pod may use.
        users: how many other pods use each of them, summed; pods whose Node is gone are not counted.
        refusal: why the pod can go nowhere; empty if it can.
    """

    disks: Mapping[DiskPlace, bool]
    conflicts: Ints
    claims: frozenset[ClaimKey]
    users: int
    refusal: str


class VolumeRestrictions(CountsPods, FilterDefaults):
    """No pod on the node has a conflicting disk, and no pod on any node a claim that is for one pod."""

    name: ClassVar[str] = "VolumeRestrictions"
    refusals: ClassVar[tuple[str, ...]] = (
        "node(s) had no available disk",
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
        "another pod",
    )
    resolvable: ClassVar[frozenset[int]] = frozenset({1, 2})
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED | Change.VOLUMES

    def prepare(self, query: Query) -> _State | None:
        """Pods without claims and disks are not concerned."""
        pod, volumes = query.pod, query.cluster.volumes
        if not (pod.volumes.claims or pod.volumes.disks):
            return None
        conflicts: Ints = np.zeros(query.cluster.size, dtype=np.int64)
        disks: dict[DiskPlace, bool] = {}
        for disk in pod.volumes.disks:
            for place in disk.places:
                disks[place] = disks.get(place, False) or disk.exclusive
        for place, exclusive in disks.items():
            for row, number in _in_conflict(volumes.use.users, place, exclusive):
                conflicts[row] += number
        claims, missing = _for_one_pod(volumes, pod)
        if not missing and not claims and not pod.volumes.disks:
            return None
        refusal = f'persistentvolumeclaim "{missing}" not found' if missing else ""
        exists = query.cluster.nodes.exists
        users = sum(volumes.use.users.number_of_pods(claim, exists) for claim in claims)
        return _State(disks, conflicts, claims, users, refusal)

    def pod_refusal(self, state: _State) -> str:
        """A claim that does not exist."""
        return state.refusal

    def check(self, state: _State, rows: Rows) -> Codes:
        """A disk in use comes before a claim in use."""
        codes = np.where(state.conflicts[rows] > 0, 1, 2 if state.users else 0)
        return (np.ones_like(codes) if state.refusal else codes).astype(np.int8)

    def count_pod(self, state: _State, pod: PodView, row: int, sign: int) -> Ints:
        """The other pod's disks count on the row, its claims everywhere."""
        disks = sum(
            state.disks[place] or disk.exclusive
            for disk in pod.volumes.disks
            for place in disk.places
            if place in state.disks
        )
        claims = sum(
            not used.ephemeral and ClaimKey(pod.namespace, used.name) in state.claims for used in pod.volumes.claims
        )
        state.conflicts[row] += sign * disks
        state.users += sign * claims
        if claims:
            return np.arange(len(state.conflicts))
        return np.array([row]) if disks else NO_ROWS


def _in_conflict(users: ClaimUsers, place: DiskPlace, exclusive: bool) -> Iterator[tuple[int, int]]:
    """Rows with disks that a node cannot have beside one at that place, and how many."""
    yield from users.disks_at(place, exclusive=True).items()
    if exclusive:
        yield from users.disks_at(place, exclusive=False).items()


def _for_one_pod(volumes: VolumeIndex, pod: PodView) -> tuple[frozenset[ClaimKey], str]:
    """The claims that only one pod may use, and the first claim that does not exist."""
    found = set()
    for used in pod.volumes.claims:
        if used.ephemeral:
            continue
        claim = volumes.claims.get(ClaimKey(pod.namespace, used.name))
        if claim is None:
            return frozenset(), used.name
        if _ONE_POD in claim.access_modes:
            found.add(claim.key)
    return frozenset(found), ""
