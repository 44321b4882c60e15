"""The search for pods to evict, node by node, so that it can be interrupted; alike pods share it. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.scheduling.preemption.candidates import Candidate, best, number_of_candidates

NOT_HELPFUL = "Preemption is not helpful for scheduling"
"""Of nodes that refuse the pod whatever runs there. Source: kube-scheduler's words."""

Look = Callable[[PodView, str], Candidate | tuple[str, ...]]
"""Which pods would have to go for a pod on a node; or why it would not fit though all that it may preempt went."""


@dataclass(frozen=True)
class Remainder:
    """What a search leaves to the next one for such pods.

    Attributes:
        candidates: those that were found and given to no pod.
        next_node: where the search would have gone on; empty if all nodes were looked at.
    """

    candidates: Sequence[Candidate] = ()
    next_node: str = ""


NO_REMAINDER = Remainder()
"""Of no search."""


class CandidateSearch:
    """Looks at one node after another, until there are enough candidates, and gives alike pods one each.

    Source: kube-scheduler's ``DryRunPreemption``: with enough candidates, it goes on until one of them violates no
    PodDisruptionBudget.

    Args:
        nodes: that may have pods to evict, in the order in which they are looked at.
        look: looks at one node, on which others may have been nominated since it was last asked.
        refusing: nodes that are no candidates. If there is no candidate, they are looked at for their reasons.
        known: candidates of a search that ended a moment ago; they need not be looked at before one is chosen.
    """

    def __init__(
        self, nodes: Sequence[str], look: Look, refusing: Iterable[str] = (), known: Iterable[Candidate] = ()
    ) -> None:
        self._look = look
        self._refusing = list(refusing)
        self._enough = number_of_candidates(len(nodes))
        there = frozenset(nodes)
        self._candidates: dict[str, Candidate] = {each.node: each for each in known if each.node in there}
        self._nodes = deque(node for node in nodes if node not in self._candidates)
        self._refused: dict[str, tuple[str, ...]] = {}

    @property
    def remainder(self) -> Remainder:
        """What it leaves to the next one."""
        return Remainder(tuple(self._candidates.values()), self._nodes[0] if self._nodes else "")

    @property
    def finished(self) -> bool:
        """Whether there are enough candidates, or all nodes were looked at."""
        if not self._nodes:
            return bool(self._candidates) or not self._refusing
        harmless = any(not candidate.victims.violations for candidate in self._candidates.values())
        return harmless and len(self._candidates) >= self._enough

    def look_at_next(self, pod: PodView) -> None:
        """Look at one more node; call it only while the search is not finished."""
        self._look_at(pod, self._nodes.popleft() if self._nodes else self._refusing.pop())

    def look_first_at(self, pod: PodView, node: str) -> None:
        """Look at this node before all others, if it is one of them."""
        if node in self._nodes:
            self._nodes.remove(node)
            self._look_at(pod, node)

    def take(self, pod: PodView, nominated_node: str = "", *, at_once: bool = True) -> Candidate | None:
        """The best candidate for the pod, as it is now; None without a candidate, or if the search has to go on.

        Others may have been nominated for a node since it was looked at. So the best one is looked at again, until it
        is the best one still. Its node is the last to be looked at for the next pod.

        Args:
            pod: the pod.
            nominated_node: node for which it was nominated before.
            at_once: whether the best of those that are left is taken, however few they are. If not, and some were not
                what they had been, the search may have to go on first (``finished``).
        """
        while (chosen := best(self._candidates.values(), nominated_node)) is not None:
            self._look_at(pod, chosen.node)
            now = self._candidates.get(chosen.node)
            if now is not None and now.cost <= chosen.cost:
                del self._candidates[now.node]
                self._nodes.append(now.node)
                return now
            if not at_once and not self.finished:
                return None
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
