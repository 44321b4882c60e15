"""What the leader does beside placing pods: deletes placement records, and reports what is overdue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from concerto.api.doubling import doubling_waits
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.event_notes import pod_subject
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.kube.references import build_event_subject
from concerto.kube.resources import NODE_CAPACITIES
from concerto.scheduling.gangs.recovery import note_unfinished
from concerto.scheduling.state.changes import Change

MAX_RELEASED = 500
"""Pods whose start has failed for long that are counted anew before others get the event loop: 50 ms."""
MAX_REPORTED = 1000
"""Pods that no agent has counted, and nodes whose agents do not report, that are reported at a time: 30 ms."""


@dataclass(frozen=True)
class HousekeepingSettings:
    """How often.

    Attributes:
        interval_seconds: between two looks for records that can be deleted.
        max_interval_seconds: the interval doubles up to this while a record cannot be deleted.
        report_interval_seconds: between two looks for what is overdue.
    """

    interval_seconds: float = 0.5
    max_interval_seconds: float = 30.0
    report_interval_seconds: float = 5.0


class Housekeeping:
    """Runs while this process leads."""

    def __init__(
        self,
        context: Context,
        parts: SchedulerParts,
        reports: OverdueReports,
        settings: HousekeepingSettings | None = None,
    ) -> None:
        """Nothing is done before `run`."""
        self._context = context
        self._cluster = parts.cluster
        self._pending = parts.pending
        self._records = parts.records
        self._reports = reports
        self._settings = settings or HousekeepingSettings()

    async def run(self) -> None:
        """Delete and report until cancelled."""
        context, settings = self._context, self._settings
        waits, report_at = self._waits(), 0.0
        while True:
            await asyncio.sleep(next(waits))
            if context.clock() >= report_at:
                self._reports.report_overdue_pods()
                self._reports.report_stale_agents()
                self._reports.report_missing_agents()
                report_at = context.clock() + settings.report_interval_seconds
            if adopted := self._records.adopt_found():
                note_unfinished(self._cluster, self._records.cycles_of(adopted))
            self._pending.requeue_pod_groups()
            self._pending.requeue(self._cluster.end_avoidance(context.clock()))
            are_left = True
            while are_left:
                are_left = self.release_unstarted()
                await asyncio.sleep(0)
            if await self._records.delete_closable():
                waits = self._waits()
            context.metrics.set_total(context.metrics.rejected_metrics, self._cluster.load.rejected)

    def release_unstarted(self) -> bool:
        """Release the measured capacity of some pods whose start has failed for long; whether there may be more."""
        now, change = self._context.clock(), Change.NOTHING
        due = self._cluster.unstarted.due(now, MAX_RELEASED)
        for pod in due:
            change |= self._cluster.set_pod(pod, now)
        self._pending.requeue(change)
        return len(due) == MAX_RELEASED

    def _waits(self) -> Iterator[float]:
        return doubling_waits(self._settings.interval_seconds, self._settings.max_interval_seconds)


class OverdueReports:
    """Events about pods that no agent has counted, and about agents that do not report."""

    def __init__(self, context: Context, parts: SchedulerParts, capacity_uids: Mapping[str, str]) -> None:
        """Nothing was reported yet.

        Args:
            context: what the scheduler's parts share.
            parts: the ledger knows what is overdue, the profiles hold the limits, the records know pods in flight.
            capacity_uids: UIDs of NodeCapacities by node.
        """
        self._context = context
        self._cluster = parts.cluster
        self._profiles = parts.profiles
        self._records = parts.records
        self._capacity_uids = capacity_uids
        self._reported_pods: set[str] = set()
        self._reported_nodes: set[str] = set()

    def report_overdue_pods(self) -> None:
        """Bound pods that no agent has counted for long: they go on taking capacity, and an event explains it."""
        ttl = self._profiles.unbound_ttl_seconds()
        found = self._cluster.ledger.overdue(self._context.clock(), ttl) if ttl else []
        overdue = {pod.uid for pod in found if pod.bound}
        self._reported_pods &= overdue
        for uid in islice(overdue - self._reported_pods, MAX_REPORTED):
            assignment = self._records.assignment_of(uid)
            if assignment is None:
                continue
            self._reported_pods.add(uid)
            self._context.recorder.record(
                pod_subject(assignment),
                type="Warning",
                reason="NotObserved",
                action="Observing",
                note=f"Bound to {assignment.node} more than {ttl:.0f} s ago, and the node's agent has not counted the "
                "pod yet: the pod has not started, or the agent does not report. The pod goes on taking "
                "measured capacity of the node.",
            )

    def report_stale_agents(self) -> None:
        """Nodes whose agent has missed its heartbeats: an event on their NodeCapacity, and a gauge."""
        if not self._profiles:
            return
        missed = self._profiles.heartbeats_missed()
        stale_after = self._profiles.stale_after_seconds()
        stale = set(self._cluster.ledger.nodes.with_stale_agent(self._context.clock(), missed))
        self._context.metrics.nodes_with_stale_agent.set(len(stale))
        new = {*islice(stale - self._reported_nodes, MAX_REPORTED)}
        for node in new:
            self._context.recorder.record(
                build_event_subject(NODE_CAPACITIES, node, uid=self._capacity_uids.get(node, "")),
                type="Warning",
                reason="AgentNotReporting",
                action="Observing",
                note=f"The node's agent has missed {missed} heartbeats. Its last status, less what was placed since, "
                f"is used until it is {stale_after:.0f} s old. Look at the agent's pod on that node.",
            )
        self._reported_nodes = (self._reported_nodes & stale) | new

    def report_missing_agents(self) -> None:
        """Ready nodes whose agent has never reported, as a gauge; 0 where no node is measured, which may be meant."""
        nodes, reported = self._cluster.nodes, ~np.isnan(self._cluster.measured.capacity)
        missing = nodes.exists & nodes.ready & ~nodes.agentless & ~reported
        count = int(np.count_nonzero(missing)) if (nodes.exists & reported).any() else 0
        self._context.metrics.nodes_without_agent.set(count)
