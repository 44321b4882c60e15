"""NodeAffinity: the pod's node selector and required node affinity. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar

from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Rows


class NodeAffinity(FilterDefaults):
    """The node has the labels (or the name) that the pod asks for."""

    name: ClassVar[str] = "NodeAffinity"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) didn't match Pod's node affinity/selector",)
    requeue_on: ClassVar[Change] = Change.NODE

    def prepare(self, query: Query) -> Query | None:
        """Pods that select no nodes are not concerned."""
        return query if query.pod.shape.selects_nodes else None

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows are refused that the selector, or every term of the affinity, does not accept."""
        return refused_unless(state.cluster.nodes.labels.selected(state.pod.shape.node_selector, rows))
