"""Short ways to make storage objects."""

from __future__ import annotations

from typing import Any

from concerto.api.volumes import (
    BIND_COMPLETED,
    SELECTED_NODE,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from concerto.scheduling.state.cluster import ClusterState

HOSTNAME = "kubernetes.io/hostname"


def raw_claim(name: str = "data", **over: Any) -> dict[str, Any]:
    """A raw claim of 1Gi in class ``local`` that waits; ``volume`` binds it, ``node`` selects one for it."""
    annotations = {}
    if volume := over.pop("volume", ""):
        over["volumeName"] = volume
        annotations[BIND_COMPLETED] = "yes"
    if node := over.pop("node", ""):
        annotations[SELECTED_NODE] = node
    metadata: dict[str, Any] = {
        "namespace": over.pop("namespace", "default"),
        "name": name,
        "uid": over.pop("uid", f"claim-{name}"),
        "resourceVersion": over.pop("version", "1"),
        "annotations": annotations,
    }
    if owner := over.pop("owner", ""):
        metadata["ownerReferences"] = [{"kind": "Pod", "controller": True, "uid": owner}]
    if over.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-03-01T12:00:01Z"
    status = {"phase": over.pop("phase", "Bound" if volume else "Pending")}
    spec: dict[str, Any] = {
        "storageClassName": "local",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": over.pop("size", "1Gi")}},
    }
    return {"metadata": metadata, "spec": spec | over, "status": status}


def claim(name: str = "data", **over: Any) -> PersistentVolumeClaim:
    return PersistentVolumeClaim.from_raw(raw_claim(name, **over))


def raw_volume(name: str = "disk", **over: Any) -> dict[str, Any]:
    """A raw available volume of 1Gi in class ``local``; ``on`` names the node that reaches it, ``claim`` its claim."""
    metadata: dict[str, Any] = {
        "name": name,
        "uid": over.pop("uid", f"volume-{name}"),
        "resourceVersion": over.pop("version", "1"),
        "labels": over.pop("labels", {}),
    }
    if over.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-03-01T12:00:01Z"
    spec: dict[str, Any] = {
        "storageClassName": "local",
        "capacity": {"storage": over.pop("size", "1Gi")},
        "accessModes": ["ReadWriteOnce"],
    }
    if on := over.pop("on", ""):
        spec["nodeAffinity"] = node_affinity(HOSTNAME, on)
    held = over.pop("claim", "")
    if held:
        spec["claimRef"] = {"namespace": "default", "name": held, "uid": over.pop("claim_uid", f"claim-{held}")}
    status = {"phase": over.pop("phase", "Bound" if held else "Available")}
    return {"metadata": metadata, "spec": spec | over, "status": status}


def volume(name: str = "disk", **over: Any) -> PersistentVolume:
    return PersistentVolume.from_raw(raw_volume(name, **over))


def node_affinity(key: str, *values: str) -> dict[str, Any]:
    """``spec.nodeAffinity`` of a volume that nodes with one of these values of a label reach."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
    return {"required": {"nodeSelectorTerms": [term]}}


def storage_class(name: str = "local", **over: Any) -> StorageClass:
    """A class that waits for the first pod, and for which nothing is provisioned."""
    raw = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    return StorageClass.from_raw({"metadata": {"name": name}} | raw | over)


def csi_node(node: str, limits: dict[str, int | None] | None = None, migrated: str = "") -> CSINode:
    drivers = [
        {"name": name} if count is None else {"name": name, "allocatable": {"count": count}}
        for name, count in (limits or {}).items()
    ]
    annotations = {"storage.alpha.kubernetes.io/migrated-plugins": migrated}
    return CSINode.from_raw({"metadata": {"name": node, "annotations": annotations}, "spec": {"drivers": drivers}})


def csi_driver(name: str = "csi.example.com", **spec: Any) -> CSIDriver:
    return CSIDriver.from_raw({"metadata": {"name": name}, "spec": spec})


def csi_capacity(name: str, size: str, labels: dict[str, str] | None, **over: Any) -> CSIStorageCapacity:
    """Room of a class on the nodes with these labels; None: nobody reaches it."""
    raw: dict[str, Any] = {
        "metadata": {"namespace": "csi", "name": name},
        "storageClassName": "fast",
        "capacity": size,
    }
    if labels is not None:
        raw["nodeTopology"] = {"matchLabels": labels}
    return CSIStorageCapacity.from_raw(raw | over)


def attachment(name: str, node: str, volume_name: str, driver: str = "csi.example.com") -> VolumeAttachment:
    source = {"persistentVolumeName": volume_name}
    return VolumeAttachment.from_raw(
        {"metadata": {"name": name}, "spec": {"nodeName": node, "attacher": driver, "source": source}}
    )


def mounts(*claims: str, **over: Any) -> dict[str, Any]:
    """Spec of a pod with these claims; each of ``ephemeral`` makes its own."""
    volumes = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(claims)]
    volumes += [{"name": name, "ephemeral": {"volumeClaimTemplate": {}}} for name in over.pop("ephemeral", ())]
    return {"volumes": volumes} | over


def store(cluster: ClusterState, *storage: Any) -> ClusterState:
    """The cluster, once it has these storage objects."""
    volumes = cluster.volumes
    verbs = {
        PersistentVolume: volumes.set_volume,
        PersistentVolumeClaim: volumes.set_claim,
        StorageClass: volumes.set_class,
        CSINode: volumes.use.set_csi_node,
        CSIDriver: volumes.set_driver,
        CSIStorageCapacity: volumes.set_capacity,
        VolumeAttachment: volumes.set_attachment,
    }
    for each in storage:
        verbs[type(each)](each)
    return cluster
