"""From a cycle's decisions to bound pods: store the intent, run the binding steps, bind, or give the placement back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from concerto.api.podgroup import GroupKey
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.binder import BinderSettings, BindOutcome, BindResult, bind
from concerto.controllers.scheduling.binding_load import PipelineSettings
from concerto.controllers.scheduling.binding_steps import BindingStep
from concerto.controllers.scheduling.event_notes import pod_subject, scheduled_note
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.controllers.scheduling.placement_records import PlacementRecord
from concerto.kube.confirmed_writes import failure_reason, wait_unless_leading
from concerto.kube.failpoints import point
from concerto.scheduling.cycle_result import Decision
from concerto.scheduling.gangs.recovery import note_unfinished
from concerto.scheduling.reasons import diagnose_failed_binding

logger = logging.getLogger(__name__)


class BindingPipeline:
    """Carries out decisions.

    Attributes:
        on_consumed: given the namespace and name of a reservation of which a unit was used.
    """

    def __init__(self, context: Context, parts: SchedulerParts, settings: PipelineSettings | None = None) -> None:
        """Nothing is sent yet."""
        self.on_consumed: Callable[[str, str], None] = lambda namespace, name: None
        self._context = context
        self._cluster = parts.cluster
        self._pending = parts.pending
        self._records = parts.records
        self._steps = parts.steps
        self._profiles = parts.profiles
        self._load = parts.load
        self._reporter = parts.reporter
        self._settings = settings or PipelineSettings()
        self._binding: set[asyncio.Task[None]] = set()
        self._preparing: set[asyncio.Task[None]] = set()  # their waits hold back nobody else
        self._broken: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Wait until cancelled, then let bindings in flight end; raises the error of a binding that ended by one."""
        self._broken = asyncio.get_running_loop().create_future()
        try:
            await self._broken
        finally:
            # What is stored is bound by this process, which still leads, rather than decided again by a successor
            if self._binding:
                await asyncio.wait(self._binding, timeout=self._settings.shutdown_grace_seconds)
            for task in self._binding | self._preparing:
                task.cancel()

    async def carry_out(self, decisions: Sequence[Decision]) -> None:
        """Store the intent, then start the bindings; give back what the API server refused to store."""
        by_uid = {d.pod.uid: d for d in decisions}
        await wait_unless_leading(self._context.may_write)
        stored, refused = await self._records.store([d.assignment for d in decisions])
        point("after-store")
        refused_gangs = {gang for refusal in refused if (gang := refusal.assignment.gang)}
        self._start(stored, by_uid, refused_gangs)
        for refusal in refused:
            logger.error("%s/%s: %s", refusal.assignment.namespace, refusal.assignment.name, refusal.message)
            if refusal.by_content:
                until = self._context.clock() + self._settings.avoid_refused_seconds
                self._cluster.avoid_node(refusal.assignment.node, until)
            self._give_back(
                by_uid[refusal.assignment.uid], f"The placement record could not be written: {refusal.message}"
            )

    def _start(
        self, records: Sequence[PlacementRecord], by_uid: dict[str, Decision], refused_gangs: set[GroupKey]
    ) -> None:
        """Bind what is stored: pods of a gang together, if all of them are stored, and all others one by one."""
        gangs: dict[GroupKey, list[Decision]] = {}
        for record in records:
            for assignment in record.assignments:
                decision = by_uid[assignment.uid]
                if assignment.gang in refused_gangs:
                    self._give_back(decision, "The placement of another pod of its PodGroup could not be stored")
                    continue
                if assignment.reservation is not None:
                    self.on_consumed(*assignment.reservation)
                for step in self._steps_of(decision):
                    step.begin(decision, record.name)
                if assignment.gang is None:
                    self._start_one(decision)
                else:
                    gangs.setdefault(assignment.gang, []).append(decision)
        for gang, decisions in gangs.items():
            self._spawn(self._preparing, self._bind_gang(gang, decisions))

    def _start_one(self, decision: Decision) -> None:
        if self._steps_of(decision):
            self._spawn(self._preparing, self._prepare_and_bind(decision))
        else:
            self._spawn_binding(decision)

    async def _bind_gang(self, gang: GroupKey, decisions: Sequence[Decision]) -> None:
        with self._cluster.pod_groups.binding(gang):
            await self._prepare_and_bind_gang(decisions)

    async def _prepare_and_bind_gang(self, decisions: Sequence[Decision]) -> None:
        """Run the binding steps of all pods of a gang, then bind them; undo all if a step fails or a pod is gone."""
        problems: Sequence[str | None] = [None] * len(decisions)
        if any(map(self._steps_of, decisions)):  # else the next cycle begins with these bindings counted
            problems = await asyncio.gather(*(self._prepare(decision) for decision in decisions))
        problem = next((problem for problem in problems if problem is not None), None)
        if problem is None and not all(self._still_waits(decision) for decision in decisions):
            problem = "it is gone, or on a node already"
        if problem is not None:
            for decision, own in zip(decisions, problems):
                await self._unprepared(decision, own or f"Another pod of its PodGroup can't be bound: {problem}")
            return
        point("before-gang")
        await asyncio.wait([self._spawn_binding(decision) for decision in decisions])
        point("after-gang")
        # Those that the API server refused go before all others, once others of their gang are bound
        note_unfinished(self._cluster, [[decision.assignment for decision in decisions]])
        self._pending.requeue_pod_groups()

    def _still_waits(self, decision: Decision) -> bool:
        """Whether the pod of a gang, as it was seen last, can be bound: the API server refuses all others."""
        gang = decision.assignment.gang
        pod = self._cluster.pod_groups.members(gang).get(decision.pod.uid) if gang is not None else None
        return pod is not None and pod.waiting

    def _steps_of(self, decision: Decision) -> list[BindingStep]:
        return [step for step in self._steps if step.concerns(decision.assignment)]

    async def _prepare_and_bind(self, decision: Decision) -> None:
        """Run the pod's binding steps, then bind it; undo them all if one fails."""
        problem = await self._prepare(decision)
        if problem is None:
            self._spawn_binding(decision)
        else:
            await self._unprepared(decision, problem)

    async def _prepare(self, decision: Decision) -> str | None:
        """Run the pod's binding steps; returns why it can't be bound, if one fails."""
        problem, steps = None, self._steps_of(decision)
        if steps:
            point("before-prepare")
        for step in steps:
            problem = await step.prepare(decision)
            if problem is not None:
                break
        if steps:
            point("after-prepare")
        return problem

    async def _unprepared(self, decision: Decision, problem: str) -> None:
        """The pod is not bound: undo its steps, and decide on it again."""
        self._context.metrics.bindings.labels("unprepared").inc()
        await self._undo(decision)
        self._give_back(decision, problem)

    async def _undo(self, decision: Decision) -> None:
        for step in reversed(self._steps_of(decision)):
            await step.undo(decision)

    async def _bind(self, decision: Decision) -> None:
        outcome = await self._send(decision)
        node = decision.assignment.node
        self._context.metrics.bindings.labels(outcome.result.value).inc()
        if outcome.result is BindResult.BOUND:
            self._confirm(decision)
            return
        if self._steps_of(decision):
            point("before-release")
            await self._undo(decision)
        if outcome.result is BindResult.REFUSED:
            self._give_back(decision, f"Binding to {node} was rejected: {outcome.message}")
        else:
            # The watch is about to show its end, or its node; should that not come, it is decided again
            self._decide_again(decision)

    async def _send(self, decision: Decision) -> BindOutcome:
        profile = self._profiles.get(decision.pod.scheduler_name)
        give_up = profile.settings.unbound_ttl_seconds if profile else BinderSettings.give_up_after_seconds
        settings = BinderSettings(self._settings.binding_timeout_seconds, give_up_after_seconds=give_up)
        failures = self._context.metrics.write_failures
        async with AsyncExitStack() as place:
            try:
                async with asyncio.timeout(give_up):
                    await place.enter_async_context(self._load.place(decision.pod.namespace))
            except TimeoutError:
                return BindOutcome(BindResult.REFUSED, "the API server does not answer to bindings that came before")
            return await bind(
                self._context.session,
                decision.pod,
                decision.assignment.node,
                settings,
                may_write=self._context.may_write,
                on_failure=lambda failure, _: failures.labels("Binding", failure_reason(failure)).inc(),
            )

    def _confirm(self, decision: Decision) -> None:
        pod = decision.pod
        self._cluster.confirm(pod.uid)
        for step in self._steps_of(decision):
            step.confirm(decision)
        self._context.metrics.scheduling_seconds.observe(self._pending.waited_seconds(pod.uid))
        self._context.recorder.record(
            pod_subject(pod), reason="Scheduled", action="Binding", note=scheduled_note(decision)
        )

    def _give_back(self, decision: Decision, note: str) -> None:
        """The placement did not come about, and the pod is known to be unbound: it is decided again, later."""
        if decision.pod.uid in self._pending:  # else it is gone, or somebody else has bound it
            self._context.recorder.record(
                pod_subject(decision.pod), type="Warning", reason="FailedScheduling", action="Binding", note=note
            )
            # The condition follows if it stays without a node, as in kube-scheduler
            self._reporter.note(decision.pod, diagnose_failed_binding(note))
        self._decide_again(decision)

    def _decide_again(self, decision: Decision) -> None:
        self._pending.requeue(self._cluster.forget(decision.pod.uid))
        self._pending.retry(decision.pod.uid)

    def _spawn_binding(self, decision: Decision) -> asyncio.Task[None]:
        namespace = decision.pod.namespace
        self._load.begin(namespace)
        task = self._spawn(self._binding, self._bind(decision))
        task.add_done_callback(lambda task: self._load.end(namespace))
        return task

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(lambda task: self._on_end(tasks, task))
        return task

    def _on_end(self, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nobody knows what has become of that pod: a process that starts afresh reads it from the API server
            logger.error("a binding was stopped by an internal error", exc_info=error)
            if self._broken is not None and not self._broken.done():
                self._broken.set_exception(error)
