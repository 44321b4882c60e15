"""What pods on nodes use of volumes, what is attached to nodes, and how many volumes a node can have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from concerto.api.pod import PodView
from concerto.api.volume_migration import VolumeID
from concerto.api.volumes import ClaimKey, CSINode, PersistentVolume, VolumeAttachment
from concerto.scheduling.state.attached_volumes import AttachedVolumes
from concerto.scheduling.state.attachments import Attachments
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.claim_users import ClaimUsers
from concerto.scheduling.state.columns import Ints
from concerto.scheduling.state.node_rows import NodeRows


class VolumeUse:
    """Volumes in use by row.

    Args:
        rows: names and rows.
        resolve: the CSI volume of a claim, as the storage objects have it now.

    Attributes:
        csi_nodes: CSINodes by the node's name; change them by the methods only.
        users: pods on nodes, by claim and disk.
        attached: volumes in use on the rows, and their limits.
        attachments: VolumeAttachments.
    """

    def __init__(self, rows: NodeRows, resolve: Callable[[ClaimKey], VolumeID | None]) -> None:
        self._rows = rows
        self._resolve = resolve
        self.csi_nodes: dict[str, CSINode] = {}
        self.users = ClaimUsers()
        self.attached = AttachedVolumes()
        self._counted: dict[ClaimKey, VolumeID | None] = {}  # of claims in use
        self.attachments = Attachments()
        self._served: dict[str, Ints] = {}  # rows by plugin, once somebody has asked

    @property
    def number_of_nodes(self) -> int:
        """How many rows there are."""
        return self._rows.size

    def rows_served(self, plugin: str) -> Ints:
        """The rows on which CSI drivers serve the volumes of an in-tree plugin. A pod may have a thousand of them."""
        if plugin not in self._served:
            found = (name for name, csi_node in self.csi_nodes.items() if plugin in csi_node.migrated)
            rows = [row for name in found if (row := self._rows.row_of.get(name)) is not None]
            self._served[plugin] = np.array(rows, dtype=np.int64)
        return self._served[plugin]

    # --- storage objects

    def recount_claim(self, key: ClaimKey) -> None:
        """The claim or its volume has changed."""
        if key not in self._counted:
            return
        before, after = self._counted[key], self._resolve(key)
        if before != after:
            self._counted[key] = after
            for row in self.users.rows_of(key):
                self._change(before, after, row)

    def recount_claims(self, may_differ: Callable[[ClaimKey], bool]) -> None:
        """Claims for which that holds may have another volume now."""
        for key in list(filter(may_differ, self._counted)):
            self.recount_claim(key)

    def set_csi_node(self, csi_node: CSINode) -> Change:
        """A CSINode as the API server has it now."""
        self.csi_nodes[csi_node.node] = csi_node
        self._served.clear()
        if (row := self._rows.row_of.get(csi_node.node)) is not None:
            self._set_limits(row, csi_node)
        return Change.VOLUMES

    def remove_csi_node(self, node: str) -> Change:
        """A CSINode is gone: nothing limits the node's volumes."""
        self.csi_nodes.pop(node, None)
        self._served.clear()
        if (row := self._rows.row_of.get(node)) is not None:
            self._set_limits(row, None)
        return Change.VOLUMES

    def set_attachment(self, attachment: VolumeAttachment, volume: PersistentVolume | None) -> None:
        """A VolumeAttachment as the API server has it now, and its volume if that is known."""
        self._uncount(attachment.name)
        self.attachments.set(attachment)
        row = self._rows.row_of.get(attachment.node)
        if row is None or volume is None or volume.volume is None or not volume.is_csi or not attachment.driver:
            return
        counted = (attachment.driver, volume.volume[1])
        self.attached.attach(counted, row)
        self.attachments.count(attachment.name, counted, row)

    def remove_attachment(self, name: str) -> Change:
        """A VolumeAttachment is gone: its node can have another volume."""
        self._uncount(name)
        self.attachments.remove(name)
        return Change.VOLUMES

    # --- nodes and pods

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self.attached.grow(width)

    def row_assigned(self, row: int) -> None:
        """The row stands for another node from now on, and no pod is on it."""
        for name in self.attachments.counted_on(row):
            self._uncount(name)
        self._served.clear()
        self._set_limits(row, self.csi_nodes.get(self._rows.names[row]))

    def add_pod(self, pod: PodView, row: int) -> None:
        """Count the pod's volumes on the row."""
        if not pod.volumes:
            return
        self.users.add_pod(pod, row)
        for key in _keys(pod):
            if key not in self._counted:
                self._counted[key] = self._resolve(key)
            self._change(None, self._counted[key], row)
        self.attached.add_pod(pod.volumes.attached, row)

    def remove_pod(self, pod: PodView, row: int) -> None:
        """Take the pod's volumes off the row."""
        if not pod.volumes:
            return
        self.users.remove_pod(pod, row)
        for key in _keys(pod):
            self._change(self._counted[key], None, row)
        for key in set(_keys(pod)):
            if not self.users.are_there(key):
                del self._counted[key]
        self.attached.remove_pod(pod.volumes.attached, row)

    # --- inside

    def _change(self, before: VolumeID | None, after: VolumeID | None, row: int) -> None:
        if before is not None:
            self.attached.remove_pod((before,), row)
        if after is not None:
            self.attached.add_pod((after,), row)

    def _uncount(self, name: str) -> None:
        if (counted := self.attachments.uncount(name)) is not None:
            self.attached.detach(*counted)

    def _set_limits(self, row: int, csi_node: CSINode | None) -> None:
        self.attached.set_limits(row, {} if csi_node is None else csi_node.limits)


def _keys(pod: PodView) -> Iterable[ClaimKey]:
    return [ClaimKey(pod.namespace, claim.name) for claim in pod.volumes.claims]
