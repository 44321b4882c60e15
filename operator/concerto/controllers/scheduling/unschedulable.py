"""Report to people, and to cluster autoscalers, why a pod finds no node.

An event and the condition PodScheduled=False, as kube-scheduler writes them; but a pod that waits for a second because
all nodes are busy is no news, so both are written only when it has waited for a while, and again only when the reasons
have changed and some time has passed. They are paced (`ReportPace`): writes on this path must not slow down bindings.
The condition of a pod that is nominated is written with its nomination, as by kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from concerto.api.pod import PodView
from concerto.api.timestamps import format_timestamp
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.scheduling.binding_load import BindingLoad
from concerto.controllers.scheduling.condition_writes import store_condition
from concerto.controllers.scheduling.event_notes import pod_subject
from concerto.controllers.scheduling.reports_in_turn import ReportLane, ReportPace, ReportsInTurn
from concerto.kube import Object, Session
from concerto.kube.events import EventRecorder
from concerto.kube.resources import PODS
from concerto.scheduling.reasons import UNSCHEDULABLE, Diagnosis


@dataclass(frozen=True)
class ReporterSettings:
    """When a pod that finds no node is reported.

    Attributes:
        patience_seconds: a pod that finds a node within this time is not reported.
        patience_beside_preemptions_seconds: the same while room is made for many pods, for a pod that pods to evict
            have not been searched for yet. Its condition is written with its nomination, if its turn comes in time.
        repeat_seconds: between two reports on one pod, if the reasons have changed.
        retry_seconds: between two writes of a condition, if the API server failed to store the first one.
        write_timeout_seconds: for one write of a condition.
        pace: how many conditions are written.
    """

    patience_seconds: float = 2.0
    patience_beside_preemptions_seconds: float = 15.0
    repeat_seconds: float = 30.0
    retry_seconds: float = 5.0
    write_timeout_seconds: float = 4.0
    pace: ReportPace = field(default_factory=ReportPace)


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
    recorded: frozenset[str] | None = None  # the reasons of the last event, if the condition could not be stored
    not_before: float = float("-inf")  # it is tried again

    @property
    def text(self) -> str:
        """Why no node took the pod, and why no pods are evicted for it."""
        return f"{self.message} {self.preemption}" if self.preemption else self.message

    @property
    def is_news(self) -> bool:
        """Whether the reasons are not those of the last report. Numbers change all the time in a busy cluster."""
        return self.reasons != self.reported

    def forget_report(self) -> None:
        """The pod counts as one that was never reported on."""
        self.is_nominated, self.reported, self.reported_at = False, None, float("-inf")


class UnschedulableReporter:
    """Knows the pods that found no node, and reports on them in `run`."""

    def __init__(
        self,
        session: Session,
        recorder: EventRecorder,
        clock: Callable[[], float],
        settings: ReporterSettings | None = None,
        load: BindingLoad | None = None,
    ) -> None:
        """Nothing is written before `run`.

        Args:
            session: the way to the API server.
            recorder: of the events.
            clock: seconds since the epoch.
            settings: when a pod is reported.
            load: the writes that place pods, which come first.
        """
        self._session = session
        self._recorder = recorder
        self._clock = clock
        self._settings = settings = settings or ReporterSettings()
        self._waiting: dict[str, _Waiting] = {}
        beside = settings.patience_beside_preemptions_seconds - settings.patience_seconds
        self._due: ReportsInTurn[str] = ReportsInTurn(
            settings.pace,
            clock,
            holds_back=lambda: load is not None and load.busy,
            delay=lambda: beside if load is not None and load.many_preemptions else 0.0,
        )

    def note(self, pod: PodView, diagnosis: Diagnosis) -> None:
        """A cycle found no node for the pod, or for one like it."""
        known = self._waiting.get(pod.uid)
        reasons = frozenset(diagnosis.reasons)
        if known is None:
            known = self._waiting[pod.uid] = _Waiting(pod, diagnosis.message, reasons, self._clock())
            self._update(pod.uid, known)
        known.pod, known.message, known.reason = pod, diagnosis.message, diagnosis.condition_reason
        if known.reasons != reasons:
            known.reasons = reasons
            self._update(pod.uid, known)

    def note_preemption(self, uid: str, message: str) -> str:
        """What came of the search for pods to evict for a pod without a node; returns all that is known of it.

        It is news where the pod was nominated before.
        """
        waiting = self._waiting.get(uid)
        if waiting is None:
            return message
        if waiting.is_nominated:
            waiting.forget_report()
        waiting.preemption = message
        self._update(uid, waiting)
        return waiting.text

    def conditions_beside_nomination(self, uid: str) -> list[Object]:
        """The condition of a pod that is about to be nominated, for the same write; none if the pod is not known.

        The pod counts as reported from now on: the event that names its node was recorded already.
        """
        waiting = self._waiting.get(uid)
        if waiting is None:
            return []
        waiting.is_nominated = True
        self._note_reported(uid, waiting)
        return [_build_condition(waiting.pod, waiting.text, wall_timestamp(), waiting.reason)]

    def forget(self, uid: str) -> None:
        """The pod has found a node, or is gone."""
        if self._waiting.pop(uid, None) is not None:
            self._due.drop(uid)

    async def run(self) -> None:
        """Report until cancelled: pods never reported first, namespaces in turn, the longest wait first."""
        await self._due.run(self._report)

    def _update(self, uid: str, waiting: _Waiting) -> None:
        """Have the pod reported on once it has waited for long enough, if there is news."""
        if not waiting.is_news:
            self._due.drop(uid)
            return
        settings, is_first = self._settings, waiting.reported is None
        due_at = max(
            waiting.since + settings.patience_seconds,
            waiting.reported_at + settings.repeat_seconds,
            waiting.not_before,
        )
        # Until its turn has come to have pods to evict searched for
        may_wait = is_first and not waiting.preemption
        self._due.put(uid, ReportLane(waiting.pod.namespace, is_first, may_wait), due_at)

    def _note_reported(self, uid: str, waiting: _Waiting) -> None:
        waiting.reported, waiting.reported_at = waiting.reasons, self._clock()
        self._due.drop(uid)

    async def _report(self, uid: str) -> None:
        waiting = self._waiting.get(uid)
        if waiting is None or not waiting.is_news:  # it has found a node meanwhile, or was nominated
            return
        reasons = waiting.reasons
        if waiting.recorded != reasons:
            self._recorder.record(
                pod_subject(waiting.pod),
                type="Warning",
                reason="FailedScheduling",
                action="Scheduling",
                note=waiting.text,
            )
        waiting.recorded = None
        self._note_reported(uid, waiting)
        asked_seconds = await self._write(waiting)
        if asked_seconds is None or waiting.is_nominated or self._waiting.get(uid) is not waiting:
            return
        waiting.forget_report()
        wait = max(asked_seconds, self._settings.retry_seconds)
        waiting.recorded, waiting.not_before = reasons, self._clock() + wait
        self._update(uid, waiting)

    async def _write(self, waiting: _Waiting) -> float | None:
        """Write the condition; returns the same as `store_condition`."""
        pod = waiting.pod
        patch = build_unschedulable_patch(pod, waiting.text, wall_timestamp(), waiting.reason)
        path, timeout = PODS.path(pod.namespace, pod.name, "status"), self._settings.write_timeout_seconds
        return await store_condition(self._session, path, patch, timeout_seconds=timeout)


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
