"""Which pods are alike to placement: pods of one signature share an evaluation, and wait together.

Two pods are alike when they have the same shape and no selector in the cluster distinguishes their labels. A label
counts only where a selector names it, and its value only where a selector names the value: ten thousand Jobs with a job
name each are alike, whatever anti-affinity there is, unless some term names those jobs. Source: kube-scheduler's
SignPod (KEP-5598).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

from concerto.api.counters import add_count
from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector
from concerto.pinning.classification import EXCLUSIVENESS_LABEL, LABEL
from concerto.scheduling.state.learned_sizes import LearnedSizes
from concerto.scheduling.state.workload_selectors import NO_SELECTOR, WorkloadSelectors

_Key = TypeVar("_Key")
_BY_VALUE = ("In", "NotIn")


class PodSignatures:
    """Signatures of pods, by the selectors that are in use.

    Args:
        sizes: what pods of a kind were seen to take: a large pod is not like a regular one of the same shape.

    Attributes:
        workload_selectors: by which pods without spread constraints are spread.
    """

    def __init__(self, sizes: LearnedSizes | None = None) -> None:
        self._sizes = sizes if sizes is not None else LearnedSizes()
        self._selectors: Counter[LabelSelector] = Counter()
        self._keys: Counter[str] = Counter()
        self._values: Counter[tuple[str, str]] = Counter()
        self._changes = 0
        self.workload_selectors = WorkloadSelectors()

    @property
    def version(self) -> int:
        """Grows whenever what decides on feasibility may distinguish pods that had one signature.

        Selectors of workloads are no part of it: they are preferences, and pods that prefer different nodes can wait
        together.
        """
        return self._changes + self._sizes.version

    @property
    def restorable_version(self) -> int:
        """The part of ``version`` that selectors make; who undoes what it did to them sets it back."""
        return self._changes

    @restorable_version.setter
    def restorable_version(self, version: int) -> None:
        self._changes = version

    def of(self, pod: PodView) -> Hashable:
        """The pod's signature, without its scheduler's name and its priority."""
        labels = pod.labels
        spread_by = NO_SELECTOR if pod.shape.spreads else self.workload_selectors.of(pod)
        return (
            pod.shape,
            pod.namespace if self._selectors or pod.shape.selects_pods or spread_by.requirements else None,
            self._named(labels),
            _selects_itself(pod) if pod.shape.selects_pods else None,
            labels.get(LABEL),
            labels.get(EXCLUSIVENESS_LABEL),
            _volumes(pod) if pod.volumes else None,
            self._sizes.kind_if_known(pod),
            spread_by,
            pod.images,
        )

    def _named(self, labels: Mapping[str, str]) -> frozenset[tuple[str, str | None]]:
        """The labels that selectors name; their values where selectors name those, else None."""
        values = self._values
        found = [(key, labels[key]) for key in self._keys.keys() & labels.keys()]
        return frozenset([(key, value if (key, value) in values else None) for key, value in found])

    def add_selector(self, selector: LabelSelector) -> None:
        """A term or a reservation selects pods by these labels."""
        self._selectors[selector] += 1
        if self._selectors[selector] > 1:
            return
        grown = len(self._selectors) == 1
        for requirement in selector.requirements or ():
            self._keys[requirement.key] += 1
            grown |= self._keys[requirement.key] == 1
            for value in requirement.values if requirement.operator in _BY_VALUE else ():
                self._values[requirement.key, value] += 1
                grown |= self._values[requirement.key, value] == 1
        self._changes += grown

    def remove_selector(self, selector: LabelSelector) -> None:
        """It does not any more."""
        self._selectors[selector] -= 1
        if self._selectors[selector]:
            return
        del self._selectors[selector]
        for requirement in selector.requirements or ():
            add_count(self._keys, requirement.key, -1)
            for value in requirement.values if requirement.operator in _BY_VALUE else ():
                add_count(self._values, (requirement.key, value), -1)


def _selects_itself(pod: PodView) -> Hashable:
    """Of its own terms and constraints, which select its labels, and by which of them."""
    shape, labels = pod.shape, pod.labels
    soft = (term for _, term in shape.soft_affinity)
    spread = (*shape.hard_spread, *shape.soft_spread)
    return (
        tuple(term.selector.matches(labels) for term in (*shape.affinity, *shape.anti_affinity, *soft)),
        tuple((c.selector.matches(labels), *(labels.get(k) for k in c.match_label_keys)) for c in spread),
    )


def _volumes(pod: PodView) -> Hashable:
    """Claims are those of the pod's namespace; a claim that is made for a pod is of use to no other."""
    return (pod.namespace, pod.uid if pod.volumes.ephemeral else None, pod.volumes)
