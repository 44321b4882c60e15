"""VolumeBinding: the pod's claims have, or can get, volumes that the node reaches. Source: kube-scheduler's plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.scheduling.framework import FilterDefaults, Query, Reach
from concerto.scheduling.plugins.volume_binding.claims import TOO_MANY_COMPARISONS
from concerto.scheduling.plugins.volume_binding.matched_claims import MatchedClaims
from concerto.scheduling.plugins.volume_binding.matching import REFUSALS
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import NO_ROWS, Codes, Ints, Rows


class VolumeBinding(FilterDefaults):
    """Bound claims: the node reaches the volume. Others: the node has a volume for each, or one can be made there."""

    name: ClassVar[str] = "VolumeBinding"
    reach: ClassVar[Reach] = Reach.DOMAIN
    refusals: ClassVar[tuple[str, ...]] = REFUSALS
    requeue_on: ClassVar[Change] = Change.NODE | Change.VOLUMES

    def prepare(self, query: Query) -> MatchedClaims | None:
        """Pods without claims are not concerned."""
        return MatchedClaims.of(query) if query.pod.volumes.claims else None

    def pod_refusal(self, state: MatchedClaims) -> str:
        """A claim that is missing, lost, or not yet bound though it should be."""
        return state.claims.refusal

    def no_node_helps(self, state: MatchedClaims) -> bool:
        """Volumes are compared with claims before nodes are looked at."""
        return state.claims.refusal == TOO_MANY_COMPARISONS

    def check(self, state: MatchedClaims, rows: Rows) -> Codes:
        """The first of the refusals that holds."""
        refused = state.match.refused[:, rows]
        codes = np.where(refused.any(axis=0), refused.argmax(axis=0) + 1, 0).astype(np.int8)
        return np.ones_like(codes) if state.claims.refusal else codes

    def reasons(self, state: MatchedClaims, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """All refusals that hold; a row may be counted twice, as in kube-scheduler."""
        counts = np.count_nonzero(state.match.refused[:, rows], axis=1).tolist()
        return {sentence: count for sentence, count in zip(self.refusals, counts) if count}

    def add_pod(self, state: MatchedClaims, pod: PodView, row: int) -> Ints:
        """What the other pod's decision has reserved counts for this one, wherever its volumes are."""
        return np.arange(state.query.cluster.size) if state.refresh() else NO_ROWS

    def reserve(self, state: MatchedClaims, assignment: Assignment) -> Assignment:
        """With the volumes that are bound before the pod is."""
        bindings = state.match.bindings(state.query.cluster.row_of[assignment.node])
        return replace(assignment, volumes=bindings) if bindings else assignment
