"""The volumes of a pod that matter for where it can run: claims, and disks that are attached to the node.

Source: Kubernetes' Pod API (core/v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.volume_migration import MIGRATED_SOURCES, VolumeID, migrated_volume

Raw = Mapping[str, Any]
DiskKey = tuple[str, tuple[str, ...]]
"""Kind and name of a disk."""

_KEPT = {
    "persistentVolumeClaim": ("claimName",),
    "ephemeral": (),
    "gcePersistentDisk": ("pdName", "readOnly"),
    "awsElasticBlockStore": ("volumeID",),
    "iscsi": ("iqn", "readOnly"),
    "rbd": ("monitors", "pool", "image", "readOnly"),
    "azureDisk": ("diskURI", "kind"),
    "cinder": ("volumeID",),
    "portworxVolume": ("volumeID",),
    "image": ("reference",),
}
SOURCES = tuple(_KEPT)
"""Fields of a volume, each of another sort, of which something is read."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A PersistentVolumeClaim that a pod mounts.

    Attributes:
        name: the claim's name, in the pod's namespace.
        ephemeral: whether it is made for this pod alone (a generic ephemeral volume).
    """

    name: str
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk named in the pod itself, which two pods of one node may not both have.

    Attributes:
        kind: the field of the volume that names it.
        name: what identifies it; two disks with the same name are one.
        monitors: of a Ceph image, one of which two volumes must share to be one.
        shareable: whether pods that all mount it read-only may share it.
        read_only: whether it is mounted read-only.
    """

    kind: str
    name: tuple[str, ...]
    monitors: tuple[str, ...] = ()
    shareable: bool = True
    read_only: bool = False

    @property
    def key(self) -> DiskKey:
        """Only disks with the same key can conflict."""
        return self.kind, self.name

    def conflicts(self, other: Disk) -> bool:
        """Whether one node can't have both. Source: kube-scheduler's VolumeRestrictions."""
        if self.key != other.key:
            return False
        if self.monitors and not set(self.monitors) & set(other.monitors):
            return False
        return not (self.shareable and self.read_only and other.read_only)


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """The volumes of a pod that matter for where it can run.

    Attributes:
        claims: in the pod's order, each once, however often the pod mounts it.
        disks: that conflict with those of other pods.
        attached: volumes of CSI drivers that are named in the pod itself.
    """

    claims: tuple[PodClaim, ...] = ()
    disks: tuple[Disk, ...] = ()
    attached: tuple[VolumeID, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.claims or self.disks or self.attached)

    @property
    def ephemeral(self) -> bool:
        """Whether a claim belongs to this pod alone."""
        return any(claim.ephemeral for claim in self.claims)


NO_VOLUMES = PodVolumes()


def pod_volumes(name: str, volumes: list[Raw] | None) -> PodVolumes:
    """``spec.volumes`` of the pod of that name."""
    claims: list[PodClaim] = []
    disks: list[Disk] = []
    attached: list[VolumeID] = []
    for volume in volumes or ():
        if (claim := volume.get("persistentVolumeClaim")) is not None:
            claims.append(PodClaim(claim["claimName"]))
        elif "ephemeral" in volume:
            claims.append(PodClaim(f"{name}-{volume['name']}", ephemeral=True))
        else:
            if (disk := _disk(volume)) is not None:
                disks.append(disk)
            if any(volume.get(source) for source in MIGRATED_SOURCES) and (found := migrated_volume(volume)):
                attached.append(found)
    if not (claims or disks or attached):
        return NO_VOLUMES
    return PodVolumes(tuple(dict.fromkeys(claims)), tuple(disks), tuple(attached))


def _disk(volume: Raw) -> Disk | None:
    if found := volume.get("gcePersistentDisk"):
        return Disk("gcePersistentDisk", (found["pdName"],), read_only=bool(found.get("readOnly")))
    if found := volume.get("awsElasticBlockStore"):
        return Disk("awsElasticBlockStore", (found["volumeID"],), shareable=False)
    if found := volume.get("iscsi"):
        return Disk("iscsi", (found["iqn"],), read_only=bool(found.get("readOnly")))
    if found := volume.get("rbd"):
        name = (found.get("pool") or "rbd", found["image"])
        return Disk("rbd", name, tuple(found.get("monitors") or ()), read_only=bool(found.get("readOnly")))
    return None


def trim_volumes(volumes: list[Raw] | None) -> list[dict[str, Any]]:
    """The part of ``spec.volumes`` that ``pod_volumes`` and ``pod.images_of`` read."""
    trimmed = []
    for volume in volumes or ():
        found = {
            source: {key: volume[source][key] for key in keys if key in volume[source]}
            for source, keys in _KEPT.items()
            if volume.get(source) is not None
        }
        if found:
            trimmed.append({"name": volume["name"], **found})
    return trimmed
