"""NodePorts: the pod's host ports are free on the node. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar

from concerto.scheduling.framework import FilterDefaults, Query, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Rows


class NodePorts(FilterDefaults):
    """No pod on the node has one of the ports on the same address, or on all addresses."""

    name: ClassVar[str] = "NodePorts"
    refusals: ClassVar[tuple[str, ...]] = ("node(s) didn't have free ports for the requested pod ports",)
    resolvable: ClassVar[frozenset[int]] = frozenset({1})
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED

    def prepare(self, query: Query) -> Query | None:
        """Pods without host ports are not concerned."""
        return query if query.pod.shape.host_ports else None

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows are refused where one of the ports is taken."""
        return refused_unless(~state.cluster.ports.conflicts(state.pod.shape.host_ports, rows))
