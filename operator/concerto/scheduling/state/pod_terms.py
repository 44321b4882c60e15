"""Terms of the pods that run about other pods: whom they refuse, and whom they would rather be with or without."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from concerto.api.pod import PodView
from concerto.api.pod_constraints import PodAffinityTerm
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.row_counts import RowCounts
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


MAX_PARTS_OF_A_NAMESPACE = 1_000
"""Requirements and values, in all terms of one namespace's pods that may select the pods of another: 1 ms for each pod
that is looked at. Terms that require a label count only for pods that have it. Those that came last do not count."""

_Key = tuple[str, Weighted]
"""A term, and the namespace of the pods that have it."""
_Place = tuple[str | None, tuple[str, str] | None]
"""A namespace of pods that terms may select, None for those that select namespaces by labels; and the label that they
require, None for those that require no single one."""


def _places(key: _Key) -> list[_Place]:
    own_namespace, (_, term) = key
    label = term.selector.required_label
    if term.namespace_selector is not None:
        return [(None, label)]
    return [(namespace, label) for namespace in {*term.namespaces} or (own_namespace,)]


def _counted(terms: Mapping[_Key, RowCounts]) -> Iterator[tuple[_Key, RowCounts]]:
    """Terms of one namespace's pods, as far as they count for pods of others."""
    left = MAX_PARTS_OF_A_NAMESPACE
    for key, rows in terms.items():
        _, (_, term) = key
        among = term.namespace_selector
        left -= term.selector.parts + (0 if among is None else among.parts) + len(term.namespaces) // 8
        if left < 0:
            return
        yield key, rows


class PodTerms(PodIndex):
    """Terms of one sort of the pods that run, and on how many pods of each row.

    Args:
        signatures: given the selectors, which distinguish pods from now on.
        terms_of: a pod's terms of that sort.
    """

    def __init__(self, signatures: PodSignatures, terms_of: Callable[[PodView], Iterable[Weighted]]) -> None:
        self._signatures = signatures
        self._terms_of = terms_of
        self._rows: dict[_Key, RowCounts] = {}
        # The same by the pods that they may select, and by the namespace of the pods that have them
        self._at: dict[_Place, dict[str, dict[_Key, RowCounts]]] = {}

    def __bool__(self) -> bool:
        """Whether any pod has such a term, so that other pods' labels matter."""
        return bool(self._rows)

    def selecting(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> Iterator[tuple[Weighted, RowCounts]]:
        """The terms that select a pod with these labels, each with the number of its pods by row."""
        for where, label in itertools.product((namespace, None), (None, *labels.items())):
            for own_namespace, terms in self._at.get((where, label), {}).items():
                counted = terms.items() if own_namespace == namespace else _counted(terms)
                for (_, (weight, term)), rows in counted:
                    if term.selects(own_namespace, namespace, labels, namespace_labels):
                        yield (weight, term), rows

    def pod_added(self, pod: PodView, row: int) -> None:
        """Count the pod's terms on the row."""
        for weighted in self._terms_of(pod):
            rows = self._rows.get((pod.namespace, weighted))
            if rows is None:
                self._signatures.add_selector(weighted[1].selector)
                key = (pod.namespace, weighted)
                rows = self._rows[key] = RowCounts()
                for place in _places(key):
                    self._at.setdefault(place, {}).setdefault(pod.namespace, {})[key] = rows
            rows.add(row, 1)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """Take the pod's terms off the row."""
        for weighted in self._terms_of(pod):
            rows = self._rows[pod.namespace, weighted]
            rows.add(row, -1)
            if not rows:
                del self._rows[key := (pod.namespace, weighted)]
                for place in _places(key):
                    self._remove(place, key)
                self._signatures.remove_selector(weighted[1].selector)

    def _remove(self, place: _Place, key: _Key) -> None:
        namespaces, own_namespace = self._at[place], key[0]
        del namespaces[own_namespace][key]
        if not namespaces[own_namespace]:
            del namespaces[own_namespace]
        if not namespaces:
            del self._at[place]


class TermsOnRows:
    """What the pods that run want of other pods.

    Attributes:
        refusing: their required anti-affinity.
        preferring: their preferred affinity and anti-affinity, and their required affinity.
    """

    def __init__(self, signatures: PodSignatures) -> None:
        self.refusing = PodTerms(signatures, refusing_terms)
        self.preferring = PodTerms(signatures, preferring_terms)
