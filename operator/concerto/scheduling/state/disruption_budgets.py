"""What protects pods from eviction: PodDisruptionBudgets by namespace, and refused deletions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from concerto.api.pod import PodView
from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.refused_deletions import RefusedDeletions

MAX_PARTS = 200_000
"""Labels of pods, and requirements and values of budgets that are compared with them, at one look: 50 ms. Whoever may
make so many budgets may as well make one that allows no disruption, so nobody gains by it."""
_Label = tuple[str, str]


class DisruptionBudgets:
    """The PodDisruptionBudgets of all namespaces.

    Attributes:
        refused_deletions: pods that no eviction is tried of for a while, whatever their budgets allow.
    """

    def __init__(self) -> None:
        self.refused_deletions = RefusedDeletions()
        self._by_namespace: dict[str, _Budgets] = {}

    def of(self, pods: Iterable[PodView]) -> list[DisruptionBudget]:
        """The budgets that may select one of these pods, by namespace and name: the order decides which they protect.

        Where comparing them would take too long (`MAX_PARTS`), one budget stands for all of a namespace: it selects
        every pod and allows no disruption. That befalls the namespaces whose budgets take longest.
        """
        by_namespace: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.namespace in self._by_namespace:
                by_namespace.setdefault(pod.namespace, []).append(pod)
        labels = {name: sum(len(pod.labels) for pod in members) for name, members in by_namespace.items()}
        budgets = {name: self._by_namespace[name].of(by_namespace[name]) for name in _within_bound(labels)}
        parts = {name: labels[name] + number for name, (number, _) in budgets.items()}
        compared = {*_within_bound(parts)}
        found = (
            budgets[name][1] if name in compared else [DisruptionBudget(name, "", LabelSelector(()), 0)]
            for name in sorted(by_namespace)
        )
        return [*chain.from_iterable(found)]

    def set(self, budget: DisruptionBudget) -> None:
        """A PodDisruptionBudget as the API server has it now."""
        self._by_namespace.setdefault(budget.namespace, _Budgets()).set(budget.name, budget)

    def remove(self, namespace: str, name: str) -> None:
        """The PodDisruptionBudget is gone."""
        if (budgets := self._by_namespace.get(namespace)) is not None:
            budgets.set(name, None)
            if not budgets:
                del self._by_namespace[namespace]


class _Budgets:
    """The budgets of one namespace, by a label that their selectors require."""

    def __init__(self) -> None:
        self._by_name: dict[str, DisruptionBudget] = {}
        self._by_label: dict[_Label | None, dict[str, int]] = {}  # parts of the selectors, by label and name

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def set(self, name: str, budget: DisruptionBudget | None) -> None:
        """The budget of that name; None: it is gone."""
        hash(budget)  # a selector that can't be indexed is refused before anything has changed
        if (before := self._by_name.pop(name, None)) is not None:
            label = before.selector.required_label
            del self._by_label[label][name]
            if not self._by_label[label]:
                del self._by_label[label]
        if budget is not None:
            self._by_name[name] = budget
            self._by_label.setdefault(budget.selector.required_label, {})[name] = budget.selector.parts

    def of(self, pods: Sequence[PodView]) -> tuple[int, list[DisruptionBudget]]:
        """The parts of budgets that are compared with these pods, and the budgets that may select one, by name.

        Without all of them where there are more than `MAX_PARTS`.
        """
        labels: dict[_Label | None, None] = {None: None}
        for pod in pods:
            labels |= dict.fromkeys(pod.labels.items())
        found: list[str] = []
        parts = 0
        for label in labels:
            for name, each in self._by_label.get(label, {}).items():
                parts += each * len(pods)
                if parts > MAX_PARTS:
                    return parts, []
                found.append(name)
        return parts, [self._by_name[name] for name in sorted(found)]


def _within_bound(parts: Mapping[str, int]) -> Iterator[str]:
    """The namespaces with the fewest parts, as many as have no more than `MAX_PARTS` together."""
    left = MAX_PARTS
    for name, number in sorted(parts.items(), key=lambda item: (item[1], item[0])):
        left -= number
        if left < 0:
            return
        yield name
