"""Pods that wait for a node on which room is being made for them: nominated pods, of every scheduler.

A nomination is known here before the API server has it, so that no cycle gives the room away meanwhile. Source:
kube-scheduler's ``nominator``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from concerto.api.pod import PodView
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.signatures import PodSignatures

_FREED = Change.ENDED | Change.CAPACITY


class Nominations:
    """Nominated pods, by node.

    Args:
        is_placed: whether a pod is on a node already, bound or assumed: what it takes is counted there then.
        signatures: given the selectors of pods that nominated ones refuse, which distinguish pods from now on.
    """

    def __init__(self, is_placed: Callable[[str], bool], signatures: PodSignatures) -> None:
        self._is_placed = is_placed
        self._signatures = signatures
        self._pods: dict[str, PodView] = {}  # by UID
        self._node_of: dict[str, str] = {}
        self._on: dict[str, dict[str, PodView]] = {}  # the same pods by node and UID
        self._turns: dict[str, int] = {}  # by UID: the later a pod was nominated for its node, the higher
        self._numbers = count()
        self._being_removed: dict[str, frozenset[str]] = {}  # nodes, by UID, that the API server may still show

    def __bool__(self) -> bool:
        """Whether any pod is nominated."""
        return bool(self._pods)

    # --- what is asked

    def node_of(self, uid: str) -> str:
        """The node that the pod is nominated for; empty if it is for none."""
        return self._node_of.get(uid, "")

    def among(self, pods: Mapping[str, PodView]) -> list[PodView]:
        """Of these pods, by UID, those that are nominated and not placed."""
        return [pods[uid] for uid in self._pods.keys() & pods.keys() if not self._is_placed(uid)]

    def of_priority(self, priority: int) -> Mapping[str, Sequence[PodView]]:
        """Nominated pods of that priority and higher ones, by node: what they take is not there for others."""
        by_node = ((node, self._waiting_for(node, priority)) for node in self._on)
        return {node: pods for node, pods in by_node if pods}

    def number(self, priority: int) -> int:
        """How many pods of that priority and higher ones are nominated, placed or not.

        As long as no nomination changes, the same number for two priorities means the same pods.
        """
        return sum(pod.priority >= priority for pod in self._pods.values())

    def beside(self, pod: PodView, node: str) -> Sequence[PodView]:
        """Other pods that are nominated for the node, and that the pod has to leave room to.

        Of pods that have the same priority and are both nominated for it, the later one leaves room to the earlier one,
        by the second of their creation as in the queue, and then by nomination: what was evicted for the earlier one
        was not enough for the later one, too. kube-scheduler has each of its own leave room to the other, so that
        neither gets it; it does not see nominations of other schedulers' pods.
        """
        others = [other for other in self._waiting_for(node, pod.priority) if other.uid != pod.uid]
        if self.node_of(pod.uid) != node:
            return others
        return [other for other in others if self._order(other) < self._order(pod)]

    def lower_than(self, priority: int, node: str) -> list[PodView]:
        """Pods of a lower priority that are nominated for the node."""
        return [pod for pod in self._on.get(node, {}).values() if pod.priority < priority]

    # --- what is seen and decided

    def set_pod(self, pod: PodView) -> Change:
        """A pod as the API server has it now; returns what may be possible because a nomination has ended.

        A nomination of ours goes on where this pod shows the same as the one before: ours is being written.
        """
        if pod.node_name or pod.deleting or pod.terminal:
            return self.withdraw(pod.uid)
        before, node = self._pods.get(pod.uid), pod.nominated_node
        if (removed := self._being_removed.get(pod.uid)) is not None:
            if node not in removed:
                del self._being_removed[pod.uid]
            if not node or node in removed:
                if before is not None:  # it was nominated again meanwhile
                    self._keep(pod, self._node_of[pod.uid])
                return Change.NOTHING
        if not node and (before is None or before.nominated_node):
            return self.withdraw(pod.uid)
        is_news = bool(node) and (before is None or node != before.nominated_node)
        moved = is_news and before is not None and node != self._node_of[pod.uid]
        self._keep(pod, node if is_news else self._node_of[pod.uid])
        return _FREED if moved else Change.NOTHING

    def nominate(self, pod: PodView, node: str) -> None:
        """Room is about to be made for the pod on the node."""
        self._keep(pod, node)

    def remove(self, uid: str) -> Change:
        """As `withdraw`; the API server shows the nomination until what is written now has been seen."""
        pod, node = self._pods.get(uid), self.node_of(uid)
        change = self.withdraw(uid)
        if pod is not None:
            self._being_removed[uid] = frozenset((node, pod.nominated_node)) - {""}
        return change

    def not_removed(self, uid: str) -> None:
        """The API server did not take the removal: what it shows holds."""
        self._being_removed.pop(uid, None)

    def withdraw(self, uid: str) -> Change:
        """The pod needs no room any more, or not there; returns what may be possible if it had a nomination."""
        self._being_removed.pop(uid, None)
        pod = self._pods.pop(uid, None)
        if pod is None:
            return Change.NOTHING
        self._leave_node(uid)
        for term in pod.shape.anti_affinity:
            self._signatures.remove_selector(term.selector)
        return _FREED

    def _waiting_for(self, node: str, priority: int) -> list[PodView]:
        """Pods of that priority and higher ones that are nominated for the node and not placed."""
        pods = self._on.get(node, {})
        return [pod for uid, pod in pods.items() if pod.priority >= priority and not self._is_placed(uid)]

    def _keep(self, pod: PodView, node: str) -> None:
        before = self._pods.get(pod.uid)
        if before is not None and self._node_of[pod.uid] != node:
            self._leave_node(pod.uid)
        if self._node_of.get(pod.uid) != node:
            self._turns[pod.uid] = next(self._numbers)
        self._pods[pod.uid] = pod
        self._node_of[pod.uid] = node
        self._on.setdefault(node, {})[pod.uid] = pod
        for term in pod.shape.anti_affinity:
            self._signatures.add_selector(term.selector)
        for term in before.shape.anti_affinity if before is not None else ():
            self._signatures.remove_selector(term.selector)

    def _leave_node(self, uid: str) -> None:
        node = self._node_of.pop(uid)
        del self._on[node][uid], self._turns[uid]
        if not self._on[node]:
            del self._on[node]

    def _order(self, pod: PodView) -> tuple[int, float, str, int]:
        """Which of two nominated pods goes first, the same for all schedulers that these pods are of."""
        return -pod.priority, pod.created, pod.scheduler_name, self._turns[pod.uid]
