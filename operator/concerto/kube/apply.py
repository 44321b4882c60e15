"""Statuses written by server-side apply, for objects whose status has more than one writer."""

from __future__ import annotations

from typing import Any

from concerto.kube.resources import Resource
from concerto.kube.session import Object, Session


async def apply_status(
    session: Session,
    resource: Resource,
    name: str,
    status: dict[str, Any],
    *,
    field_manager: str,
    namespace: str | None = None,
    uid: str | None = None,
    force: bool = False,
) -> Object:
    """Write what ``field_manager`` owns of an object's status; fields that it now leaves out are removed.

    Lists of conditions are maps by type, so two managers can each own some of the types.

    Args:
        session: the way to the API server.
        resource: the object's kind.
        name: the object.
        status: every field that this manager owns.
        field_manager: the owner of these fields.
        namespace: the object's.
        uid: only if it is still this very object.
        force: take fields that another manager owns.

    Raises:
        Conflict: another manager owns one of the fields and ``force`` is not set.
        Invalid: the UID differs (which the server sees as an attempt to change it), or the status breaks the schema.
        NotFound: there is no such object; a status never makes one.
    """
    return await session.apply(
        resource.path(namespace, name, "status"),
        build_status(resource, name, status, namespace=namespace, uid=uid),
        field_manager=field_manager,
        force=force,
    )


def build_status(
    resource: Resource, name: str, status: dict[str, Any], *, namespace: str | None = None, uid: str | None = None
) -> Object:
    """The document that `apply_status` sends."""
    metadata = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if uid:
        metadata["uid"] = uid
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
