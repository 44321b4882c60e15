"""PodCapacity: the node's measured capacity has room for one more pod. Source: algorithms section 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


class PodCapacity(FilterDefaults):
    """Available is at least ``admitFraction``; a node that takes part by requests is left to NodeResources."""

    name: ClassVar[str] = "PodCapacity"
    mended_by_draining: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE | Change.CAPACITY

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows with room, and rows that take part by requests."""
        # NaN compares as False: an unmeasured node has no measured room
        room = query.is_measured(rows) & (query.available(rows) >= query.admit_fraction)
        if query.required_cpu is not None:
            room &= query.cluster.large_pods.has_cpu_left(query.required_cpu, rows)
        elif not query.ignores_size:
            room &= ~query.cluster.large_pods.draining[rows]
        return room | query.is_by_requests(rows)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """Full, held for other pods, never measured, or measured too long ago."""
        measured = query.is_measured(rows)
        never = ~measured & np.isnan(query.cluster.measured.capacity[rows])
        # What has room by capacity was refused for another reason
        room = measured & (query.available(rows) >= query.admit_fraction)
        held = measured & ~room & (query.cluster.measured.startable[rows] >= query.admit_fraction)
        by_size = "node(s) were being drained for a larger pod"
        if query.required_cpu is not None:
            by_size = f"node(s) had less CPU left than the {query.required_cpu:.0f}m of a pod like it"
        found = {
            "Insufficient measured capacity": measured & ~held & ~room,
            "node(s) had their measured capacity held by PodReservations": held,
            by_size: room,
            "node(s) had no measured capacity": never,
            "node(s) had stale telemetry": ~measured & ~never,
        }
        return {reason: int(np.count_nonzero(mask)) for reason, mask in found.items() if mask.any()}
