"""What both kinds of preemption share: nominations, deletions, their events, and the tasks that write them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from concerto.api.counters import add_count
from concerto.api.pod import PodView
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.binding_load import BindingLoad
from concerto.controllers.scheduling.event_notes import pod_subject
from concerto.controllers.scheduling.eviction import NotNeeded, PodWriter, may_be_due_to
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.kube import KubeError
from concerto.kube.confirmed_writes import failure_reason
from concerto.scheduling.preemption.victims import Victims

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Item = TypeVar("_Item")

MAX_WRITES = 256
"""Of one preemption that wait for their places, which are fewer: a PodGroup that is evicted as a whole may have tens of
thousands of pods."""


@dataclass(frozen=True)
class Eviction:
    """A pod to evict.

    Attributes:
        victim: the pod.
        node: the victim's node.
        pod: the pod that needs the room.
    """

    victim: PodView
    node: str
    pod: PodView


class PreemptionWrites:
    """Writes of one search for pods to evict, repeated until their outcomes are known.

    Args:
        context: what the scheduler's parts share.
        parts: parts of the scheduler; a pod that a nomination kept waiting is queued again when that is removed.
    """

    def __init__(self, context: Context, parts: SchedulerParts) -> None:
        self._preemptions = parts.eviction_places.preemptions
        self._context = context
        self._cluster = parts.cluster
        self._pending = parts.pending
        self._reporter = parts.reporter
        failures = context.metrics.write_failures
        self._writer = PodWriter(
            context.session,
            context.may_write,
            lambda failure, _: failures.labels("Preemption", failure_reason(failure)).inc(),
            parts.eviction_places,
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
        """Store the nomination and why the pod has no node; False if the pod needs no room any more.

        Raises:
            KubeError: the API server refuses it.
            NotNeeded: the pod is on a node, where this condition would be wrong, or its nomination has been withdrawn.
        """
        conditions, node_of = self._reporter.conditions_beside_nomination(pod.uid), self._cluster.nominations.node_of
        return await self._writer.nominate(
            pod, node, conditions, lambda: self._pending.needs_node(pod.uid) and node_of(pod.uid) == node
        )

    async def withdraw(self, pod: PodView) -> None:
        """Remove the pod's nomination, unless it is nominated for another node meanwhile."""
        node_of = self._cluster.nominations.node_of
        self._pending.requeue(self._cluster.nominations.remove(pod.uid))
        try:
            await self._writer.nominate(pod, "", is_needed=lambda: not node_of(pod.uid))
        except NotNeeded:
            return
        except KubeError as error:
            self._cluster.nominations.not_removed(pod.uid)
            logger.info("%s: its nomination is not removed: %s", pod.key, error)

    async def evict(self, evictions: Sequence[Eviction], is_needed: Callable[[], bool]) -> None:
        """Evict pods for others, as long as that is needed: all of them, or none if the API server refuses one.

        Raises:
            KubeError: the API server refuses it.
            NotNeeded: the room is not needed any more.
        """
        namespaces = {pod.namespace for each in evictions for pod in (each.pod, each.victim)}
        async with self._preemptions.place(*namespaces):
            await self._evict(evictions, is_needed)

    async def _evict(self, evictions: Sequence[Eviction], is_needed: Callable[[], bool]) -> None:
        mark = self._writer.mark
        marked = await for_each(
            evictions, lambda each: self._noting_refusal(each, mark(each.victim, each.pod, is_needed))
        )
        for _ in range(marked.count(False)):
            self._context.metrics.preemption_victims.labels("gone").inc()
        left = [each for each, is_there in zip(evictions, marked) if is_there]
        # The first deletion needs no check: if it is refused, nobody is evicted. One that was refused before goes first
        times = self._cluster.budgets.refused_deletions.times
        left.sort(key=lambda each: times(each.victim.uid), reverse=True)
        first, others = left[:1], left[1:]
        check = self._writer.check_deletion
        await for_each(others, lambda each: self._noting_refusal(each, check(each.victim, is_needed)))
        for deletions in (first, others):
            await for_each(deletions, lambda each: self._noting_refusal(each, self._delete(each, is_needed)))

    async def _delete(self, eviction: Eviction, is_needed: Callable[[], bool]) -> None:
        evicted = await self._writer.delete(eviction.victim, is_needed)
        self._context.metrics.preemption_victims.labels("evicted" if evicted else "gone").inc()
        if evicted:
            self._context.recorder.record(
                pod_subject(eviction.victim),
                reason="Preempted",
                action="Preempting",
                note=f"Preempted by pod {eviction.pod.uid} on node {eviction.node}",
                related=pod_subject(eviction.pod),
            )

    async def _noting_refusal(self, eviction: Eviction, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return await work
        except KubeError as error:
            if may_be_due_to(error):
                self._cluster.budgets.refused_deletions.refused(eviction.victim.uid, self._context.clock())
            raise

    def report_refused(self, pods: Iterable[PodView], error: KubeError) -> None:
        """Log that the API server refuses to make room for these pods, and have their events say so.

        The refusal itself stands in the log alone: it may name pods of other namespaces.
        """
        for pod in pods:
            logger.error("%s: no room could be made: %s", pod.key, error)
            self._reporter.note_preemption(pod.uid, "preemption: the API server refused to make room by evictions.")
        self._context.metrics.preemption_victims.labels("failed").inc()


class PreemptionTasks:
    """Writes that are made while the search goes on.

    Args:
        load: where they are counted, so that events wait for them.
    """

    def __init__(self, load: BindingLoad) -> None:
        self._load = load
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], *pods: PodView) -> None:
        """Begin the work; an exception in it is logged.

        Args:
            work: writes to these pods.
            pods: those that room is made for, and those that are evicted.
        """
        task = asyncio.create_task(work)
        namespaces = frozenset(pod.namespace for pod in pods)
        self._tasks.add(task)
        self._load.preemptions[namespaces] += 1
        task.add_done_callback(lambda task: self._on_end(task, namespaces))

    def cancel(self) -> None:
        """Cancel all that has not ended."""
        for task in self._tasks:
            task.cancel()

    def _on_end(self, task: asyncio.Task[None], namespaces: frozenset[str]) -> None:
        self._tasks.discard(task)
        add_count(self._load.preemptions, namespaces, -1)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a preemption was stopped by an internal error", exc_info=error)


async def all_of(*work: Coroutine[Any, Any, _T]) -> list[_T]:
    """Do all of it, whatever becomes of the rest; raises the first error when all of it has ended."""
    return _results(await asyncio.gather(*work, return_exceptions=True))


async def for_each(items: Sequence[_Item], work: Callable[[_Item], Coroutine[Any, Any, _T]]) -> list[_T]:
    """`all_of` for many items: no more than ``MAX_WRITES`` are worked on at a time, and others get their turns."""
    outcomes: dict[int, _T | BaseException] = {}
    left = enumerate(items)

    async def take_turns() -> None:
        for index, item in left:
            try:
                outcomes[index] = await work(item)
            except Exception as error:
                outcomes[index] = error
            await asyncio.sleep(0)  # what is not needed any more ends at once

    await asyncio.gather(*(take_turns() for _ in range(min(MAX_WRITES, len(items)))))
    return _results(outcomes[index] for index in range(len(items)))


def _results(outcomes: Iterable[_T | BaseException]) -> list[_T]:
    """All of them; raises the first that is an error."""
    results: list[_T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
