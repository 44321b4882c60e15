"""Nodes that have room, but not at once: they limit how many pods start at a time, or of a kind not measured yet."""

from __future__ import annotations

import numpy as np

from concerto.scheduling.framework import Query
from concerto.scheduling.state.columns import Bools, Rows


def has_room_for_a_later_start(query: Query, rows: Rows) -> Bools:
    """Measured rows that could take the pod if the pods that were placed there before had started."""
    measured, large_pods = query.is_measured(rows), query.cluster.large_pods
    if query.cost is not None:
        kinds = query.cluster.kinds
        may_start = kinds.loads.paced(query.cost, rows, query.now)
        if query.cost.basis != "Ended":
            may_start = may_start & kinds.may_run(query.pod, query.cost, rows)
        fits = kinds.loads.fits(query.cost, rows, query.held_by_others(rows))
        if query.large_enough is not None:
            fits &= query.large_enough[rows]
        return measured & fits & ~may_start & ~large_pods.draining[rows]
    with np.errstate(invalid="ignore"):
        # Held units are not in ``holdable``, whichever reservation holds them
        room = query.cluster.measured.holdable[rows] + query.reserved[rows] >= query.settings.admit_fraction
        waits = query.available(rows) < query.settings.admit_fraction
    if query.required_cpu is not None:
        room &= large_pods.has_cpu_left(query.required_cpu, rows)
    soon: Bools = measured & room & waits
    return soon
