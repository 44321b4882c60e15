"""What a cycle's failures mean for the queue. Pure."""

from __future__ import annotations

from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.queue import Queue


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
