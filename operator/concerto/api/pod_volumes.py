"""The volumes of a pod that matter for where it can run: claims, and disks that are attached to the node.

Source: Kubernetes' Pod API (core/v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from concerto.api.volume_migration import MIGRATED_SOURCES, VolumeID, migrated_volume

Raw = Mapping[str, Any]
DiskPlace = tuple[str, ...]
"""Kind and name of a disk, and one of its monitors if it has any."""

MAX_BYTES = 64 * 1024
"""Size of a pod's claims, disks and images of volumes beyond which it is refused: anybody may write 1.5 MiB of them."""

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
_LEFT_OUT: dict[str, Any] = {"name": "", "leftOut": {}}
"""What is kept of the volumes of a pod that has too many."""


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
    def places(self) -> tuple[DiskPlace, ...]:
        """One node can't have two disks that share one of these, unless neither is exclusive.

        Source: kube-scheduler's VolumeRestrictions.
        """
        place = (self.kind, *self.name)
        return tuple((*place, monitor) for monitor in self.monitors) if self.monitors else (place,)

    @property
    def exclusive(self) -> bool:
        """Whether it conflicts with each other mount of the disk, and not only with those that are exclusive."""
        return not (self.shareable and self.read_only)


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


def are_left_out(volumes: list[Raw] | None) -> bool:
    """Whether the pod has more volumes than are evaluated, so that ``trim_volumes`` has left them out."""
    return volumes is not None and _LEFT_OUT in volumes[:1]


def trim_volumes(volumes: list[Raw] | None) -> list[dict[str, Any]]:
    """The part of ``spec.volumes`` that ``pod_volumes`` and ``pod.images_of`` read; none of it if it is too large."""
    trimmed = []
    for volume in volumes or ():
        found = {
            source: {key: volume[source][key] for key in keys if key in volume[source]}
            for source, keys in _KEPT.items()
            if volume.get(source) is not None
        }
        if found:
            trimmed.append({"name": volume["name"], **found})
    return [dict(_LEFT_OUT)] if trimmed and len(orjson.dumps(trimmed)) > MAX_BYTES else trimmed
