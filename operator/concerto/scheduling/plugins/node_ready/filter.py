"""NodeReady: a node whose kubelet does not report Ready takes no pods, nor does one that is avoided for a while.

kube-scheduler leaves this to the taint that the node controller sets a moment later; here the condition itself counts,
so that a node which has just died, or has never been ready, is left out at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.api.node import Taint
from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows

NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")


class NodeReady(FilterDefaults):
    """The node is Ready, or the pod tolerates the taint of one that is not; and no placement on it was just refused."""

    name: ClassVar[str] = "NodeReady"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows that are Ready and not avoided; a pod may tolerate that a node is not Ready."""
        ready: Bools = query.cluster.nodes.ready[rows] | query.pod.shape.tolerates(NOT_READY)
        return ready & ~query.cluster.nodes.avoided[rows]

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """Not ready, or avoided."""
        avoided = int(np.count_nonzero(query.cluster.nodes.avoided[rows]))
        found = {"node(s) were not ready": len(rows) - avoided, "node(s) had a placement refused a moment ago": avoided}
        return {reason: count for reason, count in found.items() if count}
