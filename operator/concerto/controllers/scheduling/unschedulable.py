"""Tell people, and cluster autoscalers, why a pod finds no node.

An event and the condition PodScheduled=False, as kube-scheduler writes them; but a pod that waits for a second because
all nodes are busy is no news, so both are written only when it has waited for a while, and again only when the reasons
have changed and some time has passed. They are paced: writes on this path must not slow down bindings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.scheduling.notes import pod_subject
from concerto.kube import ApiError, KubeError, Object, Session
from concerto.kube.events import EventRecorder
from concerto.kube.resources import PODS

logger = logging.getLogger(__name__)

STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class ReporterSettings:
    """When a pod's want of a node is told.

    Attributes:
        patience_seconds: a pod that finds a node within this time is not spoken of.
        repeat_seconds: between two reports on one pod, if the reasons have changed.
        tick_seconds: how often waiting pods are looked through.
        reports_per_tick: reports at most, oldest waiting first.
    """

    patience_seconds: float = 2.0
    repeat_seconds: float = 30.0
    tick_seconds: float = 0.5
    reports_per_tick: int = 20


@dataclass(slots=True)
class _Waiting:
    pod: PodView
    message: str
    since: float
    told: str = ""
    told_at: float = float("-inf")


class UnschedulableReporter:
    """Keeps the pods that found no node, and reports on them in `run`."""

    def __init__(
        self,
        session: Session,
        recorder: EventRecorder,
        clock: Callable[[], float],
        settings: ReporterSettings | None = None,
    ) -> None:
        """Nothing is written before `run`."""
        self._session = session
        self._recorder = recorder
        self._clock = clock
        self._settings = settings or ReporterSettings()
        self._waiting: dict[str, _Waiting] = {}

    def note(self, pod: PodView, message: str) -> None:
        """A cycle found no node for the pod."""
        known = self._waiting.get(pod.uid)
        if known is None:
            self._waiting[pod.uid] = _Waiting(pod, message, self._clock())
        else:
            known.pod, known.message = pod, message

    def forget(self, uid: str) -> None:
        """The pod has found a node, or is gone."""
        self._waiting.pop(uid, None)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            for waiting in self._due():
                if self._waiting.get(waiting.pod.uid) is not waiting:
                    continue  # it has found a node while others were reported on
                waiting.told, waiting.told_at = waiting.message, self._clock()
                await self._report(waiting)

    def _due(self) -> list[_Waiting]:
        now, settings = self._clock(), self._settings
        due = [
            w
            for w in self._waiting.values()
            if w.message != w.told
            and now - w.since >= settings.patience_seconds
            and now - w.told_at >= settings.repeat_seconds
        ]
        return due[: settings.reports_per_tick]

    async def _report(self, waiting: _Waiting) -> None:
        pod = waiting.pod
        self._recorder.record(
            pod_subject(pod),
            type="Warning",
            reason="FailedScheduling",
            action="Scheduling",
            note=waiting.message,
        )
        try:
            await self._session.request(
                "PATCH",
                PODS.path(pod.namespace, pod.name, "status"),
                body=build_unschedulable_patch(pod, waiting.message, wall_timestamp()),
                content_type=STRATEGIC_PATCH,
                attempts=1,
            )
        except ApiError as error:
            logger.debug("%s/%s: %s", pod.namespace, pod.name, error)  # it is gone, or another of its name is there
        except KubeError as error:
            logger.info("%s/%s: %s", pod.namespace, pod.name, error)


def build_unschedulable_patch(pod: PodView, message: str, now: str) -> Object:
    """A strategic merge patch that sets PodScheduled=False and no other condition; the UID is a precondition."""
    return {
        "metadata": {"uid": pod.uid},
        "status": {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                    "lastTransitionTime": now,
                }
            ]
        },
    }
