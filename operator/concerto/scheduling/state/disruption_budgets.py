"""What protects pods from eviction: PodDisruptionBudgets by namespace, and refused deletions."""

from __future__ import annotations

from collections.abc import Iterable

from concerto.api.pod import PodView
from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.scheduling.state.refused_deletions import RefusedDeletions


class DisruptionBudgets:
    """The PodDisruptionBudgets of all namespaces.

    Attributes:
        refused_deletions: pods that no eviction is tried of for a while, whatever their budgets allow.
    """

    def __init__(self) -> None:
        self.refused_deletions = RefusedDeletions()
        self._by_namespace: dict[str, dict[str, DisruptionBudget]] = {}

    def of(self, pods: Iterable[PodView]) -> list[DisruptionBudget]:
        """The budgets of these pods' namespaces, by namespace and name: the order decides which pods they protect."""
        namespaces = {pod.namespace for pod in pods}
        return [budget for each in sorted(namespaces) for _, budget in sorted(self._by_namespace.get(each, {}).items())]

    def set(self, budget: DisruptionBudget) -> None:
        """A PodDisruptionBudget as the API server has it now."""
        self._by_namespace.setdefault(budget.namespace, {})[budget.name] = budget

    def remove(self, namespace: str, name: str) -> None:
        """The PodDisruptionBudget is gone."""
        budgets = self._by_namespace.get(namespace, {})
        budgets.pop(name, None)
        if not budgets:
            self._by_namespace.pop(namespace, None)
