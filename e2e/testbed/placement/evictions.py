"""Which pods have to go so that a pod fits, by the documentation alone, node by node and pod by pod.

Slow and plain on purpose, and without any code of Concerto: it checks the evictions of Concerto and kube-scheduler.
Source: kubernetes.io, "Pod Priority and Preemption"; kube-scheduler's ``pickOneNodeForPreemption``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from e2e.testbed.placement.rules import World, priority_of
from e2e.testbed.placement.selection import labels_of, selects

Object = Mapping[str, Any]
Cost = tuple[float, ...]
"""Violated budgets, highest priority, sum of priorities (each above 0), number of pods, and start time, less being
better."""
_NEVER_STARTED = 1e12


@dataclass(frozen=True)
class Eviction:
    """Pods of one node that have to go.

    Attributes:
        node: its name.
        victims: the pods, as ``namespace/name``.
    """

    node: str
    victims: frozenset[str]


class Evictions:
    """What may be evicted for one pod, and what it costs.

    Args:
        world: the cluster, in which the pod is on no node.
        pod: the pod.
    """

    def __init__(self, world: World, pod: Object) -> None:
        self._world = world
        self._pod = pod

    def best(self) -> Cost | None:
        """The cost of the best choice; None if no eviction helps."""
        found = (self._on(node) for node in self._world.nodes)
        return min((self.cost(each) for each in found if each is not None), default=None)

    def cost(self, eviction: Eviction) -> Cost:
        """What counts, one after another."""
        pods = [p for p in self._lower(eviction.node) if key_of(p) in eviction.victims]
        violating = self._violating(eviction.node)
        highest = max(map(priority_of, pods))
        return (
            sum(key_of(p) in violating for p in pods),
            highest,
            sum(priority_of(p) + 2**31 for p in pods),
            len(pods),
            -min(_started(p) for p in pods if priority_of(p) == highest),
        )

    def faults(self, eviction: Eviction) -> list[str]:
        """What is wrong with it: pods that must not go, too few or too many of them."""
        pods = [p for p in self._lower(eviction.node) if key_of(p) in eviction.victims]
        if others := eviction.victims - {key_of(p) for p in pods}:
            return [f"not pods of lower priority on {eviction.node}: {sorted(others)}"]
        if not self._fits(eviction.node, pods):
            return [f"it does not fit on {eviction.node} without {sorted(eviction.victims)}"]
        spared = [p for p in pods if self._fits(eviction.node, [q for q in pods if q is not p])]
        return [f"need not go: {key_of(p)}" for p in spared]

    def _on(self, node: str) -> Eviction | None:
        pods = self._lower(node)
        if not pods or self._world.broken_on(self._pod, node) == {"pod affinity"} or not self._fits(node, pods):
            return None
        violating = self._violating(node)
        for pod in sorted(pods, key=lambda p: key_of(p) not in violating):
            rest = [p for p in pods if p is not pod]
            if self._fits(node, rest):
                pods = rest
        return Eviction(node, frozenset(map(key_of, pods))) if pods else None

    def _lower(self, node: str) -> list[Object]:
        """Pods on the node that it may preempt, the most important first."""
        pods = (p for p in self._world.on(node) if priority_of(p) < priority_of(self._pod))
        return sorted(pods, key=lambda p: (-priority_of(p), _started(p)))

    def _fits(self, node: str, without: Iterable[Object]) -> bool:
        """Whether it fits without these pods, beside those that are nominated for the node and without them."""
        gone = {p["metadata"]["uid"] for p in without}
        left = replace(self._world, pods=[p for p in self._world.pods if p["metadata"]["uid"] not in gone])
        return not left.broken_on(self._pod, node)

    def _violating(self, node: str) -> set[str]:
        """Of the pods that it may preempt there, those that their budgets do not allow to go after those before."""
        found = set()
        for budget in self._world.budgets:
            status = budget.get("status") or {}
            left = status.get("disruptionsAllowed", 0)
            for pod in self._lower(node):
                is_own = pod["metadata"]["namespace"] == budget["metadata"]["namespace"]
                if not is_own or not selects(budget["spec"]["selector"], labels_of(pod)):
                    continue
                if pod["metadata"]["name"] not in (status.get("disruptedPods") or ()):
                    left -= 1
                    if left < 0:
                        found.add(key_of(pod))
        return found


def key_of(pod: Object) -> str:
    """Namespace and name."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _started(pod: Object) -> float:
    at = (pod.get("status") or {}).get("startTime")
    return datetime.fromisoformat(at).timestamp() if at else _NEVER_STARTED
