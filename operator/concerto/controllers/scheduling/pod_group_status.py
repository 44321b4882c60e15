"""The condition PodGroupInitiallyScheduled of PodGroups, as kube-scheduler writes it.

Once it is True it stays so. A group is written only if the operator places all of its pods. False is written once a
group has waited for a while, and again only when the reasons have changed and some time has passed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from concerto.api.podgroup import INITIALLY_SCHEDULED, GroupKey, PodGroup
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.scheduling.reports_in_turn import next_reports
from concerto.kube import ApiError, KubeError, Object, ServerError, Session, TooManyRequests
from concerto.kube.resources import POD_GROUPS
from concerto.kube.session import STRATEGIC_PATCH, Patch
from concerto.scheduling.reasons import SCHEDULER_ERROR, UNSCHEDULABLE, Diagnosis
from concerto.scheduling.state.cluster import ClusterState

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 32768
"""What the API server takes."""


@dataclass(frozen=True)
class PodGroupStatusSettings:
    """When conditions are written.

    Attributes:
        patience_seconds: a group that is scheduled within this time gets no condition before that.
        repeat_seconds: between two conditions of one group that is not scheduled.
        tick_seconds: how often groups that are due are looked for.
        retry_seconds: the same, after the API server failed to store a condition.
        max_writes_per_tick: conditions in one tick.
    """

    patience_seconds: float = 2.0
    repeat_seconds: float = 30.0
    tick_seconds: float = 0.5
    retry_seconds: float = 5.0
    max_writes_per_tick: int = 20


@dataclass(slots=True)
class _Waiting:
    diagnosis: Diagnosis
    since: float
    written: frozenset[str] | None = None  # the reasons of the last condition
    written_at: float = float("-inf")


class PodGroupStatus:
    """Knows which PodGroups have news, and writes their conditions in `run`."""

    def __init__(
        self,
        session: Session,
        cluster: ClusterState,
        clock: Callable[[], float],
        schedulers: Container[str],
        settings: PodGroupStatusSettings | None = None,
    ) -> None:
        """Nothing is written before `run`.

        Args:
            session: the way to the API server.
            cluster: the cluster.
            clock: seconds since the epoch.
            schedulers: scheduler names whose pods the operator places. Other schedulers write the conditions of theirs.
            settings: when conditions are written.
        """
        self._session = session
        self._cluster = cluster
        self._clock = clock
        self._schedulers = schedulers
        self._settings = settings or PodGroupStatusSettings()
        self._changed: set[GroupKey] = set()
        self._waiting: dict[GroupKey, _Waiting] = {}

    def note_changed(self, keys: Iterable[GroupKey]) -> None:
        """These PodGroups or their pods have changed."""
        self._changed.update(keys)

    def note(self, key: GroupKey, diagnosis: Diagnosis | None) -> None:
        """A cycle has looked at the group: None, or why none of its pods was placed."""
        waiting = self._waiting.get(key)
        if diagnosis is None:
            self._waiting.pop(key, None)
        elif waiting is None:
            self._waiting[key] = _Waiting(diagnosis, self._clock())
        else:
            waiting.diagnosis = diagnosis

    async def run(self) -> None:
        """Write until cancelled."""
        wait = self._settings.tick_seconds
        while True:
            await asyncio.sleep(wait)
            taken = await self.write_due()
            wait = self._settings.tick_seconds if taken else self._settings.retry_seconds

    async def write_due(self) -> bool:
        """Write what is due; False if the API server failed to store some of it, which is then due again."""
        return all(await asyncio.gather(*(self._write(group, body) for group, body in self.due())))

    def due(self) -> list[tuple[PodGroup, Object]]:
        """Groups whose conditions are to be written now, and the conditions; at most so many as one tick writes."""
        groups, now, limit = self._cluster.pod_groups, self._clock(), self._settings.max_writes_per_tick
        found: list[tuple[PodGroup, Object]] = []
        for key in list(self._changed):
            if len(found) == limit:
                return found
            self._changed.discard(key)
            group = groups.get(key)
            if group is None:
                self._waiting.pop(key, None)
            elif group.scheduled[0] != "True" and self._is_scheduled(group):
                self._waiting.pop(key, None)
                found.append((group, build_condition_patch(group, "True", "Scheduled", "")))
        for group, waiting in self._unscheduled(now, limit - len(found)):
            waiting.written, waiting.written_at = frozenset(waiting.diagnosis.reasons), now
            reason = SCHEDULER_ERROR if waiting.diagnosis.condition_reason == SCHEDULER_ERROR else UNSCHEDULABLE
            found.append((group, build_condition_patch(group, "False", reason, waiting.diagnosis.message)))
        return found

    def _unscheduled(self, now: float, limit: int) -> list[tuple[PodGroup, _Waiting]]:
        """Groups of which False is to be written now: at most so many, those it was never written of first."""
        due: list[tuple[PodGroup, _Waiting]] = []
        for key, waiting in list(self._waiting.items()):
            group = self._cluster.pod_groups.get(key)
            if group is None or group.scheduled[0] == "True":
                del self._waiting[key]
            elif self._is_due(waiting, now):
                due.append((group, waiting))
        due.sort(key=lambda each: (each[1].written_at, each[1].since))
        return next_reports(
            due, limit, is_first=lambda each: each[1].written is None, namespace=lambda each: each[0].namespace
        )

    def _is_due(self, waiting: _Waiting, now: float) -> bool:
        settings = self._settings
        is_news = waiting.written != frozenset(waiting.diagnosis.reasons)
        waited = now - waiting.since >= settings.patience_seconds
        return is_news and waited and now - waiting.written_at >= settings.repeat_seconds

    def _is_scheduled(self, group: PodGroup) -> bool:
        members = self._cluster.pod_groups.members(group.key)
        if any(pod.scheduler_name not in self._schedulers for pod in members.values()):
            return False
        return sum(self._cluster.is_bound(uid) for uid in members) >= max(1, group.min_count)

    async def _write(self, group: PodGroup, body: Object) -> bool:
        """Returns False if the API server failed to store it, and may succeed later."""
        try:
            path = POD_GROUPS.path(group.namespace, group.name, "status")
            await self._session.request("PATCH", path, body=Patch(STRATEGIC_PATCH, body), attempts=1)
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, TooManyRequests | ServerError):
                # It is gone, or another has its name
                logger.debug("PodGroup %s/%s: %s", group.namespace, group.name, error)
                return True
            logger.info("PodGroup %s/%s: %s", group.namespace, group.name, error)
            self._changed.add(group.key)
            if (waiting := self._waiting.get(group.key)) is not None:
                waiting.written, waiting.written_at = None, float("-inf")
            return False
        return True


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
