"""NodePorts: the pod's host ports are free on the node. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


class NodePorts(FilterDefaults):
    """No pod on the node has one of the ports on the same address, or on all addresses."""

    name: ClassVar[str] = "NodePorts"
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows where all of the ports are free."""
        return ~query.cluster.ports.conflicts(query.pod.shape.host_ports, rows)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """One reason for all."""
        return {"node(s) didn't have free ports for the requested pod ports": len(rows)}
