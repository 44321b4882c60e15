"""VolumeAttachments by node and by volume. Each volume and each node asks for its own among many."""

from __future__ import annotations

from collections.abc import Hashable

from concerto.api.volume_migration import VolumeID
from concerto.api.volumes import VolumeAttachment


class Attachments:
    """VolumeAttachments, and which of them are counted on a row."""

    def __init__(self) -> None:
        self._by_name: dict[str, VolumeAttachment] = {}
        self._names: dict[Hashable, set[str]] = {}  # by ("node", name), ("volume", name) and ("row", row)
        self._counted: dict[str, tuple[VolumeID, int]] = {}

    def of_node(self, name: str) -> list[VolumeAttachment]:
        """Those to a node."""
        return [self._by_name[each] for each in self._names.get(("node", name), ())]

    def of_volume(self, name: str) -> list[VolumeAttachment]:
        """Those of a PersistentVolume."""
        return [self._by_name[each] for each in self._names.get(("volume", name), ())]

    def counted_on(self, row: int) -> list[str]:
        """Names of those that are counted on a row."""
        return list(self._names.get(("row", row), ()))

    def set(self, attachment: VolumeAttachment) -> None:
        """An attachment as the API server has it now."""
        self.remove(attachment.name)
        self._by_name[attachment.name] = attachment
        for key in _keys(attachment):
            self._names.setdefault(key, set()).add(attachment.name)

    def remove(self, name: str) -> None:
        """An attachment is gone."""
        if (attachment := self._by_name.pop(name, None)) is not None:
            for key in _keys(attachment):
                self._forget(key, name)

    def count(self, name: str, volume: VolumeID, row: int) -> None:
        """The attachment is counted as this volume on this row."""
        self._counted[name] = volume, row
        self._names.setdefault(("row", row), set()).add(name)

    def uncount(self, name: str) -> tuple[VolumeID, int] | None:
        """It is no longer counted; returns as what it was."""
        counted = self._counted.pop(name, None)
        if counted is not None:
            self._forget(("row", counted[1]), name)
        return counted

    def _forget(self, key: Hashable, name: str) -> None:
        names = self._names[key]
        names.discard(name)
        if not names:
            del self._names[key]


def _keys(attachment: VolumeAttachment) -> tuple[Hashable, ...]:
    return ("node", attachment.node), ("volume", attachment.volume_name)
