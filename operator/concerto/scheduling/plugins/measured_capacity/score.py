"""Capacity: prefers nodes with most available capacity."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.rounding import shares
from concerto.scheduling.state.columns import Floats, Rows

_MAX_LEAD = 10.0
"""By how many times the best node may exceed the second best and still be the measure of all others."""


class Capacity(ScoreDefaults):
    """Available over the feasible nodes, 0 to 100 with 100 for the greatest.

    A node that takes part by requests has its number of pods by requests instead, but counts for no more than the mean
    of the measured nodes that are feasible, nor for more than its last status: requests are what was asked for, not
    what is free, and a node that is not measured must not draw all pods because of it. Where no agent can run, the
    score is 0. A single node far above all others does not make these alike.
    """

    name: ClassVar[str] = "Capacity"
    needs_normalising: ClassVar[bool] = True
    needs_telemetry: ClassVar[frozenset[str]] = frozenset({"capacity"})

    def score(self, state: Query, rows: Rows) -> Floats:
        """Pods that the nodes can still take; by kind, what is not committed of a node's scarcest resource then."""
        if state.cost is not None:
            loads = state.cluster.kinds.loads
            left = np.maximum(loads.settings.max_head_room - loads.commitment(state.cost, rows), 0.0)
            if state.all_measured:
                return left
            available = np.where(state.is_measured(rows), left, np.nan)
        else:
            available = state.available(rows)
        if state.any_by_requests and (by_requests := state.is_by_requests(rows)).any():
            pods = np.fmin(state.pods_by_requests(rows), np.where(np.isnan(available), np.inf, available))
            pods = np.where(state.cluster.nodes.agentless[rows], 0.0, np.maximum(pods, 0.0))
            available = np.where(by_requests, pods, available)
        return available

    def normalise(self, state: Query, scores: Floats) -> Floats:
        """100 times the share of the greatest, rounded."""
        if state.any_by_requests:
            by_requests = state.is_by_requests(slice(0, len(scores)))
            measured = scores[~by_requests & ~np.isnan(scores)]
            if len(measured):
                scores = np.where(by_requests, np.minimum(scores, measured.mean()), scores)
        greatest = np.fmax.reduce(scores, initial=0.0)
        if greatest <= 0:
            return scores * 0.0
        second = _second_greatest(scores, greatest)
        if second > 0:
            greatest = min(greatest, _MAX_LEAD * second)
        return shares(scores, greatest)

    def greatest(self, state: Query, scores: Floats) -> float | None:
        """More decides if nodes take part by requests, and if the best one exceeds the others by far."""
        greatest = float(np.fmax.reduce(scores, initial=0.0))
        if greatest <= 0 or _MAX_LEAD * _second_greatest(scores, greatest) < greatest:
            return None
        return None if state.any_by_requests else greatest


def _second_greatest(scores: Floats, greatest: float) -> float:
    """The greatest of the others, which may be the same; the greatest itself if there is no other."""
    if np.count_nonzero(scores == greatest) > 1:
        return greatest
    others = scores.copy()
    others[scores == greatest] = np.nan
    second = np.fmax.reduce(others, initial=-np.inf)
    return greatest if second == -np.inf else float(second)
