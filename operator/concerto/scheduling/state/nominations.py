"""Pods that wait for a node on which room is being made for them: nominated pods, of every scheduler.

A nomination is known here before the API server has it, so that no cycle gives the room away meanwhile. Source:
kube-scheduler's ``nominator``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from concerto.api.pod import PodView
from concerto.scheduling.state.changes import Change

_FREED = Change.ENDED | Change.CAPACITY


class Nominations:
    """Nominated pods, by node.

    Args:
        is_placed: whether a pod is on a node already, bound or assumed: what it takes is counted there then.
    """

    def __init__(self, is_placed: Callable[[str], bool]) -> None:
        self._is_placed = is_placed
        self._pods: dict[str, PodView] = {}  # by UID
        self._node_of: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether any pod is nominated."""
        return bool(self._pods)

    # --- what is asked

    def node_of(self, uid: str) -> str:
        """The node that the pod is nominated for; empty if it is for none."""
        return self._node_of.get(uid, "")

    def take_room_from(self, pod: PodView) -> Mapping[str, Sequence[PodView]]:
        """Other nominated pods of the same or a higher priority, by node: what they take is not there for the pod."""
        by_node: dict[str, list[PodView]] = {}
        for uid, other in self._pods.items():
            if other.priority >= pod.priority and uid != pod.uid and not self._is_placed(uid):
                by_node.setdefault(self._node_of[uid], []).append(other)
        return by_node

    def lower_than(self, priority: int, node: str) -> list[PodView]:
        """Pods of a lower priority that are nominated for the node."""
        return [pod for uid, pod in self._pods.items() if self._node_of[uid] == node and pod.priority < priority]

    # --- what is seen and decided

    def set_pod(self, pod: PodView) -> Change:
        """A pod as the API server has it now; returns what may be possible because a nomination has ended.

        A nomination of ours goes on where neither this pod nor the one before shows it: it is being written.
        """
        if pod.node_name or pod.deleting or pod.terminal:
            return self.withdraw(pod.uid)
        before, node = self._pods.get(pod.uid), pod.nominated_node
        if not node and (before is None or before.nominated_node):
            return self.withdraw(pod.uid)
        moved = before is not None and bool(node) and node != self._node_of[pod.uid]
        self._pods[pod.uid] = pod
        if node:
            self._node_of[pod.uid] = node
        return _FREED if moved else Change.NOTHING

    def nominate(self, pod: PodView, node: str) -> None:
        """Room is about to be made for the pod on the node."""
        self._pods[pod.uid] = pod
        self._node_of[pod.uid] = node

    def withdraw(self, uid: str) -> Change:
        """The pod needs no room any more, or not there; returns what may be possible if it had a nomination."""
        self._node_of.pop(uid, None)
        return Change.NOTHING if self._pods.pop(uid, None) is None else _FREED
