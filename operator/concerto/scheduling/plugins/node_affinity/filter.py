"""NodeAffinity: the pod's node selector and required node affinity. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


class NodeAffinity(FilterDefaults):
    """The node has the labels (or the name) that the pod asks for."""

    name: ClassVar[str] = "NodeAffinity"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows that the selector and one term of the affinity accept."""
        return query.cluster.nodes.labels.selected(query.pod.shape.node_selector, rows)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """One reason for all."""
        return {"node(s) didn't match Pod's node affinity/selector": len(rows)}
