"""Pods on the nodes whose required anti-affinity refuses other pods in their domain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_constraints import PodAffinityTerm
from concerto.scheduling.state.columns import Bools, Rows
from concerto.scheduling.state.labels import LabelIndex
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.signatures import PodSignatures


class AntiAffinityIndex(PodIndex):
    """Anti-affinity terms of the pods that run, and on how many pods of each row.

    Args:
        rows: names and rows.
        labels: node labels, for topology keys.
        signatures: told which labels of pods the terms select by.

    Attributes:
        version: grows with each change.
    """

    def __init__(self, rows: NodeRows, labels: LabelIndex, signatures: PodSignatures) -> None:
        self._signatures = signatures
        self._rows = rows
        self._labels = labels
        self.version = 0
        self._terms: dict[tuple[str, PodAffinityTerm], dict[int, int]] = {}

    def __bool__(self) -> bool:
        """Whether any pod has such a term, so that other pods' labels matter."""
        return bool(self._terms)

    def refused(self, namespace: str, labels: Mapping[str, str], rows: Rows) -> Bools:
        """Which rows are in the domain of a pod that refuses a pod with these labels."""
        refused: Bools = np.zeros(self._rows.size, dtype=np.bool_)
        for (own_namespace, term), counts in self._terms.items():
            if term.selects(own_namespace, namespace, labels):
                codes = self._labels.column(term.topology_key).codes[: self._rows.size]
                domains = np.unique(codes[list(counts)])
                refused |= np.isin(codes, domains[domains >= 0])
        return refused[rows]

    def pod_added(self, pod: PodView, row: int) -> None:
        """Count the pod's terms on the row."""
        self.version += bool(pod.shape.anti_affinity)
        for term in pod.shape.anti_affinity:
            if (pod.namespace, term) not in self._terms:
                self._signatures.add_selector(term.selector)
            counts = self._terms.setdefault((pod.namespace, term), {})
            counts[row] = counts.get(row, 0) + 1

    def pod_removed(self, pod: PodView, row: int) -> None:
        """Take the pod's terms off the row."""
        self.version += bool(pod.shape.anti_affinity)
        for term in pod.shape.anti_affinity:
            counts = self._terms[pod.namespace, term]
            counts[row] -= 1
            if not counts[row]:
                del counts[row]
                if not counts:
                    del self._terms[pod.namespace, term]
                    self._signatures.remove_selector(term.selector)
