"""Statuses written by server-side apply, for objects whose status has more than one writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from concerto.kube.request_bodies import Object
from concerto.kube.resources import Resource
from concerto.kube.session import Session


@dataclass(frozen=True)
class Target:
    """The object whose status is written.

    Attributes:
        resource: its kind.
        name: its name.
        namespace: its namespace; None for a cluster scoped object.
        uid: only if it is still this very object; None for any.
        version: only if it still has this resourceVersion; None for any.
    """

    resource: Resource
    name: str
    namespace: str | None = None
    uid: str | None = None
    version: str | None = None


async def apply_status(
    session: Session,
    target: Target,
    status: dict[str, Any],
    *,
    field_manager: str,
    force: bool = False,
    once_within_seconds: float | None = None,
) -> Object:
    """Write what ``field_manager`` owns of an object's status; fields that it now leaves out are removed.

    Lists of conditions are maps by type, so two managers can each own some of the types.

    Args:
        session: the way to the API server.
        target: the object.
        status: every field that this manager owns.
        field_manager: the owner of these fields.
        force: take fields that another manager owns.
        once_within_seconds: the only attempt may take so long; None: as the session has it.

    Raises:
        Conflict: another manager owns one of the fields and ``force`` is not set, or the version differs.
        Invalid: the UID differs (which the server sees as an attempt to change it), or the status breaks the schema.
        NotFound: there is no such object; a status never makes one.
    """
    return await session.apply(
        target.resource.path(target.namespace, target.name, "status"),
        build_status(target, status),
        field_manager=field_manager,
        force=force,
        timeout_seconds=once_within_seconds,
        attempts=None if once_within_seconds is None else 1,
    )


def build_status(target: Target, status: dict[str, Any]) -> Object:
    """The document that `apply_status` sends."""
    metadata = {"name": target.name}
    if target.namespace:
        metadata["namespace"] = target.namespace
    if target.uid:
        metadata["uid"] = target.uid
    if target.version:
        metadata["resourceVersion"] = target.version
    resource = target.resource
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
