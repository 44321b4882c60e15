"""Writes of whole statuses: none replaces one that was made later, and none is repeated for ever because it is changed.

An attempt that the API server takes its time for may be carried out after a later one, when nobody waits for it any
more. So each names the resourceVersion that it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concerto.kube.errors import Conflict, KubeError
from concerto.kube.request_bodies import Object
from concerto.kube.resources import Resource
from concerto.kube.session import Session


class StatusChanged(KubeError):
    """The API server has stored another status than was sent, as an admission webhook makes it.

    If it is written again at once, and changed in another way each time, that never ends.

    Attributes:
        obj: as it was stored.
    """

    def __init__(self, obj: Object, fields: list[str]) -> None:
        super().__init__(
            "The API server has stored another status than was sent, in "
            f"{', '.join(f'status.{field}' for field in fields)}: does an admission webhook change it?"
        )
        self.obj = obj


async def write_status(session: Session, resource: Resource, before: Object, status: dict[str, Any]) -> Object:
    """Write the status of an object by a merge patch, unless the object has changed since it was read.

    Args:
        session: the way to the API server.
        resource: its kind.
        before: the object that the status was made from.
        status: all of its fields; others that it had before are removed.

    Returns:
        The object as the API server has stored it.

    Raises:
        Conflict: it has changed since.
        NotFound: it is gone.
    """
    metadata = before["metadata"]
    whose = metadata.get("namespace"), metadata["name"]
    precondition = {key: metadata[key] for key in ("uid", "resourceVersion")}
    patch = {"metadata": precondition, "status": replacing(before.get("status") or {}, status)}
    try:
        return await session.patch(resource.path(*whose, "status"), patch)
    except Conflict:
        found = await session.get(resource.path(*whose))
        if found["metadata"]["uid"] != metadata["uid"] or found.get("status") != status:
            raise
        return found  # an attempt that had no answer was carried out


def replacing(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a merge patch that leaves nothing of the old map that the new one lacks.

    Args:
        old: of its values, only maps are read.
        new: what is to be there.
    """
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = replacing(before, value)
        patch[key] = value
    return patch


def raise_if_changed(before: Object, written: Object, sent: dict[str, Any], stored: dict[str, Any]) -> None:
    """Check whether the API server has stored what was sent.

    Args:
        before: the object before the write.
        written: after it. If it is the same, the status is changed in the same way each time, and that ends. If the
            spec was edited in between, that asks for another status, and soon.
        sent: the status that was sent.
        stored: the same part of the status that was stored.

    Raises:
        StatusChanged: it has not.
    """
    versions, generations = (
        [obj["metadata"].get(field) for obj in (before, written)] for field in ("resourceVersion", "generation")
    )
    if sent != stored and versions[0] != versions[1] and generations[0] == generations[1]:
        fields = sorted(key for key in sent.keys() | stored.keys() if sent.get(key) != stored.get(key))
        raise StatusChanged(written, fields)
