"""NodeUnschedulable: cordoned nodes take no pods. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from concerto.api.node import Taint
from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows

CORDONED = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class NodeUnschedulable(FilterDefaults):
    """The node is not cordoned, or the pod tolerates the taint that goes with it."""

    name: ClassVar[str] = "NodeUnschedulable"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows that are not cordoned; all of them for a pod that tolerates it."""
        return ~query.cluster.nodes.unschedulable[rows] | query.pod.shape.tolerates(CORDONED)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """One reason for all."""
        return {"node(s) were unschedulable": len(rows)}
