"""PersistentVolumes, claims and storage as scheduling decides on them, with what pods on nodes use of them.

A decision reserves what it is going to bind: the volume then counts as held for the claim, and a claim whose volume is
to be made counts as having its node. So two pods of one cycle do not take the same volume, and pods that share a claim
agree on the node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from concerto.api.pod import PodView
from concerto.api.volume_migration import VolumeID, driver_of_provisioner
from concerto.api.volumes import (
    ClaimKey,
    ClaimRef,
    CSIDriver,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    Terms,
    VolumeAttachment,
)
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import NO_ROWS, Bools, Ints, Rows
from concerto.scheduling.state.labels import LabelIndex
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.volume_reservations import VolumeReservations
from concerto.scheduling.state.volume_use import VolumeUse

MAX_REACHABLE_BYTES = 2**26
"""Of rows that volumes' node affinities accept: each volume may have one of its own that accepts all nodes."""


class VolumeIndex(PodIndex):
    """Storage objects, what pods use of them, and what decisions have reserved.

    Args:
        rows: names and rows.
        labels: node labels, for the affinity of volumes.

    Attributes:
        volumes: PersistentVolumes by name; change them by the methods only, as all that follows.
        claims: by namespace and name.
        classes: StorageClasses by name.
        drivers: CSIDrivers by name.
        use: what pods on nodes use, what is attached, and the limits of nodes.
        reservations: what decisions have reserved.
    """

    def __init__(self, rows: NodeRows, labels: LabelIndex) -> None:
        self._rows = rows
        self._labels = labels
        self.volumes: dict[str, PersistentVolume] = {}
        self.claims: dict[ClaimKey, PersistentVolumeClaim] = {}
        self.classes: dict[str, StorageClass] = {}
        self.drivers: dict[str, CSIDriver] = {}
        self.use = VolumeUse(rows, self._csi_volume)
        self.reservations = VolumeReservations()
        self._by_class: dict[str, dict[str, PersistentVolume]] = {}
        self._sorted: dict[str, list[PersistentVolume]] = {}  # by class, once somebody has asked
        self._capacities: dict[str, dict[tuple[str, str], CSIStorageCapacity]] = {}
        self._claims_of: dict[str, set[ClaimKey]] = {}  # by the volume's name
        self._reachable: dict[Terms, Ints] = {}
        self._reachable_version = -1
        self._reachable_bytes = 0
        self._room: dict[str, Ints] = {}  # by class: by row, the largest volume that can be made, and all that is free
        self._room_version = -1

    # --- what is asked

    def claim_of(self, volume: PersistentVolume) -> ClaimRef | None:
        """The claim that a volume is bound to, held for, or reserved for."""
        if volume.claim is not None or not (holders := self.reservations.holders(volume.name)):
            return volume.claim
        claims = map(self.claims.get, holders)
        return next((ClaimRef(claim.key, claim.uid) for claim in claims if claim is not None), None)

    def selected_node(self, claim: PersistentVolumeClaim) -> str | None:
        """The node that a claim's volume is being made for, or reserved for; None before a node is selected."""
        return self.reservations.node(claim.key) if claim.selected_node is None else claim.selected_node

    def count_of_class(self, name: str) -> int:
        """How many volumes the class has."""
        return len(self._by_class.get(name, ()))

    def of_class(self, name: str) -> Sequence[PersistentVolume]:
        """The volumes of a class, smallest first."""
        if name not in self._by_class:
            return ()
        if name not in self._sorted:
            self._sorted[name] = sorted(self._by_class[name].values(), key=lambda v: (v.bytes, v.name))
        return self._sorted[name]

    def waits(self, claim: PersistentVolumeClaim) -> bool:
        """Whether a claim that is not bound is to be bound when a pod that uses it gets a node."""
        storage_class = self.classes.get(claim.storage_class)
        return storage_class is not None and storage_class.waits and not claim.volume_name

    def reach(self, terms: Terms | None) -> Rows:
        """The rows whose labels a volume's node affinity accepts."""
        if terms is None:
            return slice(0, self._rows.size)
        if self._reachable_version != self._labels.version:
            self._forget_reachable()
            self._reachable_version = self._labels.version
        if terms not in self._reachable:
            accepted = [self._labels.rows_in_term(term) for term in terms]
            rows = accepted[0] if len(accepted) == 1 else np.unique(np.concatenate([NO_ROWS, *accepted]))
            self._reachable_bytes += rows.nbytes
            if self._reachable_bytes > MAX_REACHABLE_BYTES:
                self._forget_reachable()
                self._reachable_bytes = rows.nbytes
            self._reachable[terms] = rows
        return self._reachable[terms]

    def reaches(self, volume: PersistentVolume) -> Bools:
        """By row, whether the node can reach a bound volume: where a CSI driver serves it, by the driver's labels."""
        mask = self._mask(self.reach(volume.affinity))
        if volume.migrated_affinity != volume.affinity:
            rows = self.use.rows_served(volume.plugin)
            mask[rows] = self._mask(self.reach(volume.migrated_affinity))[rows]
        return mask

    def has_topology(self, storage_class: StorageClass) -> Bools:
        """By row, whether volumes of the class can be made for the node."""
        if not storage_class.topologies:
            return self._mask(slice(0, self._rows.size))
        mask = self._mask(slice(0, 0))
        for term in storage_class.topologies:
            if term:
                mask |= self._labels.matching(term, slice(0, self._rows.size))
        return mask

    def has_room(self, storage_class: StorageClass, size: int | None) -> Bools:
        """By row, whether a volume of that size can be made for the node, as far as the class's driver says."""
        driver = self.drivers.get(storage_class.provisioner)
        if size is None or driver is None or not driver.tracks_capacity:
            return self._mask(slice(0, self._rows.size))
        roomy: Bools = self._room_of(storage_class.name)[0] >= max(size, 0)
        return roomy

    def free_bytes(self, storage_class: StorageClass) -> Ints:
        """By row, what is free for volumes of the class; -1 where that is not known.

        Of several CSIStorageCapacities, that of the largest volume says so, and of equal ones that with the most room.
        kube-scheduler uses any that has room for the volume, in the order of a map.
        """
        driver = self.drivers.get(storage_class.provisioner)
        if driver is None or not driver.tracks_capacity:
            return np.full(self._rows.size, -1, dtype=np.int64)
        free: Ints = self._room_of(storage_class.name)[1]
        return free

    def csi_volume(self, claim: PersistentVolumeClaim) -> VolumeID | None:
        """Driver and handle of a claim's volume; before there is one, its driver and a handle of its own."""
        volume = self.volumes.get(claim.volume_name)
        if volume is not None:
            return volume.volume
        storage_class = self.classes.get(claim.storage_class)
        driver = "" if storage_class is None else driver_of_provisioner(storage_class.provisioner)
        return (driver, f"claim {claim.key.namespace}/{claim.key.name}") if driver else None

    # --- storage objects

    def set_volume(self, volume: PersistentVolume) -> Change:
        """A PersistentVolume as the API server has it now."""
        self._forget_class_of(volume.name)
        self.volumes[volume.name] = volume
        self._by_class.setdefault(volume.storage_class, {})[volume.name] = volume
        self._sorted.pop(volume.storage_class, None)
        self._recount_volume(volume.name)
        return Change.VOLUMES

    def remove_volume(self, name: str) -> Change:
        """A PersistentVolume is gone."""
        self._forget_class_of(name)
        self.volumes.pop(name, None)
        self._recount_volume(name)
        return Change.VOLUMES

    def set_claim(self, claim: PersistentVolumeClaim) -> Change:
        """A PersistentVolumeClaim as the API server has it now."""
        self._forget_volume_of(claim.key)
        self.claims[claim.key] = claim
        if claim.volume_name:
            self._claims_of.setdefault(claim.volume_name, set()).add(claim.key)
        self.use.recount_claim(claim.key)
        return Change.NOTHING  # but to pods that use it: see Queue.requeue_users

    def remove_claim(self, key: ClaimKey) -> Change:
        """A PersistentVolumeClaim is gone."""
        self._forget_volume_of(key)
        self.claims.pop(key, None)
        self.use.recount_claim(key)
        return Change.NOTHING  # but to pods that use it: see Queue.requeue_users

    def set_class(self, storage_class: StorageClass) -> Change:
        """A StorageClass as the API server has it now."""
        before = self.classes.get(storage_class.name)
        self.classes[storage_class.name] = storage_class
        if before is None or before.provisioner != storage_class.provisioner:
            self._recount_claims_of_class(storage_class.name)
        return Change.VOLUMES

    def remove_class(self, name: str) -> Change:
        """A StorageClass is gone."""
        self.classes.pop(name, None)
        self._recount_claims_of_class(name)
        return Change.NOTHING

    def set_driver(self, driver: CSIDriver) -> Change:
        """A CSIDriver as the API server has it now."""
        self.drivers[driver.name] = driver
        return Change.VOLUMES

    def remove_driver(self, name: str) -> Change:
        """A CSIDriver is gone."""
        self.drivers.pop(name, None)
        return Change.VOLUMES

    def set_capacity(self, capacity: CSIStorageCapacity) -> Change:
        """A CSIStorageCapacity as the API server has it now."""
        self._forget_capacity(capacity.key)
        self._capacities.setdefault(capacity.storage_class, {})[capacity.key] = capacity
        self._room.pop(capacity.storage_class, None)
        return Change.VOLUMES

    def remove_capacity(self, key: tuple[str, str]) -> Change:
        """A CSIStorageCapacity is gone."""
        self._forget_capacity(key)
        return Change.NOTHING

    def set_attachment(self, attachment: VolumeAttachment) -> Change:
        """A VolumeAttachment as the API server has it now."""
        self.use.set_attachment(attachment, self.volumes.get(attachment.volume_name))
        return Change.NOTHING

    # --- nodes and pods

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self.use.grow(width)

    def row_assigned(self, row: int) -> None:
        """The row stands for another node from now on; what names the node may have come before."""
        self._forget_reachable()
        self._room.clear()
        self.use.row_assigned(row)
        for attachment in self.use.attachments.of_node(self._rows.names[row]):
            self.set_attachment(attachment)

    def pod_added(self, pod: PodView, row: int) -> None:
        """Count the pod's volumes on the row."""
        self.use.add_pod(pod, row)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """Take the pod's volumes off the row."""
        self.use.remove_pod(pod, row)

    # --- inside

    def _csi_volume(self, key: ClaimKey) -> VolumeID | None:
        claim = self.claims.get(key)
        return None if claim is None else self.csi_volume(claim)

    def _room_of(self, name: str) -> Ints:
        """By row, bytes of the largest volume of a class that can be made for the node, and all that is free there.

        Shape (2, rows); -1 for none. Kept until something of it changes: there may be a capacity for each node, and a
        pod with a thousand claims.
        """
        if self._room_version != self._labels.version:
            self._room.clear()
            self._room_version = self._labels.version
        if name not in self._room:
            room: Ints = np.full((2, self._rows.size), -1, dtype=np.int64)
            amounts, reached = [], []
            for capacity in self._capacities.get(name, {}).values():
                if capacity.nodes.requirements is not None and capacity.max_bytes is not None:
                    amounts.append((capacity.max_bytes, capacity.free_bytes))
                    reached.append(self._labels.rows_matching(capacity.nodes.requirements))
            # Where several reach a row, the largest is written last. All at once, as each node may have one of its own
            order = sorted(range(len(amounts)), key=amounts.__getitem__)
            if order:
                numbers = np.array([amounts[index] for index in order], dtype=np.int64)
                rows = [reached[index] for index in order]
                room.T[np.concatenate(rows)] = np.repeat(numbers, [len(each) for each in rows], axis=0)
            self._room[name] = room
        return self._room[name]

    def _mask(self, rows: Rows) -> Bools:
        mask: Bools = np.zeros(self._rows.size, dtype=np.bool_)
        mask[rows] = True
        return mask

    def _recount_volume(self, name: str) -> None:
        for key in list(self._claims_of.get(name, ())):
            self.use.recount_claim(key)
        for attachment in self.use.attachments.of_volume(name):
            self.set_attachment(attachment)

    def _recount_claims_of_class(self, name: str) -> None:
        """Another driver serves them now, unless they are bound. Hundreds may come after all pods and claims."""
        claims = self.claims
        self.use.recount_claims(lambda key: key in claims and claims[key].storage_class == name)

    def _forget_reachable(self) -> None:
        self._reachable.clear()
        self._reachable_bytes = 0

    def _forget_class_of(self, name: str) -> None:
        volume = self.volumes.get(name)
        if volume is not None:
            self._sorted.pop(volume.storage_class, None)
            same = self._by_class[volume.storage_class]
            del same[name]
            if not same:
                del self._by_class[volume.storage_class]

    def _forget_volume_of(self, key: ClaimKey) -> None:
        claim = self.claims.get(key)
        if claim is not None and claim.volume_name:
            same = self._claims_of[claim.volume_name]
            same.discard(key)
            if not same:
                del self._claims_of[claim.volume_name]

    def _forget_capacity(self, key: tuple[str, str]) -> None:
        for name, found in list(self._capacities.items()):
            if found.pop(key, None) is not None:
                self._room.pop(name, None)
            if not found:
                del self._capacities[name]
