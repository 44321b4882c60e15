"""Which pods of one node to evict so that a pod fits there. Pure.

All pods of lower priority are taken off first. Then one after another is put back, the most important first, as long as
the pod still fits; what can't be put back are the victims. Source: kube-scheduler's DefaultPreemption
(``SelectVictimsOnNode``, ``FilterVictimsWithPDBViolation``, ``MoreImportantVictim``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from concerto.api.pod import PodView
from concerto.api.poddisruptionbudget import DisruptionBudget


class WhatIf(Protocol):
    """One node, from which pods are taken off to see whether a pod would fit."""

    def remove(self, pod: PodView) -> None:
        """As if the pod had ended."""
        ...

    def add(self, pod: PodView) -> None:
        """Put back a pod that was taken off."""
        ...

    def fits(self) -> bool:
        """Whether the pod that needs room fits now."""
        ...


@dataclass(frozen=True)
class Victims:
    """Pods of one node that have to go.

    Attributes:
        pods: the pods, the most important first.
        violations: how many of them their PodDisruptionBudgets do not allow to go.
    """

    pods: tuple[PodView, ...]
    violations: int = 0


def by_importance(pods: Iterable[PodView]) -> list[PodView]:
    """The most important pod first: the highest priority, then the earliest start; one that has not started is last."""
    return sorted(pods, key=lambda pod: (-pod.priority, math.inf if pod.started is None else pod.started, pod.uid))


def choose_victims(possible: Iterable[PodView], budgets: Sequence[DisruptionBudget], what_if: WhatIf) -> Victims | None:
    """The pods to evict from one node; None if the pod would not fit though all of them went.

    On return, ``what_if`` is without the victims, and has all the others.

    Args:
        possible: the pods on the node that the pod may preempt.
        budgets: all PodDisruptionBudgets of their namespaces.
        what_if: the node, with all of its pods.
    """
    pods = by_importance(possible)
    if not pods:
        return None
    for pod in pods:
        what_if.remove(pod)
    if not what_if.fits():
        return None
    violating = _violating(pods, budgets)
    victims: list[PodView] = []
    # What a budget protects is put back first
    for pod in sorted(pods, key=lambda pod: pod.uid not in violating):
        what_if.add(pod)
        if not what_if.fits():
            what_if.remove(pod)
            victims.append(pod)
    violations = sum(pod.uid in violating for pod in victims)
    return Victims(tuple(by_importance(victims)), violations)


def _violating(pods: Sequence[PodView], budgets: Sequence[DisruptionBudget]) -> set[str]:
    """UIDs of the pods that their budgets do not allow to go, if those before them in the order went."""
    allowed = {budget.key: budget.allowed for budget in budgets}
    of_namespace: dict[str, list[DisruptionBudget]] = {}
    for budget in budgets:
        of_namespace.setdefault(budget.namespace, []).append(budget)
    violating = set()
    for pod in pods:
        for budget in of_namespace.get(pod.namespace, ()) if pod.labels else ():
            if pod.name in budget.disrupted or not budget.selector.matches(pod.labels):
                continue
            allowed[budget.key] -= 1
            if allowed[budget.key] < 0:
                violating.add(pod.uid)
                break
    return violating
