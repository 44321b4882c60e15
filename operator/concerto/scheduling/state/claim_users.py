"""Which pods on nodes use which claims and disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from concerto.api.counters import add_count_of
from concerto.api.pod import PodView
from concerto.api.pod_volumes import DiskPlace
from concerto.api.volumes import ClaimKey
from concerto.scheduling.state.columns import Bools

_NONE: Mapping[int, int] = {}


class ClaimUsers:
    """Pods on the rows by claim and by disk."""

    def __init__(self) -> None:
        self._claims: dict[ClaimKey, Counter[int]] = {}
        self._named: dict[ClaimKey, Counter[int]] = {}  # without the claims of ephemeral volumes
        self._disks: dict[tuple[DiskPlace, bool], Counter[int]] = {}  # by place and whether it is exclusive

    def rows_of(self, claim: ClaimKey) -> tuple[int, ...]:
        """The rows with a pod that uses the claim, once for each such pod."""
        return tuple(self._claims.get(claim, Counter()).elements())

    def are_there(self, claim: ClaimKey) -> bool:
        """Whether any pod on a node uses the claim."""
        return claim in self._claims

    def number_of_pods(self, claim: ClaimKey, counted: Bools) -> int:
        """How many pods name the claim in their volumes, on the rows that are counted."""
        return sum(number for row, number in self._named.get(claim, Counter()).items() if counted[row])

    def disks_at(self, place: DiskPlace, *, exclusive: bool) -> Mapping[int, int]:
        """How many disks of pods share the place, exclusive or not, by row."""
        return self._disks.get((place, exclusive), _NONE)

    def add_pod(self, pod: PodView, row: int) -> None:
        """The pod's claims and disks are in use on the row."""
        self._count(pod, row, 1)

    def remove_pod(self, pod: PodView, row: int) -> None:
        """The pod's claims and disks are no longer in use on the row."""
        self._count(pod, row, -1)

    def _count(self, pod: PodView, row: int, by: int) -> None:
        for claim in pod.volumes.claims:
            key = ClaimKey(pod.namespace, claim.name)
            add_count_of(self._claims, key, row, by)
            if not claim.ephemeral:
                add_count_of(self._named, key, row, by)
        for disk in pod.volumes.disks:
            for place in disk.places:
                add_count_of(self._disks, (place, disk.exclusive), row, by)
