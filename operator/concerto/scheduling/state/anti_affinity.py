"""Pods on the nodes whose required anti-affinity refuses other pods in their domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from concerto.api.pod import PodView
from concerto.api.pod_constraints import PodAffinityTerm
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.signatures import PodSignatures


class AntiAffinityIndex(PodIndex):
    """Anti-affinity terms of the pods that run, and on how many pods of each row.

    Args:
        signatures: given the labels of pods that the terms select by.
    """

    def __init__(self, signatures: PodSignatures) -> None:
        self._signatures = signatures
        self._terms: dict[tuple[str, PodAffinityTerm], dict[int, int]] = {}

    def __bool__(self) -> bool:
        """Whether any pod has such a term, so that other pods' labels matter."""
        return bool(self._terms)

    def selecting(
        self, namespace: str, labels: Mapping[str, str]
    ) -> Iterator[tuple[PodAffinityTerm, Mapping[int, int]]]:
        """The terms that select a pod with these labels, each with the number of its pods by row."""
        for (own_namespace, term), counts in self._terms.items():
            if term.selects(own_namespace, namespace, labels):
                yield term, counts

    def pod_added(self, pod: PodView, row: int) -> None:
        """Count the pod's terms on the row."""
        for term in pod.shape.anti_affinity:
            if (pod.namespace, term) not in self._terms:
                self._signatures.add_selector(term.selector)
            counts = self._terms.setdefault((pod.namespace, term), {})
            counts[row] = counts.get(row, 0) + 1

    def pod_removed(self, pod: PodView, row: int) -> None:
        """Take the pod's terms off the row."""
        for term in pod.shape.anti_affinity:
            counts = self._terms[pod.namespace, term]
            counts[row] -= 1
            if not counts[row]:
                del counts[row]
                if not counts:
                    del self._terms[pod.namespace, term]
                    self._signatures.remove_selector(term.selector)
