"""Trimming of raw storage objects, so that a reflector keeps only what ``volumes`` reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from concerto.api.object_bounds import NO_OBJECT, controlling_owner, is_large, trim_metadata
from concerto.api.volume_migration import MIGRATED_SOURCES
from concerto.api.volumes import BETA_CLASS, BIND_COMPLETED, MIGRATED_PLUGINS, SELECTED_NODE

Raw = Mapping[str, Any]

_VOLUME_SPEC = (
    "capacity", "storageClassName", "accessModes", "volumeMode", "volumeAttributesClassName", "nodeAffinity",
)  # fmt: skip
_SOURCE = ("driver", "volumeHandle", "volumeID", "pdName", "diskURI", "kind")
_CLAIM_SPEC = (
    "accessModes", "selector", "storageClassName", "volumeMode", "volumeName", "volumeAttributesClassName",
)  # fmt: skip


def trim_volume(obj: Raw) -> dict[str, Any]:
    """The part of a raw PersistentVolume that ``PersistentVolume`` reads."""
    spec = obj["spec"]
    kept = {k: spec[k] for k in _VOLUME_SPEC if k in spec}
    if ref := spec.get("claimRef"):
        kept["claimRef"] = {k: ref[k] for k in ("namespace", "name", "uid") if k in ref}
    for source in ("csi", *MIGRATED_SOURCES):
        if details := spec.get(source):
            kept[source] = {k: details[k] for k in _SOURCE if k in details}
    return _trimmed(obj, ("labels",), kept, (BETA_CLASS,), ("phase",))


def trim_claim(obj: Raw) -> dict[str, Any]:
    """The part of a raw PersistentVolumeClaim that ``PersistentVolumeClaim`` reads."""
    spec = obj["spec"]
    kept = {k: spec[k] for k in _CLAIM_SPEC if k in spec}
    if "accessModes" in kept:
        kept["accessModes"] = [*dict.fromkeys(kept["accessModes"] or ())]
    if "selector" in kept and is_large(kept["selector"]):
        kept["selector"] = NO_OBJECT
    requested = (spec.get("resources") or {}).get("requests") or {}
    kept["resources"] = {"requests": {k: requested[k] for k in ("storage",) if k in requested}}
    trimmed = _trimmed(obj, ("ownerReferences",), kept, (BETA_CLASS, SELECTED_NODE, BIND_COMPLETED), ("phase",))
    if "ownerReferences" in trimmed["metadata"]:
        trimmed["metadata"]["ownerReferences"] = controlling_owner(trimmed["metadata"]["ownerReferences"])
    return trimmed


def trim_storage_class(obj: Raw) -> dict[str, Any]:
    """The part of a raw StorageClass that ``StorageClass`` reads: not its parameters."""
    kept = {k: obj[k] for k in ("provisioner", "volumeBindingMode", "allowedTopologies") if k in obj}
    return {"metadata": _metadata(obj, (), ()), **kept}


def trim_csi_node(obj: Raw) -> dict[str, Any]:
    """The part of a raw CSINode that ``CSINode`` reads."""
    drivers = [{k: d[k] for k in ("name", "allocatable") if k in d} for d in obj["spec"].get("drivers") or ()]
    return {"metadata": _metadata(obj, (), (MIGRATED_PLUGINS,)), "spec": {"drivers": drivers}}


def trim_bare(obj: Raw) -> dict[str, Any]:
    """A CSIDriver, CSIStorageCapacity or VolumeAttachment without metadata that nobody reads, and without status."""
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")} | {"metadata": _metadata(obj, (), ())}


def _metadata(obj: Raw, fields: Iterable[str], annotations: Iterable[str]) -> dict[str, Any]:
    kept = trim_metadata(obj, "deletionTimestamp", *fields)
    found = obj["metadata"].get("annotations") or {}
    if named := {k: found[k] for k in annotations if k in found}:
        kept["annotations"] = named
    return kept


def _trimmed(
    obj: Raw, fields: Iterable[str], spec: dict[str, Any], annotations: Iterable[str], status: Iterable[str]
) -> dict[str, Any]:
    found = obj.get("status") or {}
    return {
        "metadata": _metadata(obj, fields, annotations),
        "spec": spec,
        "status": {k: found[k] for k in status if k in found},
    }
