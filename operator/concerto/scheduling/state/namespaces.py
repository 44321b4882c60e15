"""Labels of namespaces, for pod affinity terms that select namespaces by them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from concerto.api.pod_constraints import PodAffinityTerm
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.comparisons import TooManyComparisons

MAX_COMPARISONS = 500_000
"""With namespaces, for the required or preferred terms of one pod: 30 ms."""
MAX_REMEMBERED = 256
"""Selectors whose namespaces are remembered until a namespace changes."""

_NONE: Mapping[str, str] = {}
_Label = tuple[str, str]
_K = TypeVar("_K", bound=Hashable)


class Namespaces:
    """Labels by namespace. A namespace that is not known has no labels."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self._with_label: dict[_Label, set[str]] = {}
        self._with_key: dict[str, set[str]] = {}
        self._matching: OrderedDict[LabelSelector, frozenset[str]] = OrderedDict()

    def labels(self, namespace: str) -> Mapping[str, str]:
        """The namespace's labels."""
        return self._labels.get(namespace, _NONE)

    def selected(self, terms: Iterable[PodAffinityTerm], own_namespace: str) -> list[frozenset[str] | None]:
        """The namespaces whose pods each term of a pod in ``own_namespace`` may select; None for all of them.

        Raises:
            TooManyComparisons: to compare the selectors of all terms with namespaces would take too long.
        """
        terms, left = list(terms), MAX_COMPARISONS
        for term in terms:
            if term.namespace_selector is not None and not term.any_namespace:
                left -= len(self._candidates(term.namespace_selector)) * term.namespace_selector.parts
        if left < 0:
            raise TooManyComparisons(
                f"namespace selectors of the pod take more than {MAX_COMPARISONS} comparisons with namespaces: use "
                "fewer terms with a namespaceSelector, or require a label in each"
            )
        return [self._of(term, own_namespace) for term in terms]

    def set(self, name: str, labels: Mapping[str, str] | None) -> Change:
        """The namespace has these labels, or is gone (None): terms may select other pods than before."""
        before = self._labels.get(name)
        if before == labels:
            return Change.NOTHING
        added = frozenset((labels or _NONE).items())  # raises TypeError for values that are not text, before any change
        for label in (before or _NONE).items():
            _remove(self._with_label, label, name)
            _remove(self._with_key, label[0], name)
        if labels is None:
            del self._labels[name]
        else:
            self._labels[name] = labels
        for label in added:
            self._with_label.setdefault(label, set()).add(name)
            self._with_key.setdefault(label[0], set()).add(name)
        self._matching.clear()
        return Change.PLACED

    def _of(self, term: PodAffinityTerm, own_namespace: str) -> frozenset[str] | None:
        if term.namespace_selector is None:
            return frozenset(term.namespaces or (own_namespace,))
        if term.any_namespace:
            return None
        matching = self._matching_of(term.namespace_selector)
        return matching.union(term.namespaces) if term.namespaces else matching

    def _matching_of(self, selector: LabelSelector) -> frozenset[str]:
        matching = self._matching.get(selector)
        if matching is None:
            while len(self._matching) >= MAX_REMEMBERED:
                self._matching.popitem(last=False)
            matching = self._find(selector)
            self._matching[selector] = matching
        return matching

    def _find(self, selector: LabelSelector) -> frozenset[str]:
        """By what each requirement lets pass of all: namespaces compared one by one take ten times as long."""
        found = {*self._candidates(selector)} if selector.requirements is not None else set[str]()
        for requirement in selector.requirements or ():
            if not found:
                break
            if requirement.operator in ("In", "NotIn"):
                with_value = (self._with_label.get((requirement.key, value)) for value in {*requirement.values})
                named = set[str]().union(*(found & each for each in with_value if each is not None))
            else:
                named = self._with_key.get(requirement.key, set())
            found = found & named if requirement.operator in ("In", "Exists") else found - named
        return frozenset(found)

    def _candidates(self, selector: LabelSelector) -> Collection[str]:
        """The namespaces that the selector has to be compared with: those with a label that it requires, if it does."""
        label = selector.required_label
        return self._labels if label is None else self._with_label.get(label, ())


def _remove(index: dict[_K, set[str]], key: _K, name: str) -> None:
    index[key].discard(name)
    if not index[key]:
        del index[key]
