"""Report to people, and to cluster autoscalers, why a pod finds no node.

An event and the condition PodScheduled=False, as kube-scheduler writes them; but a pod that waits for a second because
all nodes are busy is no news, so both are written only when it has waited for a while, and again only when the reasons
have changed and some time has passed. They are paced: writes on this path must not slow down bindings. The condition of
a pod that is nominated is written with its nomination, as by kube-scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.api.timestamps import format_timestamp
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.scheduling.event_notes import pod_subject
from concerto.controllers.scheduling.reports_in_turn import next_reports
from concerto.kube import ApiError, KubeError, Object, Session
from concerto.kube.events import EventRecorder
from concerto.kube.resources import PODS
from concerto.kube.session import STRATEGIC_PATCH, Patch
from concerto.scheduling.reasons import UNSCHEDULABLE, Diagnosis

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReporterSettings:
    """When a pod that finds no node is reported.

    Attributes:
        patience_seconds: a pod that finds a node within this time is not reported.
        patience_beside_preemptions_seconds: the same while room is made for many pods, for a pod that pods to evict
            have not been searched for yet. Its condition is written with its nomination, if its turn comes in time.
        repeat_seconds: between two reports on one pod, if the reasons have changed.
        tick_seconds: how often pods that are due are looked for.
        max_reports_per_tick: reports in one tick.
        max_concurrent_reports: writes of conditions in flight.
    """

    patience_seconds: float = 2.0
    patience_beside_preemptions_seconds: float = 15.0
    repeat_seconds: float = 30.0
    tick_seconds: float = 0.5
    max_reports_per_tick: int = 40
    max_concurrent_reports: int = 8


@dataclass(slots=True)
class _Waiting:
    pod: PodView
    message: str
    reasons: frozenset[str]
    since: float
    reason: str = UNSCHEDULABLE
    preemption: str = ""
    is_nominated: bool = False  # and its condition was written with its nomination
    reported: frozenset[str] | None = None  # the reasons of the last report
    reported_at: float = float("-inf")

    @property
    def text(self) -> str:
        """Why no node took the pod, and why no pods are evicted for it."""
        return f"{self.message} {self.preemption}" if self.preemption else self.message


class UnschedulableReporter:
    """Knows the pods that found no node, and reports on them in `run`."""

    def __init__(
        self,
        session: Session,
        recorder: EventRecorder,
        clock: Callable[[], float],
        settings: ReporterSettings | None = None,
        many_preemptions: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing is written before `run`.

        Args:
            session: the way to the API server.
            recorder: of the events.
            clock: seconds since the epoch.
            settings: when a pod is reported.
            many_preemptions: whether room is being made for many pods.
        """
        self._session = session
        self._recorder = recorder
        self._clock = clock
        self._settings = settings or ReporterSettings()
        self._many_preemptions = many_preemptions
        self._waiting: dict[str, _Waiting] = {}

    def note(self, pod: PodView, diagnosis: Diagnosis) -> None:
        """A cycle found no node for the pod, or for one like it."""
        known = self._waiting.get(pod.uid)
        reasons = frozenset(diagnosis.reasons)
        if known is None:
            known = self._waiting[pod.uid] = _Waiting(pod, diagnosis.message, reasons, self._clock())
        known.pod, known.message, known.reasons = pod, diagnosis.message, reasons
        known.reason = diagnosis.condition_reason

    def note_preemption(self, uid: str, message: str) -> str:
        """What came of the search for pods to evict for a pod without a node; returns all that is known of it.

        It is news where the pod was nominated before.
        """
        waiting = self._waiting.get(uid)
        if waiting is None:
            return message
        if waiting.is_nominated:
            waiting.is_nominated, waiting.reported, waiting.reported_at = False, None, float("-inf")
        waiting.preemption = message
        return waiting.text

    def conditions_beside_nomination(self, uid: str) -> list[Object]:
        """The condition of a pod that is about to be nominated, for the same write; none if the pod is not known.

        The pod counts as reported from now on: the event that names its node was recorded already.
        """
        waiting = self._waiting.get(uid)
        if waiting is None:
            return []
        waiting.is_nominated, waiting.reported, waiting.reported_at = True, waiting.reasons, self._clock()
        return [_build_condition(waiting.pod, waiting.text, wall_timestamp(), waiting.reason)]

    def forget(self, uid: str) -> None:
        """The pod has found a node, or is gone."""
        self._waiting.pop(uid, None)

    async def run(self) -> None:
        """Report until cancelled."""
        limit = asyncio.Semaphore(self._settings.max_concurrent_reports)
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            await asyncio.gather(*(self._report(waiting, limit) for waiting in self._due()))

    def _due(self) -> list[_Waiting]:
        """Pods to report on now: those never reported first, the namespaces in turn, the longest wait first.

        Numbers in the message change all the time in a busy cluster; only other reasons are news.
        """
        now, settings = self._clock(), self._settings
        many = self._many_preemptions()
        patience_before_search = settings.patience_beside_preemptions_seconds if many else settings.patience_seconds
        due = [
            w
            for w in self._waiting.values()
            if w.reasons != w.reported
            and now - w.since >= (settings.patience_seconds if w.preemption else patience_before_search)
            and now - w.reported_at >= settings.repeat_seconds
        ]
        due.sort(key=lambda w: (w.reported_at, w.since))
        return next_reports(
            due,
            settings.max_reports_per_tick,
            is_first=lambda w: w.reported is None,
            namespace=lambda w: w.pod.namespace,
        )

    async def _report(self, waiting: _Waiting, limit: asyncio.Semaphore) -> None:
        async with limit:
            if self._waiting.get(waiting.pod.uid) is waiting:  # it has found no node meanwhile
                waiting.reported, waiting.reported_at = waiting.reasons, self._clock()
                await self._write(waiting)

    async def _write(self, waiting: _Waiting) -> None:
        pod = waiting.pod
        self._recorder.record(
            pod_subject(pod),
            type="Warning",
            reason="FailedScheduling",
            action="Scheduling",
            note=waiting.text,
        )
        try:
            await self._session.request(
                "PATCH",
                PODS.path(pod.namespace, pod.name, "status"),
                body=Patch(
                    STRATEGIC_PATCH, build_unschedulable_patch(pod, waiting.text, wall_timestamp(), waiting.reason)
                ),
                attempts=1,
            )
        except ApiError as error:
            logger.debug("%s/%s: %s", pod.namespace, pod.name, error)  # it is gone, or another of its name is there
        except KubeError as error:
            logger.info("%s/%s: %s", pod.namespace, pod.name, error)


def build_unschedulable_patch(pod: PodView, message: str, now: str, reason: str = UNSCHEDULABLE) -> Object:
    """A strategic merge patch that sets PodScheduled=False and no other condition; the UID is a precondition."""
    return {"metadata": {"uid": pod.uid}, "status": {"conditions": [_build_condition(pod, message, now, reason)]}}


def _build_condition(pod: PodView, message: str, now: str, reason: str) -> Object:
    # The time moves with the status only: autoscalers and people measure by it how long the pod waits
    since = now if pod.unscheduled_since is None else format_timestamp(pod.unscheduled_since)
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }
