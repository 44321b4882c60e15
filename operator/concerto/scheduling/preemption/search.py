"""The search for pods to evict, node by node, so that it can be interrupted; alike pods share it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from concerto.api.pod import PodView
from concerto.scheduling.preemption.candidates import Candidate, cost, number_of_candidates

NOT_HELPFUL = "Preemption is not helpful for scheduling"
"""Of nodes that refuse the pod whatever runs there. Source: kube-scheduler's words."""

Look = Callable[[PodView, str], Candidate | tuple[str, ...]]
"""Which pods would have to go for a pod on a node; or why it would not fit though all that it may preempt went."""


class CandidateSearch:
    """Looks at one node after another, until there are enough candidates, and gives alike pods one each.

    Source: kube-scheduler's ``DryRunPreemption``: with enough candidates, it goes on until one of them violates no
    PodDisruptionBudget.

    Args:
        nodes: that may have pods to evict, in the order in which they are looked at.
        look: looks at one node, on which others may have been nominated since it was last asked.
        refusing: nodes that are no candidates. If there is no candidate, they are looked at for their reasons.
    """

    def __init__(self, nodes: Iterable[str], look: Look, refusing: Iterable[str] = ()) -> None:
        self._look = look
        self._nodes = list(nodes)
        self._refusing = list(refusing)
        self._enough = number_of_candidates(len(self._nodes))
        self._nodes.reverse()
        self._candidates: dict[str, Candidate] = {}
        self._refused: dict[str, tuple[str, ...]] = {}

    @property
    def finished(self) -> bool:
        """Whether there are enough candidates, or all nodes were looked at."""
        if not self._nodes:
            return bool(self._candidates) or not self._refusing
        harmless = any(not candidate.victims.violations for candidate in self._candidates.values())
        return harmless and len(self._candidates) >= self._enough

    def look_at_next(self, pod: PodView) -> None:
        """Look at one more node; call it only while the search is not finished."""
        self._look_at(pod, (self._nodes or self._refusing).pop())

    def look_first_at(self, pod: PodView, node: str) -> None:
        """Look at this node before all others, if it is one of them."""
        if node in self._nodes:
            self._nodes.remove(node)
            self._look_at(pod, node)

    def take(self, pod: PodView, nominated_node: str = "") -> Candidate | None:
        """The best candidate for the pod, as it is now; None if the search has to go on, or has found no candidate.

        Others may have been nominated for a node since it was looked at. So the best one is looked at again, until it
        is the best one still.
        """
        while self._candidates:
            chosen = min(self._candidates.values(), key=lambda c: cost(c, nominated_node))
            self._look_at(pod, chosen.node)
            now = self._candidates.get(chosen.node)
            if now is not None and cost(now, nominated_node) <= cost(chosen, nominated_node):
                return now
        return None

    def refusals(self) -> Mapping[str, int]:
        """Why the nodes that were looked at are no candidates, and how many for that reason."""
        return Counter(reason for reasons in self._refused.values() for reason in reasons)

    def _look_at(self, pod: PodView, node: str) -> None:
        found = self._look(pod, node)
        if isinstance(found, Candidate):
            self._candidates[node] = found
        else:
            self._candidates.pop(node, None)
            self._refused[node] = found
