"""The order in which pods are looked at while cycles run out of time: each pod once a round, namespaces in turn."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from concerto.api.pod import PodView
from concerto.scheduling.cycle import CycleResult
from concerto.scheduling.queue import Queue

_MAX_REMEMBERED = 20_000
"""Pods that have had their turn, before those that no longer wait are forgotten."""


class FairOrder:
    """Orders the pods of each cycle.

    As long as cycles look at every pod, the queue's order holds. After a cycle that ran out of time, the pods that it
    did not look at come first, and of equal priority those of different namespaces take turns. So neither many pods
    that find no node nor the pods of one namespace keep others from being looked at.
    """

    def __init__(self) -> None:
        """No cycle has run out of time yet."""
        self._had_turn: set[str] = set()

    def order(self, pods: Sequence[PodView]) -> Sequence[PodView]:
        """The pods in the order in which the next cycle should look at them."""
        if not self._had_turn:
            return pods
        waiting = [pod for pod in pods if pod.uid not in self._had_turn]
        if not waiting:
            self._had_turn.clear()  # the round is over
            return list(_in_turns(pods))
        return [*_in_turns(waiting), *(pod for pod in pods if pod.uid in self._had_turn)]

    def on_result(self, pods: Sequence[PodView], result: CycleResult, queue: Queue) -> None:
        """Take note of which of the pods a cycle looked at.

        Args:
            pods: as they were ordered.
            result: of the cycle.
            queue: the pods that wait.
        """
        if not result.left:
            self._had_turn.clear()
        if not result.out_of_time and not self._had_turn:
            return
        left = {pod.uid for pod in result.left}
        self._had_turn.update(pod.uid for pod in pods if pod.uid not in left)
        if len(self._had_turn) > _MAX_REMEMBERED:
            self._had_turn = {uid for uid in self._had_turn if uid in queue}


def _in_turns(pods: Sequence[PodView]) -> Iterator[PodView]:
    """By descending priority; of equal priority one of each namespace in turn, in the order given within each."""
    by_priority: defaultdict[int, defaultdict[str, deque[PodView]]] = defaultdict(lambda: defaultdict(deque))
    for pod in pods:
        by_priority[pod.priority][pod.namespace].append(pod)
    for priority in sorted(by_priority, reverse=True):
        namespaces = deque(by_priority[priority].values())
        while namespaces:
            waiting = namespaces.popleft()
            yield waiting.popleft()
            if waiting:
                namespaces.append(waiting)
