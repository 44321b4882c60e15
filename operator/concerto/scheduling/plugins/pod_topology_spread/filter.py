"""PodTopologySpread: hard topology spread constraints. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_constraints import SpreadConstraint
from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Ints, Rows
from concerto.scheduling.state.pod_counts import PodSelection


class PodTopologySpread(FilterDefaults):
    """With the pod, no domain has more than ``maxSkew`` matching pods more than the domain that has the fewest."""

    name: ClassVar[str] = "PodTopologySpread"
    unaffected_by_placements: ClassVar[bool] = True
    spans_rows: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED | Change.PLACED

    def version(self, cluster: ClusterState, pod: PodView) -> Hashable:
        """By the pods that the constraints select."""
        return tuple(cluster.pod_counts.version(_selection(pod, c)) for c in pod.shape.hard_spread)

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows that no constraint refuses."""
        passes: Bools = np.ones_like(query.cluster.nodes.exists[rows])
        for constraint in query.pod.shape.hard_spread:
            passes &= self._labelled(query, constraint)[rows] & self._within_skew(query, constraint)[rows]
        return passes

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """A missing label, or too many pods, by the first constraint that refuses; in kube-scheduler's words."""
        missing: Bools = np.zeros(len(rows), dtype=np.bool_)
        refused: Bools = np.zeros(len(rows), dtype=np.bool_)
        for constraint in query.pod.shape.hard_spread:
            lacks = ~self._labelled(query, constraint)[rows] & ~refused
            missing |= lacks
            refused |= ~missing & ~self._within_skew(query, constraint)[rows]
        reason = "node(s) didn't match pod topology spread constraints"
        found = {f"{reason} (missing required label)": missing, reason: refused}
        return {text: int(np.count_nonzero(mask)) for text, mask in found.items() if mask.any()}

    def _labelled(self, query: Query, constraint: SpreadConstraint) -> Bools:
        labelled: Bools = query.cluster.nodes.labels.column(constraint.topology_key).codes >= 0
        return labelled

    def _within_skew(self, query: Query, constraint: SpreadConstraint) -> Bools:
        """By row, whether the pod may be one more in its domain."""
        cluster, pod = query.cluster, query.pod
        codes = cluster.nodes.labels.column(constraint.topology_key).codes
        eligible = self._eligible(query, constraint)
        counts = np.where(eligible, cluster.pod_counts.by_row(_selection(pod, constraint)), 0)
        totals = np.bincount(codes + 1, counts, minlength=1).astype(np.int64)
        domains = np.unique(codes[eligible])
        fewest = int(totals[domains + 1].min()) if len(domains) else 0
        if len(domains) < constraint.min_domains:
            fewest = 0
        itself = int(constraint.selector_of(pod.labels).matches(pod.labels))
        within: Bools = totals[codes + 1] + itself - fewest <= constraint.max_skew
        return within

    def _eligible(self, query: Query, constraint: SpreadConstraint) -> Bools:
        """Rows whose pods count: with the labels of all constraints, and as the constraint's policies want."""
        cluster, shape = query.cluster, query.pod.shape
        every = slice(0, cluster.size)
        eligible = cluster.nodes.exists.copy()
        for other in shape.hard_spread:
            eligible &= self._labelled(query, other)
        if constraint.honors_affinity:
            eligible[every] &= cluster.nodes.labels.selected(shape.node_selector, every)
        if constraint.honors_taints:
            eligible[every] &= cluster.nodes.taints.accepted(
                lambda taints: all(t.effect not in ("NoSchedule", "NoExecute") or shape.tolerates(t) for t in taints),
                every,
            )
        return eligible


def _selection(pod: PodView, constraint: SpreadConstraint) -> PodSelection:
    return PodSelection((((pod.namespace,), constraint.selector_of(pod.labels)),), terminating=False)
