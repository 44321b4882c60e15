"""Which pods on nodes use which claims and disks."""

from __future__ import annotations

from collections import Counter

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_volumes import Disk, DiskKey
from concerto.api.volumes import ClaimKey
from concerto.scheduling.state.columns import Bools, Ints
from concerto.scheduling.state.counters import add_count_of


class ClaimUsers:
    """Pods on the rows by claim and by disk."""

    def __init__(self) -> None:
        self._claims: dict[ClaimKey, Counter[int]] = {}
        self._named: dict[ClaimKey, Counter[int]] = {}  # without the claims of ephemeral volumes
        self._disks: dict[DiskKey, dict[Disk, Counter[int]]] = {}

    def rows_of(self, claim: ClaimKey) -> tuple[int, ...]:
        """The rows with a pod that uses the claim, once for each such pod."""
        return tuple(self._claims.get(claim, Counter()).elements())

    def are_there(self, claim: ClaimKey) -> bool:
        """Whether any pod on a node uses the claim."""
        return claim in self._claims

    def number_of_pods(self, claim: ClaimKey, counted: Bools) -> int:
        """How many pods name the claim in their volumes, on the rows that are counted."""
        return sum(number for row, number in self._named.get(claim, Counter()).items() if counted[row])

    def rows_in_conflict(self, disk: Disk) -> Ints:
        """The rows with a pod whose disk a node cannot have beside this one."""
        others = self._disks.get(disk.key, {})
        rows = [row for other, users in others.items() if disk.conflicts(other) for row in users.elements()]
        return np.array(rows, dtype=np.int64)

    def add_pod(self, pod: PodView, row: int) -> None:
        """The pod's claims and disks are in use on the row."""
        for claim in pod.volumes.claims:
            key = ClaimKey(pod.namespace, claim.name)
            add_count_of(self._claims, key, row, 1)
            if not claim.ephemeral:
                add_count_of(self._named, key, row, 1)
        for disk in pod.volumes.disks:
            add_count_of(self._disks.setdefault(disk.key, {}), disk, row, 1)

    def remove_pod(self, pod: PodView, row: int) -> None:
        """The pod's claims and disks are no longer in use on the row."""
        for claim in pod.volumes.claims:
            key = ClaimKey(pod.namespace, claim.name)
            add_count_of(self._claims, key, row, -1)
            if not claim.ephemeral:
                add_count_of(self._named, key, row, -1)
        for disk in pod.volumes.disks:
            alike = self._disks[disk.key]
            add_count_of(alike, disk, row, -1)
            if not alike:
                del self._disks[disk.key]
