"""What is written where pods are evicted for others: nominations, deletions and their events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from concerto.api.pod import PodView
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.event_notes import pod_subject
from concerto.controllers.scheduling.eviction import PodWriter
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.kube import KubeError
from concerto.kube.confirmed_writes import failure_reason

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class PreemptionWrites:
    """Writes of one search for pods to evict, repeated until their outcomes are known.

    Args:
        context: what the scheduler's parts share.
        parts: nominations are the cluster's; pods that they kept from room are looked at again.
    """

    def __init__(self, context: Context, parts: SchedulerParts) -> None:
        self._context = context
        self._cluster = parts.cluster
        self._pending = parts.pending
        failures = context.metrics.write_failures
        self._writer = PodWriter(
            context.session,
            context.may_write,
            lambda failure, _: failures.labels("Preemption", failure_reason(failure)).inc(),
        )

    async def nominate(self, pod: PodView, node: str) -> bool:
        """Store the nomination; False if the pod needs no room any more."""
        return await self._writer.nominate(pod, node)

    async def withdraw(self, pod: PodView) -> None:
        """Remove the pod's nomination."""
        self._pending.requeue(self._cluster.nominations.withdraw(pod.uid))
        try:
            await self._writer.nominate(pod, "")
        except KubeError as error:
            logger.info("%s: its nomination is not removed: %s", pod.key, error)

    async def evict(self, victim: PodView, pod: PodView, node: str, is_needed: Callable[[], bool]) -> None:
        """Evict a pod from the node for another one, as long as that is needed; see ``PodWriter.evict``."""
        evicted = await self._writer.evict(victim, pod, is_needed)
        self._context.metrics.preemption_victims.labels("evicted" if evicted else "gone").inc()
        if evicted:
            self._context.recorder.record(
                pod_subject(victim),
                reason="Preempted",
                action="Preempting",
                note=f"Preempted by pod {pod.uid} on node {node}",
                related=pod_subject(pod),
            )


async def all_of(*work: Coroutine[Any, Any, _T]) -> list[_T]:
    """Do all of it, whatever becomes of the rest; raises the first error when all of it has ended."""
    results: list[_T] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
