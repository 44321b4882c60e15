"""Simulated nodes: one process plays the kubelets of hundreds or thousands of Node objects.

Pods bound to them start, use CPU and memory and end as `concerto.simulation.scheduling.node_model` says, in real
time; the same readings that real nodes would give go to the production maths (`e2e.testbed.hollow.agents`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.api.quantities import resource_amount
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.kube import ClusterConfig, Reflector, Session
from concerto.kube.resources import PODS
from concerto.simulation.scheduling.node_fleet import NodeFleet
from concerto.simulation.scheduling.node_model import Change, Transition
from e2e.testbed.hollow import objects
from e2e.testbed.hollow.agents import Agents
from e2e.testbed.hollow.kinds import PodKinds
from e2e.testbed.hollow.nodes import NodeObjects
from e2e.testbed.hollow.objects import ContainerEnd, HollowNode, Object, PodLife
from e2e.testbed.hollow.pinning import Pinning
from e2e.testbed.hollow.settings import HollowSettings
from e2e.testbed.hollow.writes import WriteQueue

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 0.1
# Of the process's time, at most
_AGENTS_SHARE = 0.4


@dataclass
class _Pod:
    """A pod that the kubelet of ``node`` takes care of."""

    raw: Object
    view: PodView
    node: HollowNode
    life: PodLife
    exit: ContainerEnd | None = None  # the containers' end, until the kubelet has noticed
    written: PodLife | None = None
    in_model: bool = False
    deleting: bool = False
    over: bool = False

    @property
    def restarts(self) -> bool:
        """Whether its containers are started again when they end."""
        policy = self.raw["spec"].get("restartPolicy", "Always")
        failed = self.life.end is not None and self.life.end.exit_code != 0
        return not self.deleting and (policy == "Always" or (policy == "OnFailure" and failed))


class Fleet:
    """The kubelets of one fleet; `open_fleet` makes and runs one.

    Attributes:
        nodes: by name.
        node_objects: their objects in the API server.
        model: what happens on the nodes.
        node_writes: what kubelets write of their nodes: Leases, Nodes. It does not wait behind that of many pods.
        pod_writes: what they write of pods.
        publications: what agents write.
    """

    def __init__(self, session: Session, settings: HollowSettings) -> None:
        self.settings = settings
        self._session = session
        count, shape = settings.count, settings.shape
        self._by_index = [
            HollowNode(i, f"{settings.prefix}-{i:04d}", f"10.80.{i // 256}.{i % 256}") for i in range(count)
        ]
        self.nodes = {node.name: node for node in self._by_index}
        model_rng, agents_rng = np.random.default_rng(settings.seed).spawn(2)
        self._clock = time.monotonic
        self._wall_offset = time.time() - self._clock()
        self.model = NodeFleet(
            [shape.cores] * count, [shape.memory_bytes] * count, model_rng, settings.model, now=self._clock()
        )
        self.node_writes = WriteQueue(settings.writes_in_flight)
        self.pod_writes = WriteQueue(settings.writes_in_flight)
        self.publications = WriteQueue(settings.publications_in_flight)
        self.agents = Agents(
            session,
            self._by_index,
            self.publications,
            max_pods=shape.max_pods,
            rng=agents_rng,
            wall=self.wall,
            capacity=settings.capacity,
            kinds=PodKinds(count) if settings.measures_kinds else None,
        )
        self._pinning = settings.machine and Pinning(session, settings.machine, self.publications, self.wall)
        self.node_objects = NodeObjects(session, settings, self.nodes, self.node_writes, self.agents, self._pinning)
        self._pods: dict[str, _Pod] = {}
        self._on_node: list[dict[str, dict[str, int]]] = [{} for _ in range(count)]
        self._pod_ips = _addresses()
        self._allocatable = {
            "cpu": resource_amount("cpu", shape.cores),
            "memory": shape.memory_bytes,
            "pods": shape.max_pods,
        }
        self._reflector = Reflector(session, PODS, field_selector="spec.nodeName!=", on_change=self._on_pod)

    def wall(self, now: float) -> float:
        """The time since the epoch at ``now`` on the monotonic clock."""
        return now + self._wall_offset

    def fail(self, name: str) -> None:
        """The node's power goes: no Lease, no status, no telemetry any more."""
        node, now = self.nodes[name], self._clock()
        node.alive = False
        self.model.fail(node.index, now)

    def restore(self, name: str) -> None:
        """The node is back, empty: its pods' containers are lost, and started again where the pod wants it."""
        node, now = self.nodes[name], self._clock()
        node.alive = True
        self.model.restore(node.index, now)
        self.node_objects.renew_lease(node)
        self.node_objects.report_ready(node)
        for pod in [pod for pod in self._pods.values() if pod.node is node and pod.in_model]:
            pod.in_model = False
            self.agents.pod_ended(node.index, pod.view.uid, now)
            self._end(pod, now, ContainerEnd(self.wall(now), 255, "Unknown"))
        # What was bound or deleted meanwhile.
        for raw in [raw for raw in self._reflector.store.values() if raw["spec"]["nodeName"] == name]:
            self._on_pod(None, raw)

    # --- their pods

    def _on_pod(self, old: Object | None, new: Object | None) -> None:
        now = self._clock()
        if new is None:
            pod = self._pods.get(old["metadata"]["uid"]) if old else None
            if pod is not None and pod.in_model:
                # Deleted by force: the containers are stopped all the same, and then nothing is left to write.
                pod.deleting = True
                self.model.delete(pod.view.uid, pod.node.index, now)
            elif pod is not None:
                del self._pods[pod.view.uid]
            return
        node = self.nodes.get(new["spec"]["nodeName"])
        if node is None or not node.alive:
            return
        pod = self._pods.get(new["metadata"]["uid"])
        if pod is None:
            pod = self._admit(new, node, now)
        pod.raw = new
        if "deletionTimestamp" in new["metadata"] and not pod.deleting:
            pod.deleting = True
            self._stop(pod, now)

    def _admit(self, raw: Object, node: HollowNode, now: float) -> _Pod:
        """Takes a pod in that has been bound to the node, and starts it if it has not ended or been deleted."""
        view = PodView.from_raw(raw)
        life = PodLife(node.address, next(self._pod_ips), admitted=self.wall(now))
        pod = self._pods[view.uid] = _Pod(raw, view, node, life)
        if view.terminal or view.deleting:
            pod.over = True
            return pod
        refused = objects.refusal(view, self._on_node[node.index], self._allocatable)
        if refused:
            pod.over = True
            status = objects.rejected_status(raw, refused, self.wall(now))
            self.pod_writes.put(("pod", view.uid), lambda: self._write_status(pod, status))
            return pod
        self._on_node[node.index][view.uid] = dict(view.requests)
        self._start(pod, now)
        return pod

    def _start(self, pod: _Pod, now: float) -> None:
        try:
            load = objects.pod_load(pod.raw)
        except ValueError as error:
            logger.error("pod %s: %s", pod.view.key, error)
            load = objects.FINITE_LOAD
        pod.in_model = True
        self.model.start(pod.view.uid, pod.node.index, load, now)

    def _stop(self, pod: _Pod, now: float) -> None:
        """Ends the pod's containers if there are any; its object goes once they have."""
        if pod.in_model:
            self.model.delete(pod.view.uid, pod.node.index, now)
        else:
            self._sync(pod)

    def _take(self, change: Transition) -> None:
        """Something has happened to a pod on its node."""
        pod = self._pods[str(change.pod)]
        at = self.wall(change.at)
        match change.change:
            case Change.CGROUP_CREATED:
                if pod.view.counted:
                    self.agents.pod_started(pod.node.index, pod.view, change.at)
            case Change.RUNNING:
                pod.life = replace(pod.life, started=at, end=None)
                self._sync(pod)
            case Change.EXITED:
                pod.exit = _end_of(change.reason, pod.life, at)
            case Change.TERMINATED:
                pod.in_model = False
                assert pod.exit is not None
                self._end(pod, change.at, pod.exit, change.measured if change.reason == "Completed" else None)

    def _end(self, pod: _Pod, now: float, end: ContainerEnd, measured: PodMeasurement | None = None) -> None:
        """The kubelet has noticed the end of the pod's containers."""
        pod.life = replace(pod.life, end=end)
        if pod.restarts:
            pod.life = replace(pod.life, started=None, end=None, restarts=pod.life.restarts + 1)
            self._start(pod, now)
            return
        pod.over = True
        self.agents.pod_ended(pod.node.index, pod.view.uid, now, measured)
        self._on_node[pod.node.index].pop(pod.view.uid, None)
        if (pod.view.namespace, pod.view.name) in self._reflector.store:
            self._sync(pod)
        else:
            self._pods.pop(pod.view.uid, None)

    def _sync(self, pod: _Pod) -> None:
        self.pod_writes.put(("pod", pod.view.uid), lambda: self._write_pod(pod))

    async def _write_pod(self, pod: _Pod) -> None:
        """Brings the pod's object to where the pod is: its status, and its end once it is to be deleted."""
        life = pod.life
        if pod.written is not life and (life.started is not None or life.end is not None):
            await self._write_status(pod, objects.pod_status(pod.raw, life, time.time()))
            pod.written = life
        if pod.deleting and pod.over:
            body = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": pod.view.uid},
            }
            await self._session.request("DELETE", PODS.path(pod.view.namespace, pod.view.name), body=body)

    async def _write_status(self, pod: _Pod, status: Object) -> None:
        path = PODS.path(pod.view.namespace, pod.view.name, "status")
        # The UID is a precondition: not a word about another pod of the same name.
        await self._session.patch(path, {"metadata": {"uid": pod.view.uid}, "status": status})

    # --- time

    async def run(self) -> None:
        """Plays until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts():
                group.create_task(part)

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        parts = [
            self.node_writes.run(),
            self.pod_writes.run(),
            self.publications.run(),
            self.node_objects.renew_leases(),
            self.node_objects.follow(),
        ]
        if self._pinning is not None:
            parts.append(self._pinning.run())
        if not self.settings.api_only:
            parts += [self.agents.run(), self._live(), self._follow_pods()]
        return parts

    async def _follow_pods(self) -> None:
        await self.node_objects.created.wait()
        await self._reflector.run()

    async def _live(self) -> None:
        """Lets time pass on the nodes, and reads them ten times a second, or less often if there are very many.

        Thousands of agents in one process would otherwise leave no time for kubelets: Leases would lapse, and pods
        would not start.
        """
        next_sample = self._clock() + SAMPLE_SECONDS
        while True:
            now = self._clock()
            for change in self.model.advance(now):
                self._take(change)
            if now >= next_sample:
                self.agents.sample(self.model.readings(now), now, self.model)
                # A sample that is late is not made up for: its readings simply span more time.
                took = self._clock() - now
                next_sample = max(next_sample + SAMPLE_SECONDS, now + took / _AGENTS_SHARE)
            await asyncio.sleep(max(0.0, min(next_sample, self.model.next_time()) - self._clock()))


def _end_of(reason: str, life: PodLife, at: float) -> ContainerEnd:
    match reason:
        case "Completed":
            return ContainerEnd(at, 0, "Completed")
        case "OOMKilled":
            return ContainerEnd(at, 137, "OOMKilled")
    return (
        ContainerEnd(at, 143, "Error") if life.started is not None else ContainerEnd(at, 137, "ContainerStatusUnknown")
    )


def _addresses() -> Iterator[str]:
    """Pod addresses, each used once."""
    number = 0
    while True:
        number += 1
        yield f"10.{128 + (number >> 16) % 128}.{(number >> 8) & 255}.{number & 255}"


@asynccontextmanager
async def open_fleet(config: ClusterConfig, settings: HollowSettings, *, keep: bool = False) -> AsyncIterator[Fleet]:
    """A fleet whose nodes are there and ready.

    Args:
        config: the way to the cluster, as its administrator: kubelets and agents of many nodes are played.
        settings: the fleet.
        keep: leave the objects behind at the end, for a cluster that ends as well.

    Raises:
        TimeoutError: the nodes did not become ready.
        ExceptionGroup: a part of the fleet has failed meanwhile.
    """
    async with await Session.open(config) as session:
        fleet = Fleet(session, settings)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(fleet.run())
                await fleet.node_objects.create()
                await fleet.node_objects.wait_ready()
                yield fleet
                running.cancel()
        finally:
            if not keep:
                await fleet.node_objects.remove()
