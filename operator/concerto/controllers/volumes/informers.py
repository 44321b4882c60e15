"""How storage objects reach the state on which cycles decide, and the binder that waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from concerto.api.volumes import (
    ClaimKey,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.scheduling.informers import Informer
from concerto.controllers.scheduling.pending import PendingPods
from concerto.controllers.volumes.binder import VolumeBinder
from concerto.kube import Object
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.volumes import VolumeIndex


class VolumeInformers:
    """The informer of each kind.

    Attributes:
        classes: StorageClasses.
        csi_nodes: CSINodes.
        drivers: CSIDrivers.
        capacities: CSIStorageCapacities.
        attachments: VolumeAttachments.

    Args:
        index: what is seen goes there.
        binder: learns of volumes and claims that it waits for.
        metrics: counts objects that cannot be read.
        pending: pods that wait, some of which may find a node now.
    """

    def __init__(self, index: VolumeIndex, binder: VolumeBinder, metrics: Metrics, pending: PendingPods) -> None:
        self._binder = binder
        self._pending = pending

        def informer(kind: type[Any], put: Callable[[Any], Change], remove: Callable[[Object], Change]) -> Informer:
            return Informer(kind.__name__, kind.from_raw, put, remove, metrics, pending.requeue)

        def by_name(remove: Callable[[str], Change]) -> Callable[[Object], Change]:
            return lambda obj: remove(obj["metadata"]["name"])

        self._volumes = informer(PersistentVolume, index.set_volume, by_name(index.remove_volume))
        self._claims = informer(PersistentVolumeClaim, index.set_claim, lambda obj: index.remove_claim(_key(obj)))
        self.classes = informer(StorageClass, index.set_class, by_name(index.remove_class))
        self.csi_nodes = informer(CSINode, index.use.set_csi_node, by_name(index.use.remove_csi_node))
        self.drivers = informer(CSIDriver, index.set_driver, by_name(index.remove_driver))
        self.capacities = informer(
            CSIStorageCapacity, index.set_capacity, lambda obj: index.remove_capacity((*_key(obj),))
        )
        self.attachments = informer(VolumeAttachment, index.set_attachment, by_name(index.use.remove_attachment))

    def on_volume(self, old: Object | None, new: Object | None) -> None:
        """A PersistentVolume appeared, changed or went."""
        self._volumes.on_change(old, new)
        for obj in (old, new):
            if obj is not None:
                ref = obj["spec"].get("claimRef") or {}
                key = ClaimKey(ref.get("namespace", ""), ref.get("name", "")) if ref else None
                self._binder.on_volume(obj["metadata"]["name"], key)

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """A PersistentVolumeClaim appeared, changed or went."""
        self._claims.on_change(old, new)
        key = _key(new or old or {})
        self._pending.requeue_users(key)
        self._binder.on_claim(key)


def _key(obj: Object) -> ClaimKey:
    return ClaimKey(obj["metadata"]["namespace"], obj["metadata"]["name"])
