"""Which node's pods are to be evicted: the order of candidates. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from concerto.scheduling.preemption.victims import Victims

_MIN_SHARE, _MIN_NODES = 0.1, 100
_ABOVE_ALL_PRIORITIES = 2**31
"""Added to each priority before they are summed up: otherwise two victims of a negative priority would count as less
than one."""


@dataclass(frozen=True)
class Candidate:
    """A node and the pods that would have to go.

    Attributes:
        node: its name.
        victims: its pods that would have to go, one at least.
    """

    node: str
    victims: Victims

    @cached_property
    def cost(self) -> tuple[float, ...]:
        """What ``best`` compares beside a nomination, smaller being better: violations of budgets, then the rest."""
        victims = self.victims.pods
        highest = max(pod.priority for pod in victims)
        starts = [pod.started for pod in victims if pod.priority == highest]
        earliest = min(math.inf if start is None else start for start in starts)
        summed = sum(pod.priority + _ABOVE_ALL_PRIORITIES for pod in victims)
        return (self.victims.violations, highest, summed, len(victims), -earliest)


def number_of_candidates(nodes: int) -> int:
    """How many candidates are enough to choose from: a tenth of the nodes, but 100 at least, if there are so many.

    Source: kube-scheduler's defaults of minCandidateNodesPercentage and minCandidateNodesAbsolute.
    """
    return min(nodes, max(_MIN_NODES, int(nodes * _MIN_SHARE)))


def best(candidates: Collection[Candidate], nominated_node: str = "") -> Candidate | None:
    """The candidate that costs least; of equal ones the first.

    What counts is, one after another: the fewest violations of PodDisruptionBudgets, the lowest priority of the most
    important victim, the smallest sum of priorities, the fewest victims, and the latest start of the most important
    victims. Source: kube-scheduler's ``pickOneNodeForPreemption``.

    Args:
        candidates: the candidates.
        nominated_node: node for which the pod was nominated before. A preemption that was begun there and interrupted
            is finished there, unless that violates more budgets.
    """
    chosen = min(candidates, key=attrgetter("cost"), default=None)
    begun = next((each for each in candidates if each.node == nominated_node), None) if nominated_node else None
    if chosen is None or begun is None or begun.victims.violations > chosen.victims.violations:
        return chosen
    return begun
