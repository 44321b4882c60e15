"""NodeUnschedulable: cordoned nodes take no pods. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar

from concerto.api.node import Taint
from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Rows

CORDONED = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class NodeUnschedulable(FilterDefaults):
    """The node is not cordoned, or the pod tolerates the taint that goes with it."""

    name: ClassVar[str] = "NodeUnschedulable"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) were unschedulable",)
    requeue_on: ClassVar[Change] = Change.NODE

    def prepare(self, query: Query) -> Query | None:
        """Pods that tolerate the taint are not concerned."""
        return None if query.pod.shape.tolerates(CORDONED) else query

    def check(self, state: Query, rows: Rows) -> Codes:
        """Cordoned rows are refused."""
        return refused_unless(~state.cluster.nodes.unschedulable[rows])
