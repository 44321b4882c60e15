"""NodeName: a pod that names its node can go nowhere else. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Rows


class NodeName(FilterDefaults):
    """The pod names this node, or none."""

    name: ClassVar[str] = "NodeName"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) didn't match the requested node name",)
    requeue_on: ClassVar[Change] = Change.NODE

    def prepare(self, query: Query) -> Query | None:
        """Pods that name no node are not concerned."""
        return query if query.pod.node_name else None

    def check(self, state: Query, rows: Rows) -> Codes:
        """All rows are refused but the one with the pod's ``spec.nodeName``."""
        cluster, wanted = state.cluster, state.pod.node_name
        named: Bools = np.zeros(cluster.size, dtype=np.bool_)
        if wanted in cluster.row_of:
            named[cluster.row_of[wanted]] = True
        return refused_unless(named[rows])
