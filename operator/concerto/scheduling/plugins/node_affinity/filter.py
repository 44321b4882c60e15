"""NodeAffinity: the pod's node selector and required node affinity. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar

from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Rows


class NodeAffinity(FilterDefaults):
    """The node has the labels (or the name) that the pod asks for, and those that its profile does."""

    name: ClassVar[str] = "NodeAffinity"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = (
        "node(s) didn't match Pod's node affinity/selector",
        "node(s) didn't match scheduler-enforced node affinity",
    )
    requeue_on: ClassVar[Change] = Change.NODE

    def prepare(self, query: Query) -> Query | None:
        """Pods that select no nodes are not concerned, unless their profile does."""
        return query if query.pod.shape.selects_nodes or query.settings.added_affinity is not None else None

    def pod_refusal(self, state: Query) -> str:
        """Each term of the pod's affinity names nodes, and then others."""
        return "pod affinity terms conflict" if state.pod.shape.node_selector.named_nodes == frozenset() else ""

    def named_nodes(self, state: Query) -> frozenset[str] | None:
        """Those that the terms of the pod's affinity name, if each of them does."""
        return state.pod.shape.node_selector.named_nodes

    def check(self, state: Query, rows: Rows) -> Codes:
        """The profile's affinity counts first; then the pod's selector and the terms of its affinity."""
        labels, added = state.cluster.nodes.labels, state.settings.added_affinity
        codes = refused_unless(labels.selected(state.pod.shape.node_selector, rows))
        if added is not None:
            codes[~labels.selected(added, rows)] = 2
        return codes
