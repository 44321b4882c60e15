"""Random gangs for which the real kube-scheduler looks for nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from concerto.api.conditions import find_condition
from concerto.api.podgroup import INITIALLY_SCHEDULED
from concerto.kube import Reflector, Session
from concerto.kube.resources import POD_GROUPS, PODS
from e2e.testbed.placement.gang_rules import Placed
from e2e.testbed.placement.gang_scenarios import RandomGang
from e2e.testbed.placement.live import LiveScenario
from e2e.testbed.placement.random_objects import NAMESPACES, Object
from e2e.testbed.waiting import PATIENCE_SECONDS

FEATURE_FLAGS = ("--feature-gates=GenericWorkload=true",)
"""With them kube-scheduler evaluates PodGroups."""


@dataclass(frozen=True)
class Asked:
    """A gang in the API server, and what kube-scheduler has done with it.

    Attributes:
        group: the PodGroup as it was made.
        pods: its pods as they were made.
        placed: those that are on nodes now.
        placed_early: pods that were on nodes before the gang was complete.
    """

    group: Object
    pods: list[Object]
    placed: Placed
    placed_early: int


class KubeGangs:
    """Asks kube-scheduler for gangs, one at a time.

    Args:
        session: connection to the API server.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pods = Reflector(session, PODS, on_change=self._look)
        self._groups = Reflector(session, POD_GROUPS, on_change=self._look)
        self._asked: RandomGang | None = None
        self._answer: asyncio.Future[dict[str, str]] = asyncio.Future()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Watch pods and PodGroups meanwhile, as `ask` needs it."""
        tasks = [asyncio.create_task(reflector.run()) for reflector in (self._pods, self._groups)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ask(self, gang: RandomGang) -> Asked:
        """Make a gang, the PodGroup after its pods; returns it once kube-scheduler has decided on each of its pods.

        Pods that come first wait for the PodGroup, so that all of them are decided on at once.

        Raises:
            Invalid: the API server does not take it.
            AssertionError: kube-scheduler does not decide on all of its pods.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._asked = gang
        path = PODS.path(gang.namespace)
        late = len(gang.pods) if not gang.early else gang.early
        pods = [await self._session.create(path, pod) for pod in gang.pods[:late]]
        group = await self._session.create(POD_GROUPS.path(gang.namespace), gang.group)
        placed_early = len(await self._on_nodes(gang)) if gang.early else 0
        pods += [await self._session.create(path, pod) for pod in gang.pods[late:]]
        self._look(None, None)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                nodes = await self._answer
        except TimeoutError:
            raise AssertionError(f"kube-scheduler does not decide on {gang.name}: {self._statuses(gang)}") from None
        placed = [(pod, node) for pod in pods if (node := nodes[pod["metadata"]["name"]])]
        return Asked(group, pods, placed, placed_early)

    async def take_back(self, gang: RandomGang, pods: list[Object], there: LiveScenario) -> None:
        """Delete the gang's PodGroup and these pods of it."""
        self._asked = None
        await asyncio.gather(*(there.take_back(pod) for pod in pods))
        await self._session.delete(POD_GROUPS.path(gang.namespace, gang.name))

    async def remove(self) -> None:
        """Delete the PodGroups of all scenarios."""
        for name in NAMESPACES:
            await self._session.request("DELETE", POD_GROUPS.path(name))

    async def _on_nodes(self, gang: RandomGang) -> list[Object]:
        pods = (await self._session.list(PODS.path(gang.namespace)))["items"]
        return [pod for pod in pods if _group_of(pod) == gang.name and pod["spec"].get("nodeName")]

    def _statuses(self, gang: RandomGang) -> list[Object]:
        """For messages: the status of the PodGroup, and of its pods."""
        group = self._groups.store.get((gang.namespace, gang.name), {})
        pods = [pod for pod in self._pods.store.values() if _group_of(pod) == gang.name]
        return [group.get("status", {}), *(pod["status"] | {"node": pod["spec"].get("nodeName")} for pod in pods)]

    def _look(self, old: Object | None, new: Object | None) -> None:
        if self._asked is None or self._answer.done():
            return
        gang = self._asked
        group = self._groups.store.get((gang.namespace, gang.name), {})
        condition = find_condition((group.get("status") or {}).get("conditions"), INITIALLY_SCHEDULED)
        own = [pod for pod in self._pods.store.values() if _group_of(pod) == gang.name]
        if condition is None or len(own) < len(gang.pods) or not all(map(_is_decided, own)):
            return
        nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in own}
        bound = sum(map(bool, nodes.values()))
        if bound == 0 or bound >= gang.min_count:
            self._answer.set_result(nodes)


def _group_of(pod: Object) -> str:
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))


def _is_decided(pod: Object) -> bool:
    condition = find_condition(pod["status"].get("conditions"), "PodScheduled") or {}
    return bool(pod["spec"].get("nodeName")) or condition.get("reason") in ("Unschedulable", "SchedulerError")
