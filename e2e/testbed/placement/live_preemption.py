"""Pods of random clusters for which the real kube-scheduler makes room, and the pods that it evicts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from concerto.kube import Session
from e2e.testbed.placement.answer import Answer
from e2e.testbed.placement.evictions import key_of
from e2e.testbed.placement.live import KubeScheduler, LiveScenario
from e2e.testbed.placement.random_objects import Object
from e2e.testbed.placement.scenario import Scenario
from e2e.testbed.waiting import eventually_async

SCHEDULER_FLAGS = ["-v=2"]
"""Its log names each victim."""
_VICTIM = re.compile(
    r'"(?:Preemptor Pod preempted victim Pod|Victim Pod is already (?:being )?deleted).* victim="(?P<victim>[^"]+)"'
)
_PREEMPTOR = re.compile(r' preemptor="([^"]+)"')
_NUMBER = re.compile(r"preempting (\d+) victims")


class LivePreemption:
    """One scenario in the API server.

    Args:
        session: connection to it.
        kube: kube-scheduler, which places and evicts.
        log: of kube-scheduler.
        found: the scenario.

    Attributes:
        there: its objects.
    """

    def __init__(self, session: Session, kube: KubeScheduler, log: Path, found: Scenario) -> None:
        self.there = LiveScenario(session, found)
        self._kube = kube
        self._log = log
        self._read = 0

    async def create(self) -> None:
        """Make everything but the pods that need room."""
        self._read = self._log.stat().st_size
        await self.there.create()

    async def ask(self, body: Object) -> tuple[Object, Answer]:
        """Make a pod that needs room; returns it as it was made, and what kube-scheduler does for it.

        Raises:
            Invalid: the API server does not take it.
        """
        pod, answer = await self._kube.ask(body)
        if answer.nominated:
            number = int(_NUMBER.findall(answer.message)[0])
            what = f"kube-scheduler has evicted {number} pods for {key_of(pod)}"
            victims: frozenset[str] = await eventually_async(what, lambda: self._victims_of(pod, number))
            answer = replace(answer, victims=victims)
        return pod, answer

    async def follow(self, pod: Object, answer: Answer) -> None:
        """Count the pod, and have its victims seen as they are now; take it back if it has found no node."""
        world = self.there.world
        if answer.nominated:
            await eventually_async(f"the victims of {key_of(pod)} are being deleted", lambda: self._follow(answer))
        else:
            await self.there.place(pod, answer)
        latest = self._kube.pods()
        world.nominated = [p for p in latest if not p["spec"].get("nodeName") and p["status"].get("nominatedNodeName")]

    async def remove(self) -> None:
        """Delete everything."""
        await self.there.remove()
        await eventually_async("the scenario's pods are gone", self._are_gone)

    def _victims_of(self, pod: Object, number: int) -> frozenset[str]:
        """Its victims, once there are so many of them in the log; none before."""
        with self._log.open() as log:
            log.seek(self._read)
            lines = [line for line in log if key_of(pod) in _PREEMPTOR.findall(line)]
        victims = {match["victim"] for line in lines if (match := _VICTIM.search(line))}
        return frozenset(victims if len(victims) == number else ())

    async def _are_gone(self) -> bool:
        return not self._kube.pods()

    async def _follow(self, answer: Answer) -> bool:
        world = self.there.world
        world.pods = [pod for pod in self._kube.pods() if pod["spec"].get("nodeName")]
        return all("deletionTimestamp" in pod["metadata"] for pod in world.pods if key_of(pod) in answer.victims)
