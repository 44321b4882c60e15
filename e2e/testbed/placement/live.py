"""Scenarios in a real API server, and what the real kube-scheduler says of their pods."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from concerto.kube import Reflector, Resource, Session
from concerto.kube.errors import Invalid
from concerto.kube.resources import (
    CSI_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
    STORAGE_CLASSES,
)
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.placement import preemption_scenarios, random_objects, scenarios
from e2e.testbed.placement.answer import Answer, Scores
from e2e.testbed.placement.random_objects import Object
from e2e.testbed.placement.rules import World
from e2e.testbed.placement.scenarios import Scenario
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually_async

RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
APISERVER_FLAGS = [
    # Nodes and storage objects are as the scenario has them, from their first moment to their last
    "--disable-admission-plugins=TaintNodesByCondition,StorageObjectInUseProtection",
]
CONTROLLER_MANAGER_FLAGS = [
    "--controllers=serviceaccount-controller,persistentvolume-binder-controller",
    # A claim whose volume it has not seen yet is looked at again only then
    "--pvclaimbinder-sync-period=1s",
]
SCHEDULER_FLAGS = ["--vmodule=schedule_one=10"]
"""Its log has the score that each plugin gives each node."""
WEIGHTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "ImageLocality": 1,
}
"""Of the scores that Concerto's default profile has, too. Source: kubernetes/kubernetes, ``getDefaultPlugins``."""
_SCORE = re.compile(
    r'"Plugin scored node for pod" pod="(?P<pod>[^"]+)" plugin="(?P<plugin>[^"]+)" node="(?P<node>[^"]+)" '
    r"score=(?P<score>-?\d+)"
)
_STORAGE = {r.kind: r for r in (PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, CSI_NODES)}
_PHASES = {"PersistentVolume": ("Available", "Bound"), "PersistentVolumeClaim": ("Bound",)}
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
    zone = {"key": random_objects.ZONE, "values": ["a", "b"]}
    for name, provisioner, mode, more in (
        (scenarios.WAITS, "kubernetes.io/no-provisioner", "WaitForFirstConsumer", {}),
        (scenarios.AT_ONCE, "kubernetes.io/no-provisioner", "Immediate", {}),
        (
            scenarios.MADE,
            scenarios.DRIVER,
            "WaitForFirstConsumer",
            {"allowedTopologies": [{"matchLabelExpressions": [zone]}]},
        ),
    ):
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        await session.create(
            STORAGE_CLASSES.path(), body | {"provisioner": provisioner, "volumeBindingMode": mode} | more
        )


class KubeScheduler:
    """Asks kube-scheduler for pods, one at a time.

    Args:
        session: the way to the API server.
        log: of kube-scheduler, in which it notes the scores.
    """

    def __init__(self, session: Session, log: Path) -> None:
        self._session = session
        self._log = log
        self._asked: dict[str, asyncio.Future[Answer]] = {}
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

    async def ask(self, body: Object) -> tuple[Object, Answer]:
        """Make the pod; returns it as it was made, and what became of it.

        Raises:
            Invalid: the API server does not take it.
            TimeoutError: kube-scheduler says nothing of it.
        """
        await self._pods.synced.wait()
        read = self._log.stat().st_size
        made = await self._session.create(PODS.path(body["metadata"]["namespace"]), body)
        uid = made["metadata"]["uid"]
        future = self._asked[uid] = asyncio.get_running_loop().create_future()
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
        future = self._asked.get(new["metadata"]["uid"])
        found = _answer_in(new)
        if future is not None and found is not None and not future.done():
            future.set_result(found)


def _answer_in(pod: Object) -> Answer | None:
    nominated = pod["status"].get("nominatedNodeName", "")
    if node := pod["spec"].get("nodeName"):
        return Answer(node=node)
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            if condition["reason"] == "SchedulingGated":
                return Answer(waits=True)
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

    async def create(self) -> None:
        """Make everything but the pods that are to be placed."""
        made = await _all(self._session.create(NODES.path(), node) for node in self._found.nodes)
        self.world.nodes = {node["metadata"]["name"]: node for node in made}
        if self._found.storage:
            await self._create_storage()
        self.world.services = await _all(
            self._session.create(SERVICES.path(service["metadata"]["namespace"]), service)
            for service in self._found.services
        )
        pods = await _all(self._create_running(pod) for pod in self._found.running)
        self.world.pods = [pod for pod in pods if pod is not None]
        self.world.budgets = await _all(self._create_budget(budget) for budget in self._found.budgets)

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

    async def remove(self) -> None:
        """Delete everything, pods first."""
        await _all(
            self._session.request("DELETE", PODS.path(name), body=_AT_ONCE) for name in random_objects.NAMESPACES
        )
        paths = [NODES.path()]
        if self._found.budgets:
            paths += [POD_DISRUPTION_BUDGETS.path(name) for name in random_objects.NAMESPACES]
        if self._found.services:
            paths += [SERVICES.path(name) for name in random_objects.NAMESPACES]
        if self._found.storage:
            paths += [PERSISTENT_VOLUME_CLAIMS.path("red"), PERSISTENT_VOLUMES.path(), CSI_NODES.path()]
        await _all(self._session.request("DELETE", path, body=_AT_ONCE) for path in paths)

    async def _create_running(self, body: Object) -> Object | None:
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            pod = await self._session.create(PODS.path(namespace), body)
        except Invalid:
            self.refused += 1
            return None
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

    async def _create_storage(self) -> None:
        made = []
        for kind, resource in _STORAGE.items():
            bodies = [o for o in self._found.storage if o["kind"] == kind]
            made += await _all(self._session.create(resource.path(o["metadata"].get("namespace")), o) for o in bodies)
        self.world.storage = await _all(self._settled(o) for o in made)
        self.world.storage += (await self._session.list(STORAGE_CLASSES.path()))["items"]
        for storage_class in self.world.storage:
            storage_class.setdefault("kind", "StorageClass")

    async def _settled(self, obj: Object) -> Object:
        """The object once the volume controller has done what it does without a pod."""
        kind, metadata = obj["kind"], obj["metadata"]
        if kind not in _PHASES or (kind == "PersistentVolumeClaim" and "volumeName" not in obj["spec"]):
            return obj
        path = _STORAGE[kind].path(metadata.get("namespace"), metadata["name"])
        latest: Object = {}

        async def look() -> bool:
            latest.update(await self._session.get(path))
            wanted = ("Bound",) if "claimRef" in obj["spec"] else _PHASES[kind]
            return (latest.get("status") or {}).get("phase") in wanted

        await eventually_async(f"{kind} {metadata['name']} is bound or available", look)
        return latest


async def _all(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*awaitables))
