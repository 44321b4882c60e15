"""What a cycle's failures mean for the queue. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.scheduling.cycle import MAX_DECISIONS
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.queue import Queue
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.changes import Change


def mark_failures(queue: Queue, result: CycleResult, now: float) -> None:
    """Have the queue keep back the pods that found no node: those of a gang that was not placed all together.

    Args:
        queue: has the pods.
        result: of the cycle.
        now: seconds.
    """
    considered, one_by_one = set(), list[tuple[str, Change, bool]]()
    for failure in result.unschedulable:
        key = (failure.pod.namespace, failure.pod.group)
        if result.gangs.get(key) is None:
            one_by_one.append((failure.pod.uid, failure.diagnosis.requeue_on, failure.always_considered))
        elif failure.always_considered:
            considered.add(key)
    queue.mark_all(one_by_one, now)
    for key, diagnosis in result.gangs.items():
        if diagnosis is not None:
            queue.mark_pod_group(key, diagnosis.requeue_on, now, always_considered=key in considered)


@dataclass(slots=True)
class _Kind:
    """Pods that wait together, of which the first ones stand for the others.

    Attributes:
        diagnosis: why they have no node.
        heads: how many cycles look at; the others are noted.
        left: how many are to be noted.
    """

    diagnosis: Diagnosis
    heads: int
    left: int


class BeyondHeads:
    """Pods that no cycle looks at, because so many of their like are before them, and why they have no node.

    They are noted in parts: after each cycle some, and the rest while there is nothing to decide.

    Args:
        queue: has the pods.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._kinds: dict[str, _Kind] = {}  # by the UID of the first pod

    def __bool__(self) -> bool:
        """Whether pods are to be noted."""
        return bool(self._kinds)

    def add(self, result: CycleResult) -> None:
        """A cycle has ended: what holds for pods that it has looked at holds for others, too."""
        for failure in result.unschedulable:
            pod = failure.pod
            if (pod.namespace, pod.group) not in result.gangs:
                self._add_kind(pod.uid, failure.diagnosis, MAX_DECISIONS)
        for key, diagnosis in result.gangs.items():
            if diagnosis is not None:
                for pod in self._queue.firsts_of_pod_group(key):
                    self._add_kind(pod.uid, diagnosis, 0)

    def take(self, limit: int) -> Iterator[tuple[PodView, Diagnosis]]:
        """Pods that are to be noted now, and why they have no node.

        Args:
            limit: pods at most. Each kind has the same part of it, and one pod at least; what a kind does not need of
                its part is left to others.
        """
        kinds = sorted(self._kinds.items(), key=lambda item: item[1].left)
        for at, (uid, kind) in enumerate(kinds):
            part = min(kind.left, max(1, limit // (len(kinds) - at)))
            found = self._queue.next_beyond(uid, part, kind.heads)
            limit -= len(found)
            kind.left -= len(found)
            if not kind.left or not found:
                del self._kinds[uid]
            yield from ((alike, kind.diagnosis) for alike in found)

    def _add_kind(self, uid: str, diagnosis: Diagnosis, heads: int) -> None:
        if number := self._queue.number_beyond(uid, heads):
            self._kinds[uid] = _Kind(diagnosis, heads, number)
