"""The volumes of one class, as the claims of one pod take them: each claim, on each row, the smallest that is left.

A class may have a volume for each of thousands of nodes, and a pod a thousand claims. So what is asked for each claim
is asked of all volumes at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from concerto.api.volumes import ClaimKey, ClaimRef, PersistentVolume, PersistentVolumeClaim
from concerto.scheduling.state.columns import NO_ROWS, Bools, Ints, Rows
from concerto.scheduling.state.volumes import VolumeIndex

_FEW_ROWS = 4
"""Rows that reach a volume, up to which each is looked at for each claim: those of a node's own disks."""
_Form = tuple[str, str, frozenset[str]]
"""Mode, VolumeAttributesClass and access modes."""


class ClassVolumes:
    """What is left of a class's volumes, by row.

    Args:
        volumes: storage and reservations.
        storage_class: the class.
        size: number of rows.

    Attributes:
        volumes: of the class, smallest first; their places in it stand for them.
    """

    def __init__(self, volumes: VolumeIndex, storage_class: str, size: int) -> None:
        self.volumes: Sequence[PersistentVolume] = volumes.of_class(storage_class)
        self._size = size
        self._bytes = [volume.bytes for volume in self.volumes]
        self._owned: dict[ClaimKey, list[tuple[int, ClaimRef]]] = {}  # places of volumes that are a claim's
        self._free: Bools = np.zeros(len(self.volumes), dtype=np.bool_)
        self._forms: dict[_Form, int] = {}
        self._form: Ints = np.zeros(len(self.volumes), dtype=np.int64)
        # Of volumes that few rows reach, in the order of places: rows, places, and whether no claim has it there
        self._rows: Ints = NO_ROWS
        self._places: Ints = NO_ROWS
        self._left: Bools = np.zeros(0, dtype=np.bool_)
        self._wide = _Wide(size)  # the others
        self._read(volumes)

    def find(self, claim: PersistentVolumeClaim) -> Ints:
        """By row, the place of the volume that the claim gets; -1 without one."""
        suits, none = self._suiting(claim), len(self.volumes)
        at: Ints = np.full(self._size, none, dtype=np.int64)
        here = np.flatnonzero(self._left & suits[self._places])[::-1]
        at[self._rows[here]] = self._places[here]  # the smallest last, so that it stays
        self._wide.put_smallest(at, suits)
        at[at == none] = -1
        return at

    def take(self, at: Ints) -> None:
        """No other claim of the pod gets these volumes on these rows, as `find` has found them."""
        self._left &= at[self._rows] != self._places
        self._wide.take(at)

    # --- inside

    def _read(self, volumes: VolumeIndex) -> None:
        few: list[tuple[int, Ints]] = []
        for place, volume in enumerate(self.volumes):
            form = (volume.mode, volume.attributes_class, volume.access_modes)
            self._form[place] = self._forms.setdefault(form, len(self._forms))
            if volume.deleting:
                continue
            owner = volumes.claim_of(volume)
            if owner is not None:
                self._owned.setdefault(owner.key, []).append((place, owner))
            elif volume.phase == "Available":
                self._free[place] = True
            else:
                continue
            rows = volumes.reach(volume.affinity)
            if isinstance(rows, slice) or len(rows) > _FEW_ROWS:
                self._wide.add(place, rows)
            else:
                few.append((place, rows))
        if few:
            self._rows = np.concatenate([rows for _, rows in few])
            self._places = np.repeat([place for place, _ in few], [len(rows) for _, rows in few])
            self._left = np.ones(len(self._rows), dtype=np.bool_)

    def _suiting(self, claim: PersistentVolumeClaim) -> Bools:
        """By place, whether the claim may get the volume: one that is held for it, else those that are free."""
        suits: Bools = np.zeros(len(self.volumes), dtype=np.bool_)
        smallest = bisect_left(self._bytes, claim.bytes or 0)
        for place, owner in self._owned.get(claim.key, ()):
            volume = self.volumes[place]
            fits = (volume.mode, volume.attributes_class) == (claim.mode, claim.attributes_class)
            if place >= smallest and fits and owner.uid in ("", claim.uid):
                suits[place] = True
                return suits
        forms = [
            mode == claim.mode and attributes == claim.attributes_class and claim.access_modes <= access_modes
            for mode, attributes, access_modes in self._forms
        ]
        suits[smallest:] = (self._free & np.array(forms)[self._form])[smallest:]
        if claim.selector is not None:
            for place in np.flatnonzero(suits).tolist():
                suits[place] = claim.selector.matches(self.volumes[place].labels)
        return suits


class _Wide:
    """Volumes that many rows reach, by the rows where no claim has them: affinities may differ and accept the same.

    A claim gets the smallest of those that are left on the same rows, so that the others need no look.

    Args:
        size: number of rows.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._alike: dict[bytes, tuple[Bools, array[int]]] = {}  # rows where they are left, and places in order
        self._seen: dict[int, tuple[Rows, array[int]]] = {}  # by the rows' identity, while volumes are read
        self._put: list[tuple[bytes, int]] = []  # that may be taken next

    def add(self, place: int, rows: Rows) -> None:
        """These rows reach the volume at that place, which is after all others."""
        key = -1 if isinstance(rows, slice) else id(rows)
        if (known := self._seen.get(key)) is None:
            left: Bools = np.zeros(self._size, dtype=np.bool_)
            left[rows] = True
            # Held, so that no other array gets its identity
            known = self._seen[key] = rows, self._alike.setdefault(left.tobytes(), (left, array("q")))[1]
        known[1].append(place)

    def put_smallest(self, at: Ints, suits: Bools) -> None:
        """Put, on each row, the place of the smallest that suits in the place of a greater one."""
        self._put.clear()
        for key, (left, places) in self._alike.items():
            suiting = suits[np.frombuffer(places, dtype=np.int64)]
            if suiting[index := int(suiting.argmax())]:
                np.minimum(at, places[index], out=at, where=left)
                self._put.append((key, places[index]))

    def take(self, at: Ints) -> None:
        """No other claim gets what was put, where nothing smaller was put after it."""
        for key, place in self._put:
            if not (taken := at == place).any():
                continue
            before, places = self._alike[key]
            places.remove(place)
            if not places:
                del self._alike[key]
            if (left := before & ~taken).any():
                insort(self._alike.setdefault(left.tobytes(), (left, array("q")))[1], place)
