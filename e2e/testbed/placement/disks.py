"""Disks that pods name themselves, and volumes of an in-tree plugin that a CSI driver has replaced.

By the documentation alone.

Sources: kubernetes.io, "Volumes" (awsElasticBlockStore, gcePersistentDisk, iscsi, rbd), and "Persistent Volumes".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]

DRIVER, DRIVERS_ZONE = "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"
"""The CSI driver that has replaced the plugin of awsElasticBlockStore, and its label of a node's zone."""
MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
"""Annotation of a CSINode that names the plugins whose volumes are the drivers' there."""
_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")


def are_in_conflict(pod: Object, other: Object) -> bool:
    """Whether two pods name a disk that one node cannot have for both."""
    return any(_are_one(*pair) for pair in _pairs(pod, other))


def volume_id(source: Object) -> tuple[str, str] | None:
    """CSI driver and handle of a volume that a driver attaches, in a PersistentVolume's spec or in a pod."""
    if "csi" in source:
        return source["csi"]["driver"], source["csi"]["volumeHandle"]
    if "awsElasticBlockStore" in source:
        return DRIVER, source["awsElasticBlockStore"]["volumeID"]
    return None


def in_driver_terms(volume: Object, terms: Iterable[Object] | None) -> list[Object] | None:
    """Alternatives of a volume's node affinity where the CSI driver serves it: zones are in the driver's own label."""
    if "awsElasticBlockStore" not in volume["spec"]:
        return None if terms is None else list(terms)
    found = [{**term, "matchExpressions": list(term["matchExpressions"])} for term in terms or ()]
    labels = volume["metadata"].get("labels") or {}
    named = {e["key"] for term in found for e in term["matchExpressions"]}
    zone = next((key for keys in (named, labels) for key in _ZONES if key in keys), _ZONES[0])
    if zone in named:
        return [
            {"matchExpressions": [e | {"key": DRIVERS_ZONE if e["key"] == zone else e["key"]} for e in each]}
            for each in (term["matchExpressions"] for term in found)
        ]
    if zone in labels:
        added = {"key": DRIVERS_ZONE, "operator": "In", "values": labels[zone].split("__")}
        expressions = [term["matchExpressions"] for term in found] or [[]]
        return [{"matchExpressions": [*each, added]} for each in expressions]
    return found or None


def _pairs(pod: Object, other: Object) -> Iterator[tuple[str, Object, Object]]:
    for volume in pod["spec"].get("volumes") or ():
        for theirs in other["spec"].get("volumes") or ():
            yield from ((kind, volume[kind], theirs[kind]) for kind in volume.keys() & theirs.keys() - {"name"})


def _are_one(kind: str, disk: Object, other: Object) -> bool:
    both_read = bool(disk.get("readOnly") and other.get("readOnly"))
    match kind:
        case "awsElasticBlockStore":
            return bool(disk["volumeID"] == other["volumeID"])
        case "gcePersistentDisk":
            return bool(disk["pdName"] == other["pdName"]) and not both_read
        case "iscsi":
            return bool(disk["iqn"] == other["iqn"]) and not both_read
        case "rbd":
            same = bool((disk["pool"], disk["image"]) == (other["pool"], other["image"]))
            return same and bool({*disk["monitors"]} & {*other["monitors"]}) and not both_read
    return False
