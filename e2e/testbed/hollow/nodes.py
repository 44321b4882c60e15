"""The objects of simulated nodes: Node, Lease and what their agents own; made, kept up to date, removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from concerto.api.conditions import find_condition
from concerto.api.node import trim_node
from concerto.kube import Conflict, NotFound, OutcomeUnknown, Reflector, Session
from concerto.kube.resources import LEASES, NODE_CAPACITIES, NODES
from concerto.simulation.scheduling.node_fleet import NodeFleet
from e2e.testbed.hollow import objects
from e2e.testbed.hollow.agents import Agents, create_for, idle_status
from e2e.testbed.hollow.objects import HollowNode, Object
from e2e.testbed.hollow.owned import create_owned
from e2e.testbed.hollow.pinning import Pinning
from e2e.testbed.hollow.settings import HollowSettings
from e2e.testbed.hollow.writes import WriteQueue

_NOT_READY = "node.kubernetes.io/not-ready"


class NodeObjects:
    """The nodes of one fleet in the API server.

    Attributes:
        created: set once all of them have been made.
    """

    def __init__(
        self,
        session: Session,
        settings: HollowSettings,
        nodes: Mapping[str, HollowNode],
        writes: WriteQueue,
        agents: Agents,
        pinning: Pinning | None,
    ) -> None:
        self.created = asyncio.Event()
        self._session = session
        self._settings = settings
        self._nodes = nodes
        self._by_index = list(nodes.values())
        self._writes = writes
        self._agents = agents
        self._pinning = pinning
        self._idle: Object | None = self._idle_status() if settings.api_only else None
        self._reflector = Reflector(
            session, NODES, label_selector=self.selector, trim=trim_node, on_change=self._on_node_object
        )

    @property
    def selector(self) -> str:
        """The label selector of the fleet's nodes."""
        return f"{objects.LABEL}={self._settings.prefix}"

    async def create(self) -> None:
        """Register every node, with its Lease and its agent's objects; takes over Nodes of an earlier process.

        `renew_leases` should be running, so that the first nodes' Leases are renewed while the last are being made.
        """
        await self._for_each_node(self._register)
        self.created.set()

    async def _for_each_node(self, what: Callable[[HollowNode], Awaitable[object]]) -> None:
        gate = asyncio.Semaphore(2 * self._settings.writes_in_flight)

        async def bounded(node: HollowNode) -> None:
            async with gate:
                await what(node)

        async with asyncio.TaskGroup() as group:
            for node in self._by_index:
                group.create_task(bounded(node))

    async def _register(self, node: HollowNode) -> None:
        settings, now = self._settings, time.time()
        body = objects.build_node(node.name, node.address, settings.prefix, settings.shape, now)
        made = await self._create_node(node.name, body)
        node.uid = made["metadata"]["uid"]
        # Every new Node is tainted until the controller manager has seen that it is Ready, a few dozen Nodes a second.
        taints = [taint for taint in made["spec"].get("taints") or [] if taint["key"] != _NOT_READY]
        await self._session.patch(NODES.path(name=node.name), {"spec": {"taints": taints}})
        await create_owned(self._session, LEASES, objects.build_lease(node.name, node.uid, settings.renew_seconds, now))
        await self._renew_lease(node)
        if self._pinning is not None:
            await self._pinning.publish(node)
        if self._idle is None:
            await self._agents.create(node)
        else:
            await create_for(self._session, NODE_CAPACITIES, node)
            # The status is written only once: with a long heartbeat it does not count as stale during a measurement
            await self._session.patch(NODE_CAPACITIES.path(name=node.name), {"spec": {"heartbeat": "5m"}})
            path = NODE_CAPACITIES.path(name=node.name, subresource="status")
            await self._session.patch(path, {"status": self._idle})
        node.alive = True

    async def _create_node(self, name: str, body: Object) -> Object:
        while True:
            try:
                return await self._session.create(NODES.path(), body)
            except OutcomeUnknown:  # a busy API server: if it was carried out, the next attempt is a conflict
                continue
            except Conflict:
                with suppress(NotFound):  # it may be going: an earlier fleet's
                    made = await self._session.get(NODES.path(name=name))
                    await self._session.patch(NODES.path(name=name, subresource="status"), {"status": body["status"]})
                    return made

    def _idle_status(self) -> Object:
        """Status of nodes that are API objects only: idle, with room for as many pods as a kubelet takes."""
        shape, now = self._settings.shape, time.monotonic()
        model = NodeFleet([shape.cores], [shape.memory_bytes], np.random.default_rng(0), self._settings.model, now=now)
        status = idle_status(model.readings(now + 1.0), self._settings.capacity, shape.max_pods)
        return replace(status, capacity=float(shape.max_pods)).to_raw()

    async def wait_ready(self, timeout_seconds: float = 300.0) -> None:
        """Return once pods can be placed on every node; `follow` has to be running.

        Args:
            timeout_seconds: for which no further node becomes ready, while some are not.

        Raises:
            TimeoutError: some nodes are not there, or are tainted as not ready.
        """
        ready, since = -1, time.monotonic()
        while (now := self._count_ready()) < len(self._nodes):
            if now > ready:
                ready, since = now, time.monotonic()
            elif time.monotonic() - since > timeout_seconds:
                raise TimeoutError(f"{len(self._nodes) - now} of {len(self._nodes)} nodes are not ready")
            await asyncio.sleep(0.2)

    def _count_ready(self) -> int:
        seen = self._reflector.store.values()
        return sum(all(taint["key"] != _NOT_READY for taint in node["spec"].get("taints", ())) for node in seen)

    async def remove(self) -> None:
        """Delete every Node of the fleet; the garbage collector takes what belongs to them."""

        async def delete(node: HollowNode) -> None:
            with suppress(NotFound):
                await self._session.delete(NODES.path(name=node.name))

        await self._for_each_node(delete)

    async def renew_leases(self) -> None:
        """Renew each Lease once a period, spread evenly over it, until cancelled."""
        period, count = self._settings.renew_seconds, len(self._by_index)
        begun, done = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begun) / period * count)
            for number in range(done, min(due, done + count)):
                node = self._by_index[number % count]
                if node.alive:
                    self.renew_lease(node)
            done = max(done, due)
            await asyncio.sleep(min(1.0, period / count))

    async def follow(self) -> None:
        """Follow the Node objects until cancelled."""
        await self._reflector.run()

    def renew_lease(self, node: HollowNode) -> None:
        """Write the node's Lease soon."""
        self._writes.put(("lease", node.name), lambda: self._renew_lease(node))

    async def _renew_lease(self, node: HollowNode) -> None:
        spec = objects.build_lease(node.name, node.uid, self._settings.renew_seconds, time.time())["spec"]
        await self._session.patch(LEASES.path(objects.LEASE_NAMESPACE, node.name), {"spec": spec})

    def _on_node_object(self, old: Object | None, new: Object | None) -> None:
        """Write again that a node is Ready when the controller manager, after a late Lease, has written otherwise."""
        node = self._nodes.get(new["metadata"]["name"]) if new is not None else None
        if node is not None and node.alive and not _is_ready(new):
            self.report_ready(node)

    def report_ready(self, node: HollowNode) -> None:
        """Write that the node is Ready."""
        path = NODES.path(name=node.name, subresource="status")
        body = {"status": {"conditions": objects.node_conditions(time.time())}}
        self._writes.put(("node", node.name), lambda: self._session.patch(path, body))


def _is_ready(node: Object) -> bool:
    ready = find_condition(node["status"].get("conditions"), "Ready")
    return ready is not None and ready["status"] == "True"
