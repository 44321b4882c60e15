"""What a cycle's failures mean for the queue. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from concerto.api.pod import PodView
from concerto.scheduling.cycle import MAX_DECISIONS
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.queue import Queue
from concerto.scheduling.reasons import Diagnosis


def mark_failures(queue: Queue, result: CycleResult, now: float) -> None:
    """Have the queue keep back the pods that found no node: those of a gang that was not placed all together.

    Args:
        queue: has the pods.
        result: of the cycle.
        now: seconds.
    """
    considered = set()
    for failure in result.unschedulable:
        key = (failure.pod.namespace, failure.pod.group)
        if result.gangs.get(key) is None:
            requeue_on = failure.diagnosis.requeue_on
            queue.mark_unschedulable(failure.pod.uid, requeue_on, now, always_considered=failure.always_considered)
        elif failure.always_considered:
            considered.add(key)
    for key, diagnosis in result.gangs.items():
        if diagnosis is not None:
            queue.mark_pod_group(key, diagnosis.requeue_on, now, always_considered=key in considered)


def next_beyond_heads(queue: Queue, result: CycleResult, limit: int) -> Iterator[tuple[PodView, Diagnosis]]:
    """Pods that no cycle looks at, because so many of their like are before them, and why they have no node.

    Args:
        queue: has the pods.
        result: of the cycle.
        limit: pods at most. Each kind has the same part of it, and one pod at least; what a kind does not need of its
            part is left to others.
    """
    gangs = [(key, diagnosis) for key, diagnosis in result.gangs.items() if diagnosis is not None]
    firsts = [
        (failure.pod, failure.diagnosis, MAX_DECISIONS)
        for failure in result.unschedulable
        if (failure.pod.namespace, failure.pod.group) not in result.gangs
    ]
    for gang, diagnosis in gangs:
        found = queue.firsts_of_pod_group(gang, max(1, limit // len(gangs)))
        firsts += ((pod, diagnosis, 0) for pod in found)
    counted = [(queue.number_beyond(pod.uid, heads), pod, diagnosis, heads) for pod, diagnosis, heads in firsts]
    kinds = sorted((each for each in counted if each[0]), key=lambda each: each[0])
    for at, (_, pod, diagnosis, heads) in enumerate(kinds):
        found = queue.next_beyond(pod.uid, max(1, limit // (len(kinds) - at)), heads)
        limit -= len(found)
        yield from ((alike, diagnosis) for alike in found)
