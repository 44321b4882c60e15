"""InterPodAffinity: required affinity and anti-affinity between pods. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.framework import CountsPods, FilterDefaults, Query
from concerto.scheduling.plugins.domains import CountsByKey, DomainCounts
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import NO_ROWS, Bools, Codes, Ints, Rows, union
from concerto.scheduling.state.pod_selection import PodSelection

_LACKS, _REFUSES, _IS_REFUSED = 1, 2, 3


@dataclass
class RequiredTerms:
    """Counts of pods by domain, for the terms of one pod and for those of others that select it.

    Attributes:
        pod: the pod.
        cluster: the cluster.
        namespace: labels of the pod's namespace.
        refusing: by topology key, anti-affinity terms of other pods that select the pod, by domain.
        refused: by topology key, the pods that an anti-affinity term of the pod selects, by domain; one that several
            terms select counts for each.
        required: selection of the pods that match all affinity terms; None without any.
        present: for each topology key of affinity terms, those pods by domain.
        anti_affinity: which pods each anti-affinity term selects, and its topology key.
        starts_group: whether the pod matches its own affinity terms, and no pod does yet.
    """

    pod: PodView
    cluster: ClusterState
    namespace: Mapping[str, str]
    refusing: CountsByKey
    refused: CountsByKey
    required: PodSelection | None = None
    present: list[DomainCounts] = field(default_factory=list)
    anti_affinity: list[tuple[PodSelection, str]] = field(default_factory=list)
    starts_group: bool = False

    def refresh(self) -> bool:
        """Find out again whether the pod starts its group; returns whether that has changed."""
        before = self.starts_group
        if self.required is not None:
            self.starts_group = self.required.matches(self.pod) and not any(each.any() for each in self.present)
        return self.starts_group != before


class InterPodAffinity(CountsPods, FilterDefaults):
    """The pod's domain has the pods that it requires, none that it refuses, and none that refuses it."""

    name: ClassVar[str] = "InterPodAffinity"
    refusals: ClassVar[tuple[str, ...]] = (
        "node(s) didn't match pod affinity rules",
        "node(s) didn't match pod anti-affinity rules",
        "node(s) didn't satisfy existing pods anti-affinity rules",
    )
    resolvable: ClassVar[frozenset[int]] = frozenset({_REFUSES, _IS_REFUSED})
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED | Change.PLACED

    def prepare(self, query: Query) -> RequiredTerms:
        """Counts by domain. Any pod may be refused by one that is placed later in the cycle."""
        pod, cluster = query.pod, query.cluster
        own_labels = cluster.namespaces.labels(pod.namespace)
        state = RequiredTerms(pod, cluster, own_labels, CountsByKey(cluster), CountsByKey(cluster))
        terms, refused = pod.shape.affinity, pod.shape.anti_affinity
        namespaces = cluster.namespaces.selected((*refused, *terms), pod.namespace)
        each = [(where, term.selector) for where, term in zip(namespaces, (*refused, *terms))]
        selections = [PodSelection((one,)) for one in each[: len(refused)]]
        if terms:
            selections.append(PodSelection(tuple(each[len(refused) :])))
        columns = cluster.pod_counts.by_row(selections, pod.uid)
        if terms:
            state.required = selections[-1]
            keys = dict.fromkeys(term.topology_key for term in terms)
            state.present = [DomainCounts(cluster, key, columns[-1]) for key in keys]
        for term, selection, by_row in zip(refused, selections, columns):
            state.anti_affinity.append((selection, term.topology_key))
            state.refused[term.topology_key].add_column(by_row)
        state.refusing.add_terms(cluster.terms.refusing.selecting(pod.namespace, pod.labels, state.namespace))
        state.refresh()
        return state

    def check(self, state: RequiredTerms, rows: Rows) -> Codes:
        """The first of the three that does not hold, in kube-scheduler's order."""
        codes: Codes = np.zeros_like(state.cluster.nodes.exists[: state.cluster.size][rows], dtype=np.int8)
        for counts in state.refusing.values():
            codes[counts.by_row(rows) > 0] = _IS_REFUSED
        for counts in state.refused.values():
            codes[counts.by_row(rows) > 0] = _REFUSES
        for counts in state.present:
            passes: Bools = counts.has(rows)
            if not state.starts_group:
                passes = passes & (counts.by_row(rows) > 0)
            codes[~passes] = _LACKS
        return codes

    def ignores_alike(self, state: RequiredTerms) -> bool:
        """Without terms, a pod changes nothing for pods with the same signature."""
        return state.required is None and not state.anti_affinity

    def count_pod(self, state: RequiredTerms, pod: PodView, row: int, sign: int) -> Ints:
        """The domains that have such a pod for the first time, or no longer."""
        rows = NO_ROWS
        if state.required is not None and state.required.matches(pod):
            for counts in state.present:
                rows = union(rows, counts.turn(row, sign))
            if state.refresh():
                rows = np.arange(state.cluster.size)
        for selection, topology_key in state.anti_affinity:
            if selection.matches(pod):
                rows = union(rows, state.refused[topology_key].turn(row, sign))
        for term in pod.shape.anti_affinity:
            if term.selects(pod.namespace, state.pod.namespace, state.pod.labels, state.namespace):
                rows = union(rows, state.refusing[term.topology_key].turn(row, sign))
        return rows
