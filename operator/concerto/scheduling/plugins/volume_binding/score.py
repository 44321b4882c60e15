"""VolumeBinding: how much is left of the storage that the pod's claims would take. Source: kube-scheduler's plugin.

There it is the feature StorageCapacityScoring, on by default since 1.37.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.framework import Query, Reach, ScoreDefaults
from concerto.scheduling.plugins.volume_binding.matched_claims import MatchedClaims
from concerto.scheduling.rounding import rounded
from concerto.scheduling.state.columns import NO_ROWS, Bools, Floats, Ints, Rows


class VolumeBinding(ScoreDefaults):
    """From 0 for storage that would be used up to 100 for storage that would stay free; the mean over classes.

    On a node with an existing volume for one of the claims, only existing volumes count, by their size. Elsewhere the
    CSIStorageCapacity of the claims' classes does.
    """

    name: ClassVar[str] = "VolumeBinding"
    reach: ClassVar[Reach] = Reach.DOMAIN

    def prepare(self, query: Query) -> MatchedClaims | None:
        """Pods are concerned that have claims to bind, for which some node has a volume or a known capacity."""
        if not query.pod.volumes.claims:
            return None
        state = MatchedClaims.found(query)
        return state if state.claims.waiting and _of_classes(state).by_class else None

    def score(self, state: MatchedClaims, rows: Rows) -> Floats:
        """By row; 0 where nothing is known of the storage."""
        usage = _of_classes(state)
        total, classes = np.zeros(state.query.cluster.size), np.zeros(state.query.cluster.size)
        for requested, capacity, counts in usage.by_class.values():
            fits = counts & (capacity > 0) & (requested <= capacity)
            used = np.floor(requested * 100.0 / np.where(fits, capacity, 1.0))
            total += np.where(fits, 100.0 - used, 0.0)
            classes += counts
        return rounded(total / np.maximum(classes, 1.0))[rows]

    def add_pod(self, state: MatchedClaims, pod: PodView, row: int) -> Ints:
        """What the other pod's decision has reserved counts for this one, wherever its volumes are."""
        return np.arange(state.query.cluster.size) if state.refresh() else NO_ROWS


class _Usage:
    """What claims would take of the storage of each class.

    Args:
        size: number of rows.

    Attributes:
        by_class: bytes requested, bytes that there are, and whether the class counts, each by row.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.by_class: dict[str, tuple[Floats, Floats, Bools]] = {}

    def of(self, storage_class: str) -> tuple[Floats, Floats, Bools]:
        """Of one class; nothing at first."""
        nothing = (np.zeros(self._size), np.zeros(self._size), np.zeros(self._size, dtype=np.bool_))
        return self.by_class.setdefault(storage_class, nothing)


def _of_classes(state: MatchedClaims) -> _Usage:
    match, volumes = state.match, state.query.cluster.volumes
    usage = _Usage(state.query.cluster.size)
    existing: Bools = np.zeros(state.query.cluster.size, dtype=np.bool_)
    sizes: dict[str, Floats] = {}
    for claim, of_class, at in match.chosen:
        if claim.storage_class not in sizes:
            sizes[claim.storage_class] = np.array([float(volume.bytes) for volume in of_class])
        here = at >= 0
        if not here.any():
            continue
        existing |= here
        requested, capacity, counts = usage.of(claim.storage_class)
        requested += np.where(here, float(claim.bytes or 0), 0.0)
        capacity += np.where(here, sizes[claim.storage_class][at], 0.0)
        counts |= here
    for claim, needed in match.provisioned:
        free = volumes.free_bytes(volumes.classes[claim.storage_class])
        here = needed & ~existing & (free >= 0)
        if claim.bytes is not None and here.any():
            requested, capacity, counts = usage.of(claim.storage_class)
            requested += np.where(here, float(claim.bytes), 0.0)
            capacity[here] = free[here]  # the claims of a class share it
            counts |= here
    return usage
