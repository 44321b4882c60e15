"""NodeReady: a node whose kubelet does not report Ready takes no pods, nor does one that is avoided for a while.

kube-scheduler leaves this to the taint that the node controller sets a moment later; here the condition itself counts,
so that a node which has just died, or has never been ready, is left out at once.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.api.node import Taint
from concerto.scheduling.framework import FilterDefaults, Query, Reach
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Rows

NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")


class NodeReady(FilterDefaults):
    """The node is Ready, or the pod tolerates the taint of one that is not; and no placement on it was just refused."""

    name: ClassVar[str] = "NodeReady"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) were not ready", "node(s) had a placement refused a moment ago")
    requeue_on: ClassVar[Change] = Change.NODE

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows are refused that are avoided, or not Ready unless the pod tolerates that."""
        nodes = state.cluster.nodes
        ready: Bools = nodes.ready[rows] | state.pod.shape.tolerates(NOT_READY)
        codes: Codes = (~ready).view(np.int8)
        codes[nodes.avoided[rows]] = 2
        return codes
