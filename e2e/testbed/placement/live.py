"""Scenarios in a real API server, and what the real kube-scheduler says of their pods."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from concerto.kube import Reflector, Resource, Session
from concerto.kube.errors import Invalid
from concerto.kube.resources import (
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    SERVICES,
    STATEFUL_SETS,
)
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.placement import live_storage, preemption_scenarios, random_objects
from e2e.testbed.placement.answer import Answer, Scores
from e2e.testbed.placement.changes import Change
from e2e.testbed.placement.live_storage import LiveStorage, own_claims
from e2e.testbed.placement.profiles import WEIGHTS
from e2e.testbed.placement.random_objects import Object
from e2e.testbed.placement.rules import World
from e2e.testbed.placement.scenario import Scenario
from e2e.testbed.waiting import PATIENCE_SECONDS

RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
APISERVER_FLAGS = [
    # Nodes and storage objects are as the scenario has them, from their first moment to their last
    "--disable-admission-plugins=TaintNodesByCondition,StorageObjectInUseProtection",
    # Tolerations with operator Gt or Lt
    "--feature-gates=TaintTolerationComparisonOperators=true",
]
CONTROLLER_MANAGER_FLAGS = [
    "--controllers=serviceaccount-controller,persistentvolume-binder-controller,ephemeral-volume-controller",
    # A claim whose volume it has not seen yet is looked at again only then
    "--pvclaimbinder-sync-period=1s",
]
SCHEDULER_FLAGS = ["--vmodule=schedule_one=10", "--feature-gates=TaintTolerationComparisonOperators=true"]
"""Its log has the score that each plugin gives each node."""
_SCORE = re.compile(
    r'"Plugin scored node for pod" pod="(?P<pod>[^"]+)" plugin="(?P<plugin>[^"]+)" node="(?P<node>[^"]+)" '
    r"score=(?P<score>-?\d+)"
)
_OF_SPREADING = {r.kind: r for r in (SERVICES, REPLICATION_CONTROLLERS, REPLICA_SETS, STATEFUL_SETS)}
_CHANGED = {r.kind: r for r in (NODES, PODS)}
_AT_ONCE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


async def prepare(plane: LocalControlPlane, session: Session) -> None:
    """Make what all scenarios share, once."""
    for name, labels in random_objects.NAMESPACES.items():
        plane.make_namespace(name)
        await session.patch(NAMESPACES.path(name=name), {"metadata": {"labels": dict(labels)}})
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "none"}
    runtime_class |= {
        "metadata": {"name": random_objects.RUNTIME_CLASS},
        "overhead": {"podFixed": random_objects.OVERHEAD},
    }
    await session.create(RUNTIME_CLASSES.path(), runtime_class)
    for name, value in (preemption_scenarios.PRIORITIES | {preemption_scenarios.NEVER: 1000}).items():
        policy = "Never" if name == preemption_scenarios.NEVER else "PreemptLowerPriority"
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await session.create(PRIORITY_CLASSES.path(), body | {"value": value, "preemptionPolicy": policy})
    await live_storage.prepare(session)


class KubeScheduler:
    """Asks kube-scheduler for pods, one at a time.

    Args:
        session: the way to the API server.
        log: of kube-scheduler, in which it notes the scores.
    """

    def __init__(self, session: Session, log: Path) -> None:
        self._session = session
        self._log = log
        self._asked: dict[str, tuple[asyncio.Future[Answer], Object]] = {}
        self._pods = Reflector(session, PODS, on_change=self._on_pod)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Watch the pods meanwhile, as `ask` needs it."""
        task = asyncio.create_task(self._pods.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def pods(self) -> list[Object]:
        """The scenario's pods as they are now."""
        return [pod for (namespace, _), pod in self._pods.store.items() if namespace in random_objects.NAMESPACES]

    async def ask(
        self, body: Object, ready: Callable[[Object], Awaitable[None]] | None = None
    ) -> tuple[Object, Answer]:
        """Make the pod; returns it as it was made, and what became of it.

        Args:
            body: the pod.
            ready: what is waited for, after the pod is there and before kube-scheduler may look at it.

        Raises:
            Invalid: the API server does not take it.
            TimeoutError: kube-scheduler says nothing of it.
        """
        await self._pods.synced.wait()
        read = self._log.stat().st_size
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        made = await self._session.create(PODS.path(namespace), body if ready is None else _gated(body))
        if ready is not None:
            await ready(made)
            gates = {"spec": {"schedulingGates": body["spec"].get("schedulingGates")}}
            made = await self._session.patch(PODS.path(namespace, name), gates)
        uid = made["metadata"]["uid"]
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[uid] = future, made
        for seen in self._pods.store.values():
            self._on_pod(None, seen)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                answer = await future
                return made, replace(answer, scores=self._scores_of(body, read))
        finally:
            del self._asked[uid]

    def _scores_of(self, pod: Object, read: int) -> Scores:
        """What its log has on a pod's scores beyond so many bytes; no plugins if it has looked at one node only."""
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        found: dict[str, dict[str, float]] = {}
        with self._log.open() as log:
            log.seek(read)
            for match in (match for line in log if (match := _SCORE.search(line))):
                if match["pod"] == key and match["plugin"] in WEIGHTS:
                    score = int(match["score"]) / WEIGHTS[match["plugin"]]
                    found.setdefault(match["plugin"], {})[match["node"]] = score
        return found

    def _on_pod(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            return
        future, made = self._asked.get(new["metadata"]["uid"], (None, new))
        if future is None or bool(new["spec"].get("schedulingGates")) != bool(made["spec"].get("schedulingGates")):
            return
        found = _answer_in(new, made["status"].get("nominatedNodeName", ""))
        if found is not None and not future.done():
            future.set_result(found)


def _gated(body: Object) -> Object:
    gate = {"name": "example.com/until-ready"}
    return {**body, "spec": {**body["spec"], "schedulingGates": [*body["spec"].get("schedulingGates", ()), gate]}}


def _answer_in(pod: Object, before: str) -> Answer | None:
    """What became of the pod, which was nominated for this node before it was looked at; None if nothing did yet."""
    nominated = pod["status"].get("nominatedNodeName", "")
    nominated = "" if nominated == before else nominated
    if node := pod["spec"].get("nodeName"):
        return Answer(node=node)
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            if pod["spec"].get("schedulingGates"):
                return Answer(waits=True)
            if condition["reason"] != "SchedulingGated":
                return Answer(message=condition.get("message", ""), nominated=nominated)
    # A pod whose claims are being bound is nominated for its node first
    return Answer(node=nominated) if nominated else None


class LiveScenario:
    """The objects of one scenario in the API server.

    Args:
        session: the way to it.
        found: the scenario.

    Attributes:
        world: the cluster as it is now.
        refused: objects that the API server did not take, which are no part of it.
    """

    def __init__(self, session: Session, found: Scenario) -> None:
        self._session = session
        self._found = found
        self.world = World({}, [], random_objects.NAMESPACES)
        self.refused = 0
        self._storage = LiveStorage(session)

    async def create(self) -> None:
        """Make everything but the pods that are to be placed."""
        made = await _all(self._session.create(NODES.path(), node) for node in self._found.nodes)
        self.world.nodes = {node["metadata"]["name"]: node for node in made}
        if self._found.storage:
            await self._storage.create(self._found.storage)
        self.world.services = await _all(self._create_spreading(body) for body in self._found.services)
        self.world.workloads = await _all(self._create_spreading(body) for body in self._found.workloads)
        pods = await _all(self._create_running(pod) for pod in self._found.running)
        self.world.pods = [pod for pod in pods if pod is not None]
        nominated = await _all(self._create_nominated(pod) for pod in self._found.nominated)
        self.world.nominated = [pod for pod in nominated if pod is not None]
        self.world.budgets = await _all(self._create_budget(budget) for budget in self._found.budgets)
        self.world.storage = self._storage.objects

    async def ask(self, kube: KubeScheduler, body: Object) -> tuple[Object, Answer]:
        """Have the pod placed (see `KubeScheduler.ask`), once it is nominated, and has the claims that are its own."""
        node = self._found.nominations.get(body["metadata"]["name"])

        async def make_ready(pod: Object) -> None:
            await self._storage.follow_own_claims(pod)
            if node is not None:
                path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], "status")
                await self._session.patch(path, {"status": {"nominatedNodeName": node}})

        pod, answer = await kube.ask(body, make_ready if own_claims(body) or node else None)
        self.world.storage = self._storage.objects
        return pod, answer

    async def change(self, name: str) -> None:
        """Make the changes that come before the pod of that name."""
        for change in self._found.changes.get(name, ()):
            await self._change(change)

    async def place(self, pod: Object, answer: Answer) -> None:
        """Count a pod that has been asked for where it is; take it back if it has found no node."""
        if answer.node:
            self.world.pods.append({**pod, "spec": {**pod["spec"], "nodeName": answer.node}})
        else:
            await self.take_back(pod)

    async def take_back(self, pod: Object) -> None:
        """Delete a pod, at once."""
        metadata = pod["metadata"]
        await self._session.request("DELETE", PODS.path(metadata["namespace"], metadata["name"]), body=_AT_ONCE)
        await self._storage.forget_own_claims(pod)
        self.world.storage = self._storage.objects

    async def remove(self) -> None:
        """Delete everything, pods first."""
        await _all(
            self._session.request("DELETE", PODS.path(name), body=_AT_ONCE) for name in random_objects.NAMESPACES
        )
        paths = [NODES.path()]
        if self._found.budgets:
            paths += [POD_DISRUPTION_BUDGETS.path(name) for name in random_objects.NAMESPACES]
        for resource in {_OF_SPREADING[o["kind"]] for o in (*self._found.services, *self._found.workloads)}:
            paths += [resource.path(name) for name in random_objects.NAMESPACES]
        await _all(self._session.request("DELETE", path, body=_AT_ONCE) for path in paths)
        if self._found.storage:
            await self._storage.remove()

    async def _create_running(self, body: Object) -> Object | None:
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            pod = await self._session.create(PODS.path(namespace), body)
        except Invalid:
            self.refused += 1
            return None
        await self._storage.follow_own_claims(pod)
        if status := self._found.statuses.get(name):
            pod = await self._session.patch(PODS.path(namespace, name, "status"), {"status": status})
        if name in self._found.deleted:
            pod = await self._session.delete(PODS.path(namespace, name))
        return pod

    async def _create_budget(self, body: Object) -> Object:
        metadata = body["metadata"]
        await self._session.create(POD_DISRUPTION_BUDGETS.path(metadata["namespace"]), body)
        path = POD_DISRUPTION_BUDGETS.path(metadata["namespace"], metadata["name"], "status")
        return await self._session.patch(path, {"status": body["status"]})

    async def _create_spreading(self, body: Object) -> Object:
        resource = _OF_SPREADING[body["kind"]]
        return {**await self._session.create(resource.path(body["metadata"]["namespace"]), body), "kind": body["kind"]}

    async def _create_nominated(self, body: Object) -> Object | None:
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            await self._session.create(PODS.path(namespace), body)
        except Invalid:
            self.refused += 1
            return None
        return await self._session.patch(PODS.path(namespace, name, "status"), {"status": body["status"]})

    async def _change(self, change: Change) -> None:
        """Make a change, if what it is about is there."""
        world = self.world
        if change.kind not in _CHANGED:
            await self._storage.change(change)
            world.storage = self._storage.objects
            return
        found = world.nodes.get(change.name) if change.kind == "Node" else world.pod(change.name)
        if found is None:
            return
        namespace = found["metadata"].get("namespace")
        resource = _CHANGED[change.kind]
        if change.patch is None:
            await self._session.request("DELETE", resource.path(namespace, change.name), body=_AT_ONCE)
            latest = None
        else:
            latest = await self._session.patch(resource.path(namespace, change.name, change.subresource), change.patch)
        world.put(change.kind, change.name, latest)


async def _all(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*awaitables))
