"""NodeDeclaredFeatures: the node's kubelet has the features that the pod needs. Source: kube-scheduler's plugin."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Rows


class NodeDeclaredFeatures(FilterDefaults):
    """The node declares all of them in ``status.declaredFeatures``."""

    name: ClassVar[str] = "NodeDeclaredFeatures"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) didn't match Pod's required features",)
    requeue_on: ClassVar[Change] = Change.NODE

    def prepare(self, query: Query) -> Bools | None:
        """By row, whether the node has the features; pods that need none are not concerned."""
        needed = query.pod.shape.node_features
        if not needed:
            return None
        declared: Bools = np.zeros(query.cluster.size, dtype=np.bool_)
        for row, node in query.cluster.nodes.views.items():
            declared[row] = needed <= node.declared_features
        return declared

    def check(self, state: Bools, rows: Rows) -> Codes:
        """Rows are refused that lack a feature."""
        return refused_unless(state[rows])
