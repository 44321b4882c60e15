"""InterPodAffinity: required affinity and anti-affinity between pods. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_constraints import PodAffinityTerm
from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Ints, Rows
from concerto.scheduling.state.pod_counts import PodSelection


class InterPodAffinity(FilterDefaults):
    """The pod's domain has the pods that it requires, none that it refuses, and none that refuses it."""

    name: ClassVar[str] = "InterPodAffinity"
    unaffected_by_placements: ClassVar[bool] = True
    spans_rows: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED | Change.PLACED

    def version(self, cluster: ClusterState, pod: PodView) -> Hashable:
        """By the pods that the pod's terms select, and by the terms of pods on nodes."""
        shape = pod.shape
        if not shape.affinity and not shape.anti_affinity:
            return cluster.anti_affinity.version
        counts = cluster.pod_counts
        own = [counts.version(_selection(pod, (term,))) for term in shape.anti_affinity]
        if shape.affinity:
            own.append(counts.version(_selection(pod, shape.affinity)))
        return (cluster.anti_affinity.version, *own)

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows where all three hold."""
        return self._has_required(query, rows) & self._has_no_refused(query, rows) & _is_not_refused(query, rows)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """The first of the three that does not hold, in kube-scheduler's order and words."""
        lacks = ~self._has_required(query, rows)
        refuses = ~lacks & ~self._has_no_refused(query, rows)
        found = {
            "node(s) didn't match pod affinity rules": lacks,
            "node(s) didn't match pod anti-affinity rules": refuses,
            "node(s) didn't satisfy existing pods anti-affinity rules": ~lacks & ~refuses,
        }
        return {reason: int(np.count_nonzero(mask)) for reason, mask in found.items() if mask.any()}

    def _has_required(self, query: Query, rows: Rows) -> Bools:
        """Each term's domain has a pod that matches all terms; the first of a group that selects itself needs none."""
        terms, pod = query.pod.shape.affinity, query.pod
        passes: Bools = np.ones_like(query.cluster.nodes.exists[rows])
        if not terms:
            return passes
        selection = _selection(pod, terms)
        counts = query.cluster.pod_counts.by_row(selection)
        # A row without the label is in no domain, so the pods on it match nothing
        labelled = [query.cluster.nodes.labels.column(term.topology_key).codes >= 0 for term in terms]
        exists = query.cluster.nodes.exists
        first = not any((counts[has & exists] > 0).any() for has in labelled)
        first = first and all(term.selects(pod.namespace, pod.namespace, pod.labels) for term in terms)
        for term, has in zip(terms, labelled):
            passes &= has[rows]
            if not first:
                passes &= domain_totals(query.cluster, term.topology_key, counts)[rows] > 0
        return passes

    def _has_no_refused(self, query: Query, rows: Rows) -> Bools:
        """No term's domain has a pod that it selects; a row without the label is in no domain."""
        passes: Bools = np.ones_like(query.cluster.nodes.exists[rows])
        for term in query.pod.shape.anti_affinity:
            counts = query.cluster.pod_counts.by_row(_selection(query.pod, (term,)))
            passes &= domain_totals(query.cluster, term.topology_key, counts)[rows] == 0
        return passes


def _is_not_refused(query: Query, rows: Rows) -> Bools:
    return ~query.cluster.anti_affinity.refused(query.pod.namespace, query.pod.labels, rows)


def domain_totals(cluster: ClusterState, topology_key: str, counts: Ints) -> Ints:
    """By row, the sum of the counts over the nodes with the same value of the label; 0 where a node lacks it."""
    codes = cluster.nodes.labels.column(topology_key).codes
    counted = np.where(cluster.nodes.exists, counts, 0)
    totals = np.bincount(codes + 1, counted, minlength=1).astype(np.int64)
    totals[0] = 0
    result: Ints = totals[codes + 1]
    return result


def _selection(pod: PodView, terms: tuple[PodAffinityTerm, ...]) -> PodSelection:
    return PodSelection(
        tuple((None if t.any_namespace else (t.namespaces or (pod.namespace,)), t.selector) for t in terms)
    )
