"""NodeName: a pod that names its node can go nowhere else. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query
from concerto.scheduling.state.cluster import Bools, Change, Ints, Rows


class NodeName:
    """The pod names this node, or none."""

    name: ClassVar[str] = "NodeName"
    fixed: ClassVar[bool] = True
    helped_by: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """All rows, or the one with the pod's ``spec.nodeName``."""
        snapshot, wanted = query.snapshot, query.pod.node_name
        named: Bools = np.full(snapshot.size, not wanted)
        if wanted in snapshot.row_of:
            named[snapshot.row_of[wanted]] = True
        return named[rows]

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """One reason for all."""
        return {"node(s) didn't match the requested node name": len(rows)}
