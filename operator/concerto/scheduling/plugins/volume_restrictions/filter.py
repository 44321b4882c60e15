"""VolumeRestrictions: no pod has what only one may have: a disk of the node, or a ReadWriteOncePod claim.

Source: kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_volumes import Disk, DiskKey
from concerto.api.volumes import ClaimKey
from concerto.scheduling.framework import NO_ROWS, CountsPods, FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Ints, Rows
from concerto.scheduling.state.volumes import VolumeIndex

_ONE_POD = "ReadWriteOncePod"


@dataclass
class _State:
    """What other pods have of the pod's disks and claims.

    Attributes:
        disks: the pod's, by what identifies them: two pods may have a thousand each.
        conflicts: by row, disks of pods there that the node cannot have beside the pod's.
        claims: the pod's claims that only one pod may use.
        users: how many other pods use each of them, summed; pods whose Node is gone are not counted.
        refusal: why the pod can go nowhere; empty if it can.
    """

    disks: Mapping[DiskKey, list[Disk]]
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
        for disk in pod.volumes.disks:
            np.add.at(conflicts, volumes.use.users.rows_in_conflict(disk), 1)
        claims, missing = _for_one_pod(volumes, pod)
        if not missing and not claims and not pod.volumes.disks:
            return None
        refusal = f'persistentvolumeclaim "{missing}" not found' if missing else ""
        disks: dict[DiskKey, list[Disk]] = {}
        for disk in pod.volumes.disks:
            disks.setdefault(disk.key, []).append(disk)
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
        disks = sum(own.conflicts(other) for other in pod.volumes.disks for own in state.disks.get(other.key, ()))
        claims = sum(
            not used.ephemeral and ClaimKey(pod.namespace, used.name) in state.claims for used in pod.volumes.claims
        )
        state.conflicts[row] += sign * disks
        state.users += sign * claims
        if claims:
            return np.arange(len(state.conflicts))
        return np.array([row]) if disks else NO_ROWS


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
