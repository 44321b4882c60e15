"""The condition PodGroupInitiallyScheduled of PodGroups, as kube-scheduler writes it.

Once it is True it stays so. A group is written only if the operator places all of its pods. False is written once a
group has waited for a while, and again only when the reasons have changed and some time has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from concerto.api.podgroup import INITIALLY_SCHEDULED, GroupKey, PodGroup
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.scheduling.binding_load import BindingLoad
from concerto.controllers.scheduling.condition_writes import store_condition
from concerto.controllers.scheduling.reports_in_turn import ReportLane, ReportPace, ReportsInTurn
from concerto.kube import Object, Session
from concerto.kube.resources import POD_GROUPS
from concerto.scheduling.reasons import SCHEDULER_ERROR, UNSCHEDULABLE, Diagnosis
from concerto.scheduling.state.cluster import ClusterState

_MAX_MESSAGE = 32768
"""What the API server takes."""


@dataclass(frozen=True)
class PodGroupStatusSettings:
    """When conditions are written.

    Attributes:
        patience_seconds: a group that is scheduled within this time gets no condition before that.
        repeat_seconds: between two conditions of one group that is not scheduled.
        retry_seconds: between two writes of a condition, if the API server failed to store the first one.
        write_timeout_seconds: for one write.
        pace: how many conditions are written.
    """

    patience_seconds: float = 2.0
    repeat_seconds: float = 30.0
    retry_seconds: float = 5.0
    write_timeout_seconds: float = 4.0
    pace: ReportPace = field(default_factory=lambda: ReportPace(min_per_second=40.0))


@dataclass(slots=True)
class _Waiting:
    uid: str  # of the group
    diagnosis: Diagnosis
    reasons: frozenset[str]
    since: float
    written: frozenset[str] | None = None  # the reasons of the last condition
    written_at: float = float("-inf")
    not_before: float = float("-inf")  # it is tried again


class PodGroupStatus:
    """Knows which PodGroups have news, and writes their conditions in `run`."""

    def __init__(
        self,
        session: Session,
        cluster: ClusterState,
        clock: Callable[[], float],
        schedulers: Container[str],
        load: BindingLoad,
        settings: PodGroupStatusSettings | None = None,
    ) -> None:
        """Nothing is written before `run`.

        Args:
            session: the way to the API server.
            cluster: the cluster.
            clock: seconds since the epoch.
            schedulers: scheduler names whose pods the operator places. Other schedulers write the conditions of theirs.
            load: the writes that place pods, which come first.
            settings: when conditions are written.
        """
        self._session = session
        self._cluster = cluster
        self._clock = clock
        self._schedulers = schedulers
        self._settings = settings = settings or PodGroupStatusSettings()
        self._changed: set[GroupKey] = set()
        self._waiting: dict[GroupKey, _Waiting] = {}
        self._scheduled: set[GroupKey] = set()  # of which True is to be written
        self._due: ReportsInTurn[GroupKey] = ReportsInTurn(
            settings.pace, clock, holds_back=lambda: load.busy, prepare=self._look_at_changed
        )

    def note_changed(self, keys: Iterable[GroupKey]) -> None:
        """These PodGroups or their pods have changed."""
        for key in keys:
            if self._cluster.pod_groups.get(key) is None:  # a standby, which does not `run`, keeps nothing of those
                self._changed.discard(key)
                self._forget(key)
            else:
                self._changed.add(key)

    def note(self, key: GroupKey, diagnosis: Diagnosis | None) -> None:
        """A cycle has looked at the group: None, or why none of its pods was placed."""
        group, waiting = self._cluster.pod_groups.get(key), self._waiting.get(key)
        if key in self._scheduled or group is None:
            return
        if waiting is not None and waiting.uid != group.uid:  # another group had its name
            self._forget(key)
            waiting = None
        if diagnosis is None:
            if self._waiting.pop(key, None) is not None:
                self._due.drop(key)
            return
        reasons = frozenset(diagnosis.reasons)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting(group.uid, diagnosis, reasons, self._clock())
            self._update(key, waiting)
        waiting.diagnosis = diagnosis
        if waiting.reasons != reasons:
            waiting.reasons = reasons
            self._update(key, waiting)

    async def run(self) -> None:
        """Write until cancelled: groups that no condition was written of first, namespaces in turn."""
        await self._due.run(self._report)

    def _look_at_changed(self) -> None:
        """Have True written of the groups that are scheduled by now, and nothing of those that are gone."""
        changed, self._changed = self._changed, set()
        for key in changed:
            group = self._cluster.pod_groups.get(key)
            if group is None or group.scheduled[0] == "True":
                self._forget(key)
            elif key not in self._scheduled and self._is_scheduled(group):
                self._forget(key)
                self._scheduled.add(key)
                self._due.put(key, ReportLane(group.namespace, is_first=True), self._clock())

    def _forget(self, key: GroupKey) -> None:
        self._waiting.pop(key, None)
        self._scheduled.discard(key)
        self._due.drop(key)

    def _update(self, key: GroupKey, waiting: _Waiting) -> None:
        """Have False written once the group has waited for long enough, if there is news."""
        if waiting.reasons == waiting.written:
            self._due.drop(key)
            return
        settings = self._settings
        due_at = max(
            waiting.since + settings.patience_seconds,
            waiting.written_at + settings.repeat_seconds,
            waiting.not_before,
        )
        self._due.put(key, ReportLane(key[0], waiting.written is None), due_at)

    async def _report(self, key: GroupKey) -> None:
        """Write the group's condition, if that is still to be written."""
        group, waiting = self._cluster.pod_groups.get(key), self._waiting.get(key)
        if group is None or group.scheduled[0] == "True":
            self._forget(key)
        elif key in self._scheduled:
            self._scheduled.discard(key)
            if not self._is_scheduled(group):
                return
            asked_seconds = await self._write(group, build_condition_patch(group, "True", "Scheduled", ""))
            if asked_seconds is not None:
                self._scheduled.add(key)
                self._due.put(key, ReportLane(group.namespace, is_first=True), self._retry_at(asked_seconds))
        elif waiting is not None and waiting.reasons != waiting.written:
            waiting.written, waiting.written_at = waiting.reasons, self._clock()
            self._due.drop(key)
            reason = SCHEDULER_ERROR if waiting.diagnosis.condition_reason == SCHEDULER_ERROR else UNSCHEDULABLE
            body = build_condition_patch(group, "False", reason, waiting.diagnosis.message)
            asked_seconds = await self._write(group, body)
            if asked_seconds is not None and self._waiting.get(key) is waiting:
                waiting.written, waiting.written_at = None, float("-inf")
                waiting.not_before = self._retry_at(asked_seconds)
                self._update(key, waiting)

    def _is_scheduled(self, group: PodGroup) -> bool:
        members = self._cluster.pod_groups.of(group.key)
        if any(name not in self._schedulers for name in members.schedulers):
            return False
        return members.bound >= max(1, group.min_count)

    def _retry_at(self, asked_seconds: float) -> float:
        return self._clock() + max(asked_seconds, self._settings.retry_seconds)

    async def _write(self, group: PodGroup, body: Object) -> float | None:
        """Write the condition; returns the same as `store_condition`."""
        path, timeout = POD_GROUPS.path(group.namespace, group.name, "status"), self._settings.write_timeout_seconds
        return await store_condition(self._session, path, body, timeout_seconds=timeout)


def build_condition_patch(group: PodGroup, status: str, reason: str, message: str) -> Object:
    """A strategic merge patch that sets the condition and no other; the UID is a precondition."""
    return {
        "metadata": {"uid": group.uid},
        "status": {
            "conditions": [
                {
                    "type": INITIALLY_SCHEDULED,
                    "status": status,
                    "reason": reason,
                    "message": message[:_MAX_MESSAGE],
                    "observedGeneration": group.generation,
                    "lastTransitionTime": wall_timestamp(),
                }
            ]
        },
    }
