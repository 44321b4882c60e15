"""PodCapacity: the node's measured capacity has room for one more pod. Source: algorithms section 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


class PodCapacity:
    """Available is at least ``admitFraction``; a node that takes part by requests is left to NodeResources."""

    name: ClassVar[str] = "PodCapacity"
    unaffected_by_placements: ClassVar[bool] = False
    requeue_on: ClassVar[Change] = Change.NODE | Change.CAPACITY

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows with room, and rows that take part by requests."""
        # NaN compares as False: an unmeasured node has no measured room
        room = query.is_measured(rows) & (query.available(rows) >= query.admit_fraction)
        if query.millicores:
            room &= query.cluster.large_pods.has_cpu_left(query.millicores, rows)
        else:
            room &= ~query.cluster.large_pods.draining[rows]
        return room | query.is_by_requests(rows)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """Full, held for other pods, never measured, or measured too long ago."""
        measured = query.is_measured(rows)
        never = ~measured & np.isnan(query.cluster.measured.capacity[rows])
        # What has room by capacity was refused for another reason
        room = measured & (query.available(rows) >= query.admit_fraction)
        held = measured & ~room & (query.cluster.measured.startable[rows] >= query.admit_fraction)
        size = f"node(s) had less CPU left than the {query.millicores:.0f}m of a pod like it"
        found = {
            "Insufficient measured capacity": measured & ~held & ~room,
            "node(s) had their measured capacity held by PodReservations": held,
            size if query.millicores else "node(s) were being emptied for a larger pod": room,
            "node(s) had no measured capacity": never,
            "node(s) had stale telemetry": ~measured & ~never,
        }
        return {reason: int(np.count_nonzero(mask)) for reason, mask in found.items() if mask.any()}
