"""Which placements the volumes of a pod forbid, by the documentation alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from e2e.testbed.placement.amounts import amount
from e2e.testbed.placement.disks import MIGRATED_PLUGINS, are_in_conflict, in_driver_terms, volume_id
from e2e.testbed.placement.selection import matches_terms

Object = Mapping[str, Any]
_OTHER_ZONE = "zone of a volume"
_ZONES = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of a volume that name zones, and the label of a node that says the same where it lacks that one."""


class Storage:
    """Volumes and claims of a cluster.

    Args:
        objects: PersistentVolumes, claims, StorageClasses, CSIDrivers, CSINodes, CSIStorageCapacities and
            VolumeAttachments.
        pods: those that run.
    """

    def __init__(self, objects: list[Object], pods: list[Object]) -> None:
        self._of = {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in objects}
        self._pods = pods

    def broken(self, pod: Object, node: Object) -> set[str]:
        """The rules that the pod's volumes would break on the node."""
        found = set()
        for claim in self._claims(pod):
            if claim is None:
                found.add("a claim that does not exist")
                continue
            if "ReadWriteOncePod" in claim["spec"]["accessModes"] and self._is_used(claim):
                found.add("a claim for one pod that another uses")
            broken = self._broken_by(claim, node)
            # kube-scheduler compares zones for the claims that pods name, and not for those of ephemeral volumes
            found |= broken - {_OTHER_ZONE} if claim in self._own_claims(pod) else broken
        if any(claim and not _is_owned(claim, pod) for claim in self._own_claims(pod)):
            found.add("a claim that was made for another pod")
        there = [p for p in self._pods if p["spec"].get("nodeName") == node["metadata"]["name"]]
        if any(are_in_conflict(pod, other) for other in there):
            found.add("a disk that another pod has")
        return found | self._beyond_limit(pod, node)

    def _claims(self, pod: Object) -> list[Object | None]:
        volumes = pod["spec"].get("volumes") or ()
        names = [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]
        return [self._claim(pod, name) for name in names] + self._own_claims(pod)

    def _own_claims(self, pod: Object) -> list[Object | None]:
        """Those of generic ephemeral volumes."""
        volumes = pod["spec"].get("volumes") or ()
        return [self._claim(pod, f"{pod['metadata']['name']}-{v['name']}") for v in volumes if "ephemeral" in v]

    def _claim(self, pod: Object, name: str) -> Object | None:
        return self._of.get(("PersistentVolumeClaim", pod["metadata"]["namespace"], name))

    def _is_used(self, claim: Object) -> bool:
        return any(claim is other for pod in self._pods for other in self._claims(pod))

    def _broken_by(self, claim: Object, node: Object) -> set[str]:
        volume = self._volume_of(claim)
        if volume is not None:
            return self._out_of_reach(volume, node)
        storage_class = self._of.get(("StorageClass", "", claim["spec"]["storageClassName"]))
        waits = storage_class is not None and storage_class["volumeBindingMode"] == "WaitForFirstConsumer"
        if storage_class is None or not waits or claim["spec"].get("volumeName"):
            return {"a claim that is not bound"}
        if _selected_node(claim) not in ("", node["metadata"]["name"]):
            return {"a claim whose volume is made for another node"}
        if any(self._suits(v, claim) and not self._out_of_reach(v, node) for v in self._all("PersistentVolume")):
            return set()
        if storage_class["provisioner"] == "kubernetes.io/no-provisioner":
            return {"no volume for a claim"}
        topologies = storage_class.get("allowedTopologies")
        allowed = not topologies or any(
            all(
                node["metadata"]["labels"].get(e["key"]) in e["values"] for e in term.get("matchLabelExpressions") or ()
            )
            for term in topologies
        )
        possible = allowed and (not self._is_counted(claim) or bool(self._with_room(claim, node)))
        return set() if possible else {"no volume can be made for a claim"}

    def scores_of_room(self, pod: Object, node: Object) -> set[int]:
        """Percent that would stay free of each CSIStorageCapacity with room for the volumes that the pod needs made.

        kube-scheduler uses, for all volumes of a class, the one that it has found for the last of them: the first with
        room in the order of a map. Empty for volumes of more classes than one.
        """
        waiting = [c for c in self._claims(pod) if c is not None and self._volume_of(c) is None and self._is_counted(c)]
        if len({claim["spec"]["storageClassName"] for claim in waiting}) != 1:
            return set()
        last = max(waiting, key=lambda claim: (not _selected_node(claim), _size(claim)))
        size = sum(map(_size, waiting))
        found = (amount(each.get("capacity") or "0") for each in self._with_room(last, node))
        return {100 - math.floor(size * 100 / total) if 0 < total >= size else 0 for total in found}

    def _is_counted(self, claim: Object) -> bool:
        """Whether the claim's driver publishes where it has room."""
        storage_class = self._of.get(("StorageClass", "", claim["spec"]["storageClassName"]), {"provisioner": ""})
        driver = self._of.get(("CSIDriver", "", storage_class["provisioner"]), {"spec": {}})
        return bool(driver["spec"].get("storageCapacity"))

    def _with_room(self, claim: Object, node: Object) -> list[Object]:
        """The CSIStorageCapacities of the claim's class by which such a volume can be made for the node."""
        labels = node["metadata"]["labels"]
        return [
            each
            for each in self._all("CSIStorageCapacity")
            if each["storageClassName"] == claim["spec"]["storageClassName"]
            and "nodeTopology" in each
            and (each["nodeTopology"].get("matchLabels") or {}).items() <= labels.items()
            and amount(each.get("maximumVolumeSize") or each.get("capacity") or "0") >= _size(claim)
        ]

    def _volume_of(self, claim: Object) -> Object | None:
        return self._of.get(("PersistentVolume", "", claim["spec"].get("volumeName", "")))

    def _all(self, kind: str) -> list[Object]:
        return [o for (found, _, _), o in self._of.items() if found == kind]

    def _suits(self, volume: Object, claim: Object) -> bool:
        spec, wanted, labels = volume["spec"], claim["spec"], volume["metadata"].get("labels") or {}
        return (
            "claimRef" not in spec
            and spec["storageClassName"] == wanted["storageClassName"]
            and spec.get("volumeMode", "Filesystem") == wanted.get("volumeMode", "Filesystem")
            and spec.get("volumeAttributesClassName") == wanted.get("volumeAttributesClassName")
            and set(wanted["accessModes"]) <= set(spec["accessModes"])
            and (wanted.get("selector") or {}).get("matchLabels", {}).items() <= labels.items()
            and amount(spec["capacity"]["storage"]) >= amount(wanted["resources"]["requests"]["storage"])
        )

    def _out_of_reach(self, volume: Object, node: Object) -> set[str]:
        labels = node["metadata"]["labels"]
        found = set()
        required = (volume["spec"].get("nodeAffinity") or {}).get("required")
        terms = required and required["nodeSelectorTerms"]
        if "claimRef" in volume["spec"] and self._is_migrated(node):
            terms = in_driver_terms(volume, terms)
        if terms and not matches_terms(terms, node):
            found.add("node affinity of a volume")
        # A claim that is to get the volume does not ask for its zone: only a bound claim does
        if "claimRef" in volume["spec"] and any(key in labels for key in _ZONES):
            for key, current in _ZONES.items():
                zones = (volume["metadata"].get("labels") or {}).get(key)
                if zones and labels.get(key, labels.get(current)) not in zones.split("__"):
                    found.add(_OTHER_ZONE)
        return found

    def _is_migrated(self, node: Object) -> bool:
        """Whether a CSI driver serves the volumes of the in-tree plugin on the node."""
        csi_node = self._of.get(("CSINode", "", node["metadata"]["name"]), {"metadata": {}})
        return MIGRATED_PLUGINS in (csi_node["metadata"].get("annotations") or {})

    def _beyond_limit(self, pod: Object, node: Object) -> set[str]:
        csi_node = self._of.get(("CSINode", "", node["metadata"]["name"]))
        there = [p for p in self._pods if p["spec"].get("nodeName") == node["metadata"]["name"]]
        attached = {volume for other in there for volume in self._attachable(other)}
        new = self._attachable(pod) - attached
        attached |= self._still_attached(node)
        drivers = (csi_node or {"spec": {"drivers": []}})["spec"]["drivers"] or ()
        strict = {
            d["metadata"]["name"] for d in self._all("CSIDriver") if d["spec"].get("preventPodSchedulingIfMissing")
        }
        if strict & {driver for driver, _ in new} - {driver["name"] for driver in drivers}:
            return {"a driver that is not on the node"}
        for driver in drivers:
            mine = {volume for volume in new if volume[0] == driver["name"]}
            count = (driver.get("allocatable") or {}).get("count")
            held = sum(volume[0] == driver["name"] for volume in attached)
            if mine and count is not None and held + len(mine) > count:
                return {"volumes that a node can attach"}
        return set()

    def _still_attached(self, node: Object) -> set[tuple[str, str]]:
        """Volumes of VolumeAttachments, which kube-scheduler counts a second time if the pod brings one of them."""
        specs = [o["spec"] for o in self._all("VolumeAttachment")]
        names = [s["source"]["persistentVolumeName"] for s in specs if s["nodeName"] == node["metadata"]["name"]]
        volumes = [self._of["PersistentVolume", "", name]["spec"]["csi"] for name in names]
        return {(csi["driver"], csi["volumeHandle"]) for csi in volumes}

    def _attachable(self, pod: Object) -> set[tuple[str, str]]:
        """Volumes of CSI drivers, those that are to be made among them."""
        found: set[tuple[str, str] | None] = set()
        for claim in self._claims(pod):
            volume = None if claim is None else self._volume_of(claim)
            if volume is not None:
                found.add(volume_id(volume["spec"]))
            elif claim is not None and not claim["spec"].get("volumeName"):
                storage_class = self._of.get(("StorageClass", "", claim["spec"]["storageClassName"]))
                name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
                found.add(None if storage_class is None else (storage_class["provisioner"], name))
        found |= {volume_id(volume) for volume in pod["spec"].get("volumes") or () if "csi" not in volume}
        return {each for each in found if each is not None}


def _size(claim: Object) -> Fraction:
    return amount(claim["spec"]["resources"]["requests"]["storage"])


def _selected_node(claim: Object) -> str:
    annotations: Mapping[str, str] = claim["metadata"].get("annotations") or {}
    return annotations.get("volume.kubernetes.io/selected-node", "")


def _is_owned(claim: Object, pod: Object) -> bool:
    owners = claim["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["uid"] == pod["metadata"]["uid"] for owner in owners)
