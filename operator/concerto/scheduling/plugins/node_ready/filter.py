"""NodeReady: a node whose kubelet does not say Ready takes no pods.

kube-scheduler leaves this to the taint that the node controller sets a moment later; here the condition itself counts,
so that a node which has just died, or has never been ready, is left out at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from concerto.api.node import Taint
from concerto.scheduling.framework import Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows

NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")


class NodeReady:
    """The node is Ready, or the pod tolerates the taint of one that is not."""

    name: ClassVar[str] = "NodeReady"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows that are Ready; all of them for a pod that tolerates others."""
        return query.cluster.nodes.ready[rows] | query.pod.shape.tolerates(NOT_READY)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """One reason for all."""
        return {"node(s) were not ready": len(rows)}
