"""Volumes of CSI drivers in use on each row, and how many a node can have. Source: kube-scheduler's NodeVolumeLimits.

A volume counts once on a node, however many of the node's pods use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from concerto.api.volume_migration import VolumeID
from concerto.scheduling.state.columns import FEW_ROWS, Ints, Rows, numbered, widened

NO_LIMIT = 2**31
"""Stands for a node whose driver names no limit."""


class AttachedVolumes:
    """Counts by driver and row."""

    def __init__(self) -> None:
        self._width = 0
        self._used: dict[str, Ints] = {}
        self._limits: dict[str, Ints] = {}
        self._of_row: dict[int, tuple[str, ...]] = {}  # drivers with a limit on the row
        self._by_pods: dict[VolumeID, Counter[int]] = {}
        self._by_attachments: dict[VolumeID, Counter[int]] = {}

    def used(self, driver: str) -> Ints:
        """By row, how many of the driver's volumes pods use or are attached."""
        return self._column(self._used, driver, 0)

    def limits(self, driver: str) -> Ints:
        """By row, how many of the driver's volumes the node can have; ``NO_LIMIT`` where there is no limit."""
        return self._column(self._limits, driver, NO_LIMIT)

    def number_there(self, volumes: Iterable[VolumeID], rows: Rows) -> Ints:
        """How many of the volumes are used by pods on each of the rows."""
        used_on = [found for volume in volumes if (found := self._by_pods.get(volume)) is not None]
        if len(few := numbered(rows, self._width)) <= FEW_ROWS:
            return np.array([sum(row in each for each in used_on) for row in few], dtype=np.int64)
        number: Ints = np.zeros(self._width, dtype=np.int64)
        for each in used_on:
            number[[*each]] += 1
        return number[rows]

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self._width = width
        for columns, fill in ((self._used, 0), (self._limits, NO_LIMIT)):
            for driver, column in columns.items():
                columns[driver] = widened(column, width, fill)

    def set_limits(self, row: int, limits: Mapping[str, int | None]) -> None:
        """The limits of the row's node; none for a node without a CSINode."""
        for driver in self._of_row.pop(row, ()):
            self._limits[driver][row] = NO_LIMIT
        found = {driver: limit for driver, limit in limits.items() if limit is not None}
        for driver, limit in found.items():
            self.limits(driver)[row] = limit
        if found:
            self._of_row[row] = tuple(found)

    def add_pod(self, volumes: Iterable[VolumeID], row: int) -> None:
        """A pod on the row uses these volumes."""
        for volume in volumes:
            self._count(self._by_pods, self._by_attachments, volume, row, 1)

    def remove_pod(self, volumes: Iterable[VolumeID], row: int) -> None:
        """A pod on the row no longer uses these volumes."""
        for volume in volumes:
            self._count(self._by_pods, self._by_attachments, volume, row, -1)

    def attach(self, volume: VolumeID, row: int) -> None:
        """The volume is attached to the row's node, or about to be."""
        self._count(self._by_attachments, self._by_pods, volume, row, 1)

    def detach(self, volume: VolumeID, row: int) -> None:
        """The volume is no longer attached to the row's node."""
        self._count(self._by_attachments, self._by_pods, volume, row, -1)

    def _count(
        self,
        counts: dict[VolumeID, Counter[int]],
        others: dict[VolumeID, Counter[int]],
        volume: VolumeID,
        row: int,
        change: int,
    ) -> None:
        rows = counts.setdefault(volume, Counter())
        before = rows[row]
        rows[row] += change
        if not rows[row]:
            del rows[row]
            if not rows:
                del counts[volume]
        if (not before or not before + change) and not others.get(volume, Counter())[row]:
            self.used(volume[0])[row] += change

    def _column(self, columns: dict[str, Ints], driver: str, fill: int) -> Ints:
        column = columns.get(driver)
        if column is None:
            column = columns[driver] = np.full(self._width, fill, dtype=np.int64)
        return column
