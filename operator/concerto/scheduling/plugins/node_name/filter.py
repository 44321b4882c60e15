"""NodeName: a pod that names its node can go nowhere else. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


class NodeName(FilterDefaults):
    """The pod names this node, or none."""

    name: ClassVar[str] = "NodeName"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """All rows, or the one with the pod's ``spec.nodeName``."""
        cluster, wanted = query.cluster, query.pod.node_name
        named: Bools = np.full(cluster.size, not wanted)
        if wanted in cluster.row_of:
            named[cluster.row_of[wanted]] = True
        return named[rows]

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """One reason for all."""
        return {"node(s) didn't match the requested node name": len(rows)}
