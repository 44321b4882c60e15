"""Terms of the pods that run about other pods: whom they refuse, and whom they would rather be with or without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from concerto.api.pod import PodView
from concerto.api.pod_constraints import PodAffinityTerm
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.signatures import PodSignatures

Weighted = tuple[int, PodAffinityTerm]
HARD_AFFINITY_WEIGHT = 1
"""Weight of a required affinity term for a pod that it selects. Source: kube-scheduler's hardPodAffinityWeight."""


def refusing_terms(pod: PodView) -> Iterable[Weighted]:
    """Required anti-affinity."""
    return [(1, term) for term in pod.shape.anti_affinity]


def preferring_terms(pod: PodView) -> Iterable[Weighted]:
    """Preferred affinity and anti-affinity, and required affinity: it goes both ways."""
    soft, required = pod.shape.soft_affinity, pod.shape.affinity
    return (*soft, *((HARD_AFFINITY_WEIGHT, term) for term in required)) if required else soft


_Key = tuple[str, Weighted]
"""A term, and the namespace of the pods that have it."""


def _namespaces(key: _Key) -> Iterable[str | None]:
    own_namespace, (_, term) = key
    if term.namespace_selector is not None:
        return (None,)
    return {*term.namespaces} or (own_namespace,)


class PodTerms(PodIndex):
    """Terms of one sort of the pods that run, and on how many pods of each row.

    Args:
        signatures: given the selectors, which distinguish pods from now on.
        terms_of: a pod's terms of that sort.
    """

    def __init__(self, signatures: PodSignatures, terms_of: Callable[[PodView], Iterable[Weighted]]) -> None:
        self._signatures = signatures
        self._terms_of = terms_of
        self._rows: dict[_Key, dict[int, int]] = {}
        # The same by the namespaces of the pods that they may select; None: those that select namespaces by labels
        self._by_namespace: dict[str | None, dict[_Key, dict[int, int]]] = {}

    def __bool__(self) -> bool:
        """Whether any pod has such a term, so that other pods' labels matter."""
        return bool(self._rows)

    def selecting(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> Iterator[tuple[Weighted, Mapping[int, int]]]:
        """The terms that select a pod with these labels, each with the number of its pods by row."""
        for each in (namespace, None):
            for (own_namespace, (weight, term)), rows in self._by_namespace.get(each, {}).items():
                if term.selects(own_namespace, namespace, labels, namespace_labels):
                    yield (weight, term), rows

    def pod_added(self, pod: PodView, row: int) -> None:
        """Count the pod's terms on the row."""
        for weighted in self._terms_of(pod):
            rows = self._rows.get((pod.namespace, weighted))
            if rows is None:
                self._signatures.add_selector(weighted[1].selector)
                key = (pod.namespace, weighted)
                rows = self._rows[key] = {}
                for namespace in _namespaces(key):
                    self._by_namespace.setdefault(namespace, {})[key] = rows
            rows[row] = rows.get(row, 0) + 1

    def pod_removed(self, pod: PodView, row: int) -> None:
        """Take the pod's terms off the row."""
        for weighted in self._terms_of(pod):
            rows = self._rows[pod.namespace, weighted]
            rows[row] -= 1
            if not rows[row]:
                del rows[row]
                if not rows:
                    del self._rows[key := (pod.namespace, weighted)]
                    for namespace in _namespaces(key):
                        del self._by_namespace[namespace][key]
                        if not self._by_namespace[namespace]:
                            del self._by_namespace[namespace]
                    self._signatures.remove_selector(weighted[1].selector)


class TermsOnRows:
    """What the pods that run want of other pods.

    Attributes:
        refusing: their required anti-affinity.
        preferring: their preferred affinity and anti-affinity, and their required affinity.
    """

    def __init__(self, signatures: PodSignatures) -> None:
        self.refusing = PodTerms(signatures, refusing_terms)
        self.preferring = PodTerms(signatures, preferring_terms)
