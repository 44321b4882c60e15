"""What both kinds of preemption share: nominations, deletions, their events, and the tasks that write them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from concerto.api.pod import PodView
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.event_notes import pod_subject
from concerto.controllers.scheduling.eviction import PodWriter
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.kube import KubeError
from concerto.kube.confirmed_writes import failure_reason
from concerto.scheduling.preemption.victims import Victims

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class PreemptionWrites:
    """Writes of one search for pods to evict, repeated until their outcomes are known.

    Args:
        context: what the scheduler's parts share.
        parts: parts of the scheduler; a pod that a nomination kept waiting is queued again when that is removed.
    """

    def __init__(self, context: Context, parts: SchedulerParts) -> None:
        self._context = context
        self._cluster = parts.cluster
        self._pending = parts.pending
        self._reporter = parts.reporter
        failures = context.metrics.write_failures
        self._writer = PodWriter(
            context.session,
            context.may_write,
            lambda failure, _: failures.labels("Preemption", failure_reason(failure)).inc(),
        )

    def report_found(self, pods: Iterable[PodView], victims: Victims, message: str) -> None:
        """Count a search that has found victims, and record the message for each pod that they are evicted for."""
        metrics = self._context.metrics
        metrics.preemption_attempts.labels("found").inc()
        metrics.preemption_pdb_violations.inc(victims.violations)
        for pod in pods:
            text = self._reporter.note_preemption(pod.uid, message)
            self._context.recorder.record(
                pod_subject(pod), type="Warning", reason="FailedScheduling", action="Scheduling", note=text
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


class PreemptionTasks:
    """Writes that are made while the search goes on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin the work; an exception in it is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def cancel(self) -> None:
        """Cancel all that has not ended."""
        for task in self._tasks:
            task.cancel()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a preemption was stopped by an internal error", exc_info=error)


async def all_of(*work: Coroutine[Any, Any, _T]) -> list[_T]:
    """Do all of it, whatever becomes of the rest; raises the first error when all of it has ended."""
    results: list[_T] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
