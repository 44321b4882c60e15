"""InterPodAffinity: preferred affinity and anti-affinity between pods. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.framework import CountsPods, Query, ScoreDefaults
from concerto.scheduling.plugins.domains import CountsByKey
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import NO_ROWS, Floats, Ints, Rows, union
from concerto.scheduling.state.pod_selection import PodSelection
from concerto.scheduling.state.pod_terms import preferring_terms


@dataclass
class Preferences:
    """Sums of weights by domain.

    Attributes:
        pod: the pod.
        cluster: the cluster.
        namespace: labels of the pod's namespace.
        sums: by topology key, weights of the pod's terms for the pods that they select, and of other pods' terms that
            select the pod.
        own: weight, topology key and selection of each preferred term of the pod.
    """

    pod: PodView
    cluster: ClusterState
    namespace: Mapping[str, str]
    sums: CountsByKey
    own: list[tuple[int, str, PodSelection]] = field(default_factory=list)


class InterPodAffinity(CountsPods, ScoreDefaults):
    """The weights of terms that are met in the node's domains, those of the pod and of pods that run there.

    Terms of pods that run count for a pod that they select, required affinity with weight 1. 0 for the least sum of a
    feasible node, 100 for the greatest.
    """

    name: ClassVar[str] = "InterPodAffinity"
    needs_normalising: ClassVar[bool] = True

    def prepare(self, query: Query) -> Preferences:
        """Sums by domain. Any pod may be preferred by one that is placed later in the cycle."""
        pod, cluster = query.pod, query.cluster
        state = Preferences(pod, cluster, cluster.namespaces.labels(pod.namespace), CountsByKey(cluster))
        soft = pod.shape.soft_affinity
        namespaces = cluster.namespaces.selected((term for _, term in soft), pod.namespace)
        for (weight, term), where in zip(soft, namespaces):
            state.own.append((weight, term.topology_key, PodSelection(((where, term.selector),))))
        columns = cluster.pod_counts.by_row((selection for _, _, selection in state.own), pod.uid)
        for (weight, topology_key, _), by_row in zip(state.own, columns):
            state.sums[topology_key].add_column(by_row, weight)
        state.sums.add_terms(cluster.terms.preferring.selecting(pod.namespace, pod.labels, state.namespace))
        return state

    def score(self, state: Preferences, rows: Rows) -> Floats:
        """Sums of weights, which may be below 0."""
        total = np.zeros(len(state.cluster.nodes.exists[: state.cluster.size][rows]))
        for sums in state.sums.values():
            total += sums.by_row(rows)
        return total

    def normalise(self, state: Preferences, scores: Floats) -> Floats | None:
        """From the least to the greatest, cut as kube-scheduler's integers are."""
        if not state.sums:
            return None
        least, greatest = np.fmin.reduce(scores, initial=np.inf), np.fmax.reduce(scores, initial=-np.inf)
        if not greatest > least:
            return None
        normalised: Floats = np.floor(100.0 * ((scores - least) / (greatest - least)))
        return normalised

    def ignores_alike(self, state: Preferences) -> bool:
        """Without terms, a pod changes nothing for pods with the same signature."""
        return not (state.own or state.pod.shape.affinity)

    def count_pod(self, state: Preferences, pod: PodView, row: int, sign: int) -> Ints:
        """The domains whose sums the pod changes."""
        rows = NO_ROWS
        if not (state.own or pod.shape.soft_affinity or pod.shape.affinity):
            return rows
        changes = [(weight, key) for weight, key, selection in state.own if selection.matches(pod)]
        changes += [
            (weight, term.topology_key)
            for weight, term in preferring_terms(pod)
            if term.selects(pod.namespace, state.pod.namespace, state.pod.labels, state.namespace)
        ]
        for weight, key in changes:
            sums = state.sums[key]
            if sums.add(row, sign * weight):
                rows = union(rows, sums.rows_beside(row))
        return rows
