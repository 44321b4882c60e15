"""Which nodes a pod's claims allow, and what is to be bound there. Source: kube-scheduler's VolumeBinding.

A bound claim needs a node that reaches its volume. A claim that waits for its pod gets the smallest existing volume of
its class that the node reaches. Without such a volume, one has to be made, which the class may not offer there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from concerto.api.volumes import ClaimKey, PersistentVolume, PersistentVolumeClaim, VolumeBindings
from concerto.scheduling.plugins.volume_binding.claims import SortedClaims
from concerto.scheduling.plugins.volume_binding.class_volumes import ClassVolumes
from concerto.scheduling.state.columns import Bools, Ints
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.volumes import VolumeIndex

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
NOTHING_TO_BIND = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
REFUSALS = (NODE_CONFLICT, NOTHING_TO_BIND, NO_SPACE, NO_VOLUME)


class ClaimMatch:
    """What the claims of a pod mean on each row, as of the moment it is made.

    Args:
        volumes: storage and reservations.
        rows: names and rows.
        claims: the pod's.

    Attributes:
        refused: by refusal of ``REFUSALS`` and row, whether it holds; a row may be refused for two reasons.
        chosen: claims that may get an existing volume, the volumes of their class, and by row its place among them,
            -1 without one.
        provisioned: claims for which a volume has to be made, and on which rows.
    """

    def __init__(self, volumes: VolumeIndex, rows: NodeRows, claims: SortedClaims) -> None:
        self._volumes = volumes
        self._rows = rows
        size = rows.size
        self.refused: Bools = np.zeros((len(REFUSALS), size), dtype=np.bool_)
        self._conflict, self._nothing, self._no_space, self._no_volume = self.refused
        self.chosen: list[tuple[PersistentVolumeClaim, Sequence[PersistentVolume], Ints]] = []
        self.provisioned: list[tuple[PersistentVolumeClaim, Bools]] = []
        self._classes: dict[str, ClassVolumes] = {}
        self._check_bound(claims.bound)
        self._check_waiting(claims.waiting)

    def bindings(self, row: int) -> VolumeBindings:
        """What has to be bound for a pod that goes to the row."""
        static = [(claim, volumes[at[row]]) for claim, volumes, at in self.chosen if at[row] >= 0]
        provisioned = [claim for claim, needed in self.provisioned if needed[row]]
        uids: list[tuple[ClaimKey | str, str]] = [(claim.key, claim.uid) for claim in provisioned]
        for claim, volume in static:
            uids += [(claim.key, claim.uid), (volume.name, volume.uid)]
        return VolumeBindings(
            self._rows.names[row],
            tuple((claim.key, volume.name) for claim, volume in static),
            tuple(claim.key for claim in provisioned),
            tuple(uids),
        )

    def _check_bound(self, claims: Iterable[PersistentVolumeClaim]) -> None:
        """The first claim whose volume a node cannot reach, or that has none, says why."""
        for claim in claims:
            volume = self._volumes.volumes.get(claim.volume_name)
            if volume is None:
                self._no_volume |= ~self._conflict
                return
            self._conflict |= ~self._volumes.reaches(volume)

    def _check_waiting(self, claims: tuple[PersistentVolumeClaim, ...]) -> None:
        selected = [(claim, node) for claim in claims if (node := self._volumes.selected_node(claim)) is not None]
        others = [claim for claim in claims if self._volumes.selected_node(claim) is None]
        elsewhere: Bools = np.zeros(self._rows.size, dtype=np.bool_)
        for _, node in selected:
            there = np.ones_like(elsewhere)
            if (row := self._rows.row_of.get(node)) is not None:
                there[row] = False
            elsewhere |= there
        self._nothing |= elsewhere
        needed = [(claim, ~elsewhere) for claim, _ in selected]
        for left, claim in enumerate(sorted(others, key=lambda c: c.bytes or 0), start=1 - len(others)):
            at = self._find_volumes(claim, is_last=not left)
            needed.append((claim, (at < 0) & ~elsewhere))
        self._check_provisioning(needed)

    def _find_volumes(self, claim: PersistentVolumeClaim, *, is_last: bool) -> Ints:
        """By row, the place of the claim's volume among those of its class; -1 without one.

        Args:
            claim: the claim.
            is_last: whether no other claim of the pod gets volumes after it.
        """
        name = claim.storage_class
        if not self._volumes.count_of_class(name):
            return np.full(self._rows.size, -1, dtype=np.int64)
        if name not in self._classes:
            self._classes[name] = ClassVolumes(self._volumes, name, self._rows.size)
        of_class = self._classes[name]
        at = of_class.find(claim)
        if not is_last:
            of_class.take(at)
        self.chosen.append((claim, of_class.volumes, at))
        return at

    def _check_provisioning(self, needed: Iterable[tuple[PersistentVolumeClaim, Bools]]) -> None:
        """Claims without an existing volume, in kube-scheduler's order: the first that fails on a row says why."""
        undecided: Bools = np.ones(self._rows.size, dtype=np.bool_)
        for claim, rows in needed:
            if not rows.any():
                continue
            # Of a class that went while pods to evict are searched for, nothing can be made
            storage_class = self._volumes.classes.get(claim.storage_class)
            asked = rows & undecided
            if storage_class is not None and storage_class.provisions:
                no_topology = asked & ~self._volumes.has_topology(storage_class)
                no_space = asked & ~no_topology & ~self._volumes.has_room(storage_class, claim.bytes)
            else:
                no_topology, no_space = asked, np.zeros_like(asked)
            self._nothing |= no_topology
            self._no_space |= no_space
            undecided &= ~(no_topology | no_space)
            self.provisioned.append((claim, rows))
