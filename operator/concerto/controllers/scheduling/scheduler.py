"""The scheduling loop: takes the pods that wait, decides in cycles, and hands the decisions on to be carried out.

All of it runs on one event loop. A cycle has no await in it, so it decides on one state of the cluster, and its
decisions are assumed before anything else can run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.binding_pipeline import BindingPipeline
from concerto.controllers.scheduling.housekeeping import Housekeeping
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.scheduling.cycle import schedule
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.gangs.gang import WAITING
from concerto.scheduling.gangs.recovery import note_unfinished
from concerto.scheduling.queue_marks import BeyondHeads, mark_failures
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.recalled_work import recall_work
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.comparisons import TooManyComparisons

logger = logging.getLogger(__name__)

_MIN_WAIT_SECONDS = 0.05
"""Before a cycle that time has made due. One that took all of its time leaves the event loop to others for as long."""

_ROOM = Change.ENDED | Change.CAPACITY | Change.CPUS | Change.PLACED | Change.VOLUMES
"""What may be possible once room is not held for a gang any more."""
_MAX_NOTED = 5000
"""Pods beyond those that a cycle looks at which are noted at a time, for all kinds together: 10 ms."""
_MAX_LOGGED = 100
"""Different errors of plugins that are remembered, so that each is logged once."""


class Scheduler:
    """One scheduling loop over the whole cluster.

    Attributes:
        on_unschedulable: given each pod that a cycle has found no node for, and why.
        on_gang_unschedulable: given each gang that a cycle has found no nodes for or that is not ready, and why.
    """

    def __init__(
        self, context: Context, parts: SchedulerParts, pipeline: BindingPipeline, housekeeping: Housekeeping
    ) -> None:
        """Nothing is decided before `run`."""
        self.on_unschedulable: Callable[[PodView, Diagnosis], None] = lambda pod, diagnosis: None
        self.on_gang_unschedulable: Callable[[GroupKey, Diagnosis], None] = lambda key, diagnosis: None
        self._context = context
        self._parts = parts
        self._pipeline = pipeline
        self._housekeeping = housekeeping
        self._beyond = BeyondHeads(parts.pending.queue)
        self._generator = np.random.default_rng()
        self._logged: set[str] = set()
        self._hold_ends_at = -math.inf

    async def run(self) -> None:
        """Decide and bind until cancelled; only the leader does, and only after every reflector was refreshed."""
        parts = self._parts
        adopted = parts.records.adopt_found()
        for record in sorted(adopted, key=lambda record: record.created_at or 0.0):
            if record.created_at is not None:
                recall_work(parts.cluster, record.assignments, record.created_at, self._context.clock())
        note_unfinished(parts.cluster, parts.records.cycles_of(adopted))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._decide())
            group.create_task(self._housekeeping.run())
            group.create_task(parts.reporter.run())
            group.create_task(parts.group_status.run())
            group.create_task(parts.pins.run())
            group.create_task(self._pipeline.run())

    async def _decide(self) -> None:
        parts, clock = self._parts, asyncio.get_running_loop().time
        held_back = parts.load.holds_back
        out_of_time, postponed = False, ""
        while True:
            await parts.load.wait_for_room()
            now, started, cpu = self._context.clock(), clock(), time.thread_time()
            if parts.cluster.pod_groups.held_room.is_overdue(now):
                parts.pending.requeue(_ROOM)  # maybe only pods wait that did not get this room
            parts.pending.apply_profiles()
            heads = parts.pending.queue.heads(now, resume=out_of_time, held_back=held_back)
            # A gang that was looked at goes on, though its namespace may be held back by now
            first, of_postponed = next(heads, None), parts.pending.queue.get(postponed)
            if first is None and of_postponed is None:
                out_of_time = False  # all that wait have been looked at
                if self._beyond:
                    self._note_beyond_heads()
                    await asyncio.sleep(_MIN_WAIT_SECONDS)
                else:
                    await parts.pending.wait_for_work(now)
                continue
            # No await from here to the end of the cycle: it decides on one state of the cluster
            with self._context.metrics.cycle_seconds.time():
                result = schedule(
                    parts.cluster,
                    chain(() if first is None else (first,), heads),
                    parts.profiles,
                    now=now,
                    generator=self._generator,
                    resume=out_of_time,
                    postponed=of_postponed,
                    parked=parts.pending.queue.parked(Change.CAPACITY, held_back),
                    ready=parts.pending.queue.is_ready,
                    spent=partial(_cpu_seconds_since, cpu),
                )
                self._take(result, now)
            out_of_time, postponed = result.out_of_time, result.postponed.uid if result.postponed else ""
            if math.isfinite(result.look_again_at):
                asyncio.get_running_loop().call_later(
                    max(_MIN_WAIT_SECONDS, result.look_again_at - now), parts.pending.requeue, Change.CAPACITY
                )
            for gang, again_at in result.look_again_at_gangs.items():
                asyncio.get_running_loop().call_later(again_at - now, parts.pending.look_at_pod_group, gang)
            if result.released:
                parts.pending.requeue(_ROOM)
            self._end_hold_at(result.held_until, now)
            if result.decisions:
                await self._pipeline.carry_out(result.decisions)
            rest = parts.load.min_cycle_interval_seconds - (clock() - started)
            await asyncio.sleep(_MIN_WAIT_SECONDS if result.out_of_time or result.put_off else max(0.0, rest))

    def _note_beyond_heads(self) -> None:
        for pod, why in self._beyond.take(_MAX_NOTED):
            self._parts.reporter.note(pod, why)

    def _end_hold_at(self, until: float, now: float) -> None:
        """Have a cycle look at the gang that holds room once its time is over."""
        holder = self._parts.cluster.pod_groups.held_room.holder
        if holder is None or until == self._hold_ends_at or not math.isfinite(until):
            return
        self._hold_ends_at = until
        wait = max(_MIN_WAIT_SECONDS, until - now)
        asyncio.get_running_loop().call_later(wait, self._parts.pending.look_at_pod_group, holder)

    def _take(self, result: CycleResult, now: float) -> None:
        """Bring the queue, the reports and the metrics up to date with a cycle's result."""
        parts, metrics, queue = self._parts, self._context.metrics, self._parts.pending.queue
        queue.note_turns(result.turns)
        for decision in result.decisions:
            queue.take(decision.pod.uid)
            parts.reporter.forget(decision.pod.uid)
            metrics.decisions.labels(decision.assignment.basis.lower()).inc()
        mark_failures(queue, result, now)
        for failure in result.unschedulable:
            parts.reporter.note(failure.pod, failure.diagnosis)
            if failure.error is None and failure.diagnosis.gang is None and not _is_of_gang(failure.pod, result):
                self.on_unschedulable(failure.pod, failure.diagnosis)
            elif isinstance(failure.error, TooManyComparisons):
                continue  # its event says so
            elif failure.error is not None and (where := repr(failure.error)) not in self._logged:
                self._logged = {*self._logged, where} if len(self._logged) < _MAX_LOGGED else {where}
                logger.error("%s: scheduling was stopped by an internal error", failure.pod.key, exc_info=failure.error)
        self._beyond.add(result)
        self._note_beyond_heads()
        for key, diagnosis in result.gangs.items():
            parts.group_status.note(key, diagnosis)
            metrics.gangs.labels(_outcome_of_gang(diagnosis)).inc()
            if diagnosis is not None and not diagnosis.error:
                self.on_gang_unschedulable(key, diagnosis)
        parts.counts.add(result)
        for (_, plugin), nodes in result.abstentions.items():
            metrics.abstentions.labels(plugin).inc(nodes)
        metrics.decisions.labels("unschedulable").inc(len(result.unschedulable))
        metrics.pending.set(len(queue))


def _is_of_gang(pod: PodView, result: CycleResult) -> bool:
    """Whether the cycle has decided on the pod's gang: nobody is evicted for one pod before its gang is bound."""
    return (pod.namespace, pod.group) in result.gangs


def _outcome_of_gang(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return "placed"
    return "waiting" if diagnosis.condition_reason == WAITING else "unschedulable"


def _cpu_seconds_since(began: float) -> float:
    """CPU time: on a machine that gives the process little of it, a cycle still decides on more than one pod."""
    return time.thread_time() - began
