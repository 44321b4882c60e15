"""VolumeBinding: the pod's claims have, or can get, volumes that the node reaches. Source: kube-scheduler's plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.scheduling.framework import NO_ROWS, FilterDefaults, Query, Reach
from concerto.scheduling.plugins.volume_binding.claims import SortedClaims, sort_claims
from concerto.scheduling.plugins.volume_binding.matching import REFUSALS, ClaimMatch
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Ints, Rows


@dataclass
class _State:
    """The pod's claims, and what they mean on each row.

    Attributes:
        query: the pod and its cluster.
        claims: the pod's.
        match: what they mean; made again when a decision has reserved volumes.
        version: of the reservations that it was made with.
    """

    query: Query
    claims: SortedClaims
    match: ClaimMatch
    version: int


class VolumeBinding(FilterDefaults):
    """Bound claims: the node reaches the volume. Others: the node has a volume for each, or one can be made there."""

    name: ClassVar[str] = "VolumeBinding"
    reach: ClassVar[Reach] = Reach.DOMAIN
    refusals: ClassVar[tuple[str, ...]] = REFUSALS
    requeue_on: ClassVar[Change] = Change.NODE | Change.VOLUMES

    def prepare(self, query: Query) -> _State | None:
        """Pods without claims are not concerned."""
        if not query.pod.volumes.claims:
            return None
        volumes = query.cluster.volumes
        claims = sort_claims(volumes, query.pod)
        return _State(query, claims, ClaimMatch(volumes, query.cluster.rows, claims), volumes.reservations.version)

    def pod_refusal(self, state: _State) -> str:
        """A claim that is missing, lost, or not yet bound though it should be."""
        return state.claims.refusal

    def check(self, state: _State, rows: Rows) -> Codes:
        """The first of the refusals that holds."""
        refused = state.match.refused[:, rows]
        codes = np.where(refused.any(axis=0), refused.argmax(axis=0) + 1, 0).astype(np.int8)
        return np.ones_like(codes) if state.claims.refusal else codes

    def reasons(self, state: _State, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """All refusals that hold; a row may be counted twice, as in kube-scheduler."""
        counts = np.count_nonzero(state.match.refused[:, rows], axis=1).tolist()
        return {sentence: count for sentence, count in zip(self.refusals, counts) if count}

    def add_pod(self, state: _State, pod: PodView, row: int) -> Ints:
        """What the other pod's decision has reserved counts for this one, wherever its volumes are."""
        reservations = state.query.cluster.volumes.reservations
        if reservations.version == state.version or not state.claims.waiting:
            return NO_ROWS
        state.version = reservations.version
        state.match = ClaimMatch(state.query.cluster.volumes, state.query.cluster.rows, state.claims)
        return np.arange(state.query.cluster.size)

    def reserve(self, state: _State, assignment: Assignment) -> Assignment:
        """With the volumes that are bound before the pod is."""
        bindings = state.match.bindings(state.query.cluster.row_of[assignment.node])
        return replace(assignment, volumes=bindings) if bindings else assignment
