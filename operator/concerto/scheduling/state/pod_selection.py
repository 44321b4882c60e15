"""Which pods are counted for a pod that waits: those that its affinity or its spread constraints select."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods are counted: those that match each of its terms.

    Attributes:
        terms: (namespaces, selector); None stands for every namespace.
        terminating: whether pods count whose deletion has begun.
    """

    terms: tuple[tuple[frozenset[str] | None, LabelSelector], ...]
    terminating: bool = True

    @property
    def parts(self) -> int:
        """What a comparison with one pod costs; namespaces count by the memory that they take."""
        named = sum(len(namespaces or ()) for namespaces, _ in self.terms)
        return sum(selector.parts for _, selector in self.terms) + named // 64

    @property
    def namespaces(self) -> frozenset[str] | None:
        """No pod of another namespace is counted; None stands for every namespace."""
        return self.terms[0][0] if self.terms else None

    @property
    def required_label(self) -> tuple[str, str] | None:
        """A label that each pod has that is counted; None if no single one is required."""
        return next((label for _, selector in self.terms if (label := selector.required_label) is not None), None)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether pods with these labels are counted, wherever they are."""
        return all(selector.matches(labels) for _, selector in self.terms)

    @property
    def counts_all_selected(self) -> bool:
        """Whether, of the pods of `namespaces`, all are counted that it selects by their labels."""
        return len(self.terms) == 1 and self.terminating

    def matches(self, pod: PodView) -> bool:
        """Whether the pod is counted."""
        if pod.deleting and not self.terminating:
            return False
        for namespaces, selector in self.terms:  # not all(): this runs for every pod
            if (namespaces is not None and pod.namespace not in namespaces) or not selector.matches(pod.labels):
                return False
        return True
