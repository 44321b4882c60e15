"""References to objects: what an event is about, and what owns an object."""

from __future__ import annotations

from concerto.kube.request_bodies import Object
from concerto.kube.resources import Resource


def build_event_subject(resource: Resource, name: str, *, namespace: str = "", uid: str = "") -> Object:
    """An object as `EventRecorder.record` takes it, for a caller that does not have the whole object.

    Args:
        resource: its kind.
        name: its name.
        namespace: its namespace; empty for a cluster scoped object.
        uid: its UID: ``kubectl describe`` finds events by UID alone.
    """
    metadata = {"namespace": namespace, "name": name, "uid": uid}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {key: value for key, value in metadata.items() if value},
    }


def build_owner_reference(resource: Resource, name: str, uid: str) -> Object:
    """An item of ``metadata.ownerReferences``: the object goes when its owner has gone."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "uid": uid}
