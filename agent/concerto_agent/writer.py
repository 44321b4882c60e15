"""Writes the agent's objects: their status, and the objects themselves where nobody else has made them.

Nothing here ever touches the spec, labels or annotations of an object that exists. A status is a merge patch without a
precondition: the agent is its only writer, and saying it twice changes nothing, so that an unknown outcome is settled
by the next publication.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from concerto.kube import Conflict, NotFound, Resource, Session, apply_status
from concerto.kube.apply import Target
from concerto.kube.resources import NODE_CPU_TOPOLOGIES, NODES

log = logging.getLogger(__name__)

Object = dict[str, Any]

_FIELD_MANAGER = "concerto-agent"


class NodeMissing(Exception):
    """There is no Node of that name, so that nothing can be created for it (it would be garbage at once)."""


class Writer:
    """The objects of one node."""

    def __init__(self, session: Session, node_name: str) -> None:
        self._session = session
        self._node_name = node_name

    async def read(self, resource: Resource) -> Object | None:
        """The object as the API server has it; None if it is not there.

        Raises:
            KubeError: it was refused, or the server can't be reached.
        """
        try:
            return await self._session.get(resource.path(name=self._node_name))
        except NotFound:
            return None

    async def write_status(self, resource: Resource, status: Object) -> Object:
        """Publish a status; the object is created first if it is not there.

        Returns:
            The object as the API server has it now.

        Raises:
            KubeError: it was refused, or the server can't be reached.
            NodeMissing: it would have to be created, and there is no Node.
        """
        return await self._create_if_missing(resource, lambda: self._patch(resource, status))

    async def apply_status(self, resource: Resource, status: Object) -> Object:
        """The same by server-side apply: keys of maps that ``status`` no longer has go away (a merge keeps them).

        Raises:
            KubeError: it was refused, or the server can't be reached.
            NodeMissing: it would have to be created, and there is no Node.
        """
        return await self._create_if_missing(resource, lambda: self._apply(resource, status))

    async def _create_if_missing(self, resource: Resource, write: Callable[[], Awaitable[Object]]) -> Object:
        try:
            return await write()
        except NotFound:
            await self._create(resource)
            return await write()

    async def _apply(self, resource: Resource, status: Object) -> Object:
        target = Target(resource, self._node_name)
        return await apply_status(self._session, target, status, field_manager=_FIELD_MANAGER, force=True)

    async def _patch(self, resource: Resource, status: Object) -> Object:
        # Once: should it fail, the next attempt has newer numbers
        path = resource.path(name=self._node_name, subresource="status")
        return await self._session.patch(path, {"status": status}, attempts=1)

    async def _create(self, resource: Resource) -> None:
        try:
            node = await self._session.get(NODES.path(name=self._node_name))
        except NotFound as error:
            raise NodeMissing(f"no Node {self._node_name!r}: is --node-name the kubelet's name?") from error
        try:
            await self._session.create(resource.path(), build_object(resource, node))
            log.info("created %s %s", resource.kind, self._node_name)
        except Conflict:
            log.info("%s %s was created by somebody else", resource.kind, self._node_name)


def build_object(resource: Resource, node: Object) -> Object:
    """An empty object of a node, garbage collected with it.

    Args:
        resource: its kind.
        node: the Node as the API server has it: should it be made anew under the same name, its UID is another, and
            the collector takes what belonged to the old one.
    """
    metadata = node["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}
    obj: Object = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": metadata["name"], "ownerReferences": [owner]},
    }
    if resource == NODE_CPU_TOPOLOGIES:
        obj["spec"] = {"nodeName": metadata["name"]}
    return obj
