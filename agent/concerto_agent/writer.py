"""Writes the agent's objects: their status, and the objects themselves where nobody else has made them.

Nothing here ever touches the spec, labels or annotations of an object that exists. A status names the resourceVersion
that it follows. Otherwise an attempt that the API server takes its time for, or that of an earlier agent of the node
which hung, would replace a status that was made later. After a conflict, and where an outcome is not known, the object
is read before the next attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.resource_version import not_newer
from concerto.kube import ApiError, Conflict, KubeError, NotFound, Resource, ServerError, Session, apply_status
from concerto.kube.apply import Target
from concerto.kube.resources import NODE_CPU_TOPOLOGIES, NODES
from concerto.kube.status_writes import replacing

log = logging.getLogger(__name__)

Object = dict[str, Any]

_FIELD_MANAGER = "concerto-agent"


class NodeMissing(Exception):
    """There is no Node of that name, so that nothing can be created for it (it would be garbage at once)."""


@dataclass(frozen=True)
class _Seen:
    """What is kept of an object.

    Attributes:
        version: its resourceVersion.
        fields: the names of its status' fields, as maps within maps; of values and lists nothing is kept.
    """

    version: str
    fields: Mapping[str, Any]


class Writer:
    """The objects of one node."""

    def __init__(self, session: Session, node_name: str) -> None:
        self._session = session
        self._node_name = node_name
        self._seen: dict[Resource, _Seen] = {}
        self._to_be_read: set[Resource] = set()

    def saw(self, resource: Resource, obj: Object | None) -> None:
        """The object as a watch shows it, so that the next status follows it; None: it is gone."""
        if obj is None:
            self._seen.pop(resource, None)
            return
        version, known = obj["metadata"]["resourceVersion"], self._seen.get(resource)
        if known is None or not not_newer(version, known.version):
            self._seen[resource] = _Seen(version, _fields(obj.get("status") or {}))

    async def read(self, resource: Resource) -> Object | None:
        """The object as the API server has it; None if it is not there.

        Raises:
            KubeError: it was refused, or the server can't be reached.
        """
        try:
            found = await self._session.get(resource.path(name=self._node_name))
        except NotFound:
            found = None
        self._seen.pop(resource, None)  # versions are smaller after the API server's storage was restored
        self.saw(resource, found)
        self._to_be_read.discard(resource)
        return found

    async def write_status(self, resource: Resource, status: Object) -> Object:
        """Publish a status in place of the one that is there; the object is created first if it is not there.

        Returns:
            The object as the API server has it now.

        Raises:
            Conflict: somebody has changed the object, or an earlier attempt was carried out.
            KubeError: it was refused, or the server can't be reached.
            NodeMissing: it would have to be created, and there is no Node.
        """
        return await self._create_if_missing(resource, lambda: self._patch(resource, status))

    async def write_conditions(self, resource: Resource, conditions: list[Object]) -> Object:
        """The same for conditions alone; all else of the status stays as it is."""
        return await self._create_if_missing(
            resource, lambda: self._patch(resource, {"conditions": conditions}, whole=False)
        )

    async def apply_status(self, resource: Resource, status: Object) -> Object:
        """The same by server-side apply: keys of maps that ``status`` no longer has go away (a merge keeps them).

        Raises:
            Conflict: somebody has changed the object, or an earlier attempt was carried out.
            KubeError: it was refused, or the server can't be reached.
            NodeMissing: it would have to be created, and there is no Node.
        """
        return await self._create_if_missing(resource, lambda: self._apply(resource, status))

    async def _create_if_missing(self, resource: Resource, write: Callable[[], Awaitable[Object]]) -> Object:
        if resource in self._to_be_read:
            await self.read(resource)
        try:
            try:
                written = await write()
            except NotFound:
                self._seen.pop(resource, None)
                await self._create(resource)
                written = await write()
        except KubeError as error:
            if not isinstance(error, ApiError) or isinstance(error, Conflict | ServerError):
                self._to_be_read.add(resource)
            raise
        self.saw(resource, written)
        return written

    async def _apply(self, resource: Resource, status: Object) -> Object:
        seen = self._seen.get(resource)
        target = Target(resource, self._node_name, version=None if seen is None else seen.version)
        return await apply_status(self._session, target, status, field_manager=_FIELD_MANAGER, force=True)

    async def _patch(self, resource: Resource, status: Object, *, whole: bool = True) -> Object:
        patch, seen = {"status": status}, self._seen.get(resource)
        if seen is not None:
            patch = {
                "metadata": {"resourceVersion": seen.version},
                "status": replacing(seen.fields, status) if whole else status,
            }
        # Once: should it fail, the next attempt has newer numbers
        path = resource.path(name=self._node_name, subresource="status")
        return await self._session.patch(path, patch, attempts=1)

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


def _fields(status: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _fields(value) if isinstance(value, Mapping) else None for name, value in status.items()}


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
