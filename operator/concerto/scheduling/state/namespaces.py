"""Labels of namespaces, for pod affinity terms that select namespaces by them."""

from __future__ import annotations

from collections.abc import Mapping

from concerto.api.pod_constraints import PodAffinityTerm
from concerto.scheduling.state.changes import Change

_NONE: Mapping[str, str] = {}


class Namespaces:
    """Labels by namespace. A namespace that is not known has no labels."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}

    def labels(self, namespace: str) -> Mapping[str, str]:
        """The namespace's labels."""
        return self._labels.get(namespace, _NONE)

    def selected(self, term: PodAffinityTerm, own_namespace: str) -> tuple[str, ...] | None:
        """The namespaces whose pods the term of a pod in ``own_namespace`` may select; None for all of them."""
        if term.namespace_selector is None:
            return term.namespaces or (own_namespace,)
        if term.any_namespace:
            return None
        matching = {name for name, labels in self._labels.items() if term.namespace_selector.matches(labels)}
        return tuple(sorted(matching.union(term.namespaces)))

    def set(self, name: str, labels: Mapping[str, str] | None) -> Change:
        """The namespace has these labels, or is gone (None): terms may select other pods than before."""
        before = self._labels.get(name)
        if labels is None:
            self._labels.pop(name, None)
        else:
            self._labels[name] = labels
        return Change.NOTHING if before == labels else Change.PLACED
