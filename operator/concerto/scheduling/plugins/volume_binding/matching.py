"""Which nodes a pod's claims allow, and what is to be bound there. Source: kube-scheduler's VolumeBinding.

A bound claim needs a node that reaches its volume. A claim that waits for its pod gets the smallest existing volume of
its class that the node reaches. Without such a volume, one has to be made, which the class may not offer there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from concerto.api.volumes import ClaimKey, PersistentVolume, PersistentVolumeClaim, VolumeBindings
from concerto.scheduling.plugins.volume_binding.claims import SortedClaims
from concerto.scheduling.state.columns import Bools, Ints, Rows
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
        chosen: claims that get an existing volume; its place among the candidates by row, -1 without one.
        provisioned: claims for which a volume has to be made, and on which rows.
    """

    def __init__(self, volumes: VolumeIndex, rows: NodeRows, claims: SortedClaims) -> None:
        self._volumes = volumes
        self._rows = rows
        size = rows.size
        self.refused: Bools = np.zeros((len(REFUSALS), size), dtype=np.bool_)
        self._conflict, self._nothing, self._no_space, self._no_volume = self.refused
        self.chosen: list[tuple[PersistentVolumeClaim, list[PersistentVolume], Ints]] = []
        self.provisioned: list[tuple[PersistentVolumeClaim, Bools]] = []
        self._left: dict[str, Ints] = {}  # by volume that a claim gets: rows where no claim of the pod gets it
        self._taken: set[str] = set()  # volumes of which no such row is left
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
        """By row, the place of the claim's volume among the candidates; -1 without one.

        Args:
            claim: the claim.
            is_last: whether no other claim of the pod gets volumes after it.
        """
        at: Ints = np.full(self._rows.size, -1, dtype=np.int64)
        of_class = self._volumes.of_class(claim.storage_class)
        suitable = [v for v in of_class if v.name not in self._taken and self._may_hold(v, claim)]
        held = next((v for v in suitable if v.is_for(claim) or self._is_reserved_for(v, claim)), None)
        candidates = [v for v in suitable if self._is_free(v, claim)] if held is None else [held]
        if not candidates:
            return at
        # The smallest last, so that it stays; those of single nodes at once, of which there may be one for each node
        rows = [self._rows_left(volume) for volume in candidates]
        places: list[int] = []
        for place in range(len(candidates) - 1, -1, -1):
            if not isinstance(rows[place], slice):
                places.append(place)
                continue
            _put(at, places, rows)
            places.clear()
            at[rows[place]] = place
        _put(at, places, rows)
        self.chosen.append((claim, candidates, at))
        if not is_last:
            self._take(candidates, rows, at)
        return at

    def _may_hold(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        owner = self._volumes.claim_of(volume)
        return (
            (owner is None or (owner.key == claim.key and owner.uid in ("", claim.uid)))
            and volume.bytes >= (claim.bytes or 0)
            and volume.mode == claim.mode
            and volume.attributes_class == claim.attributes_class
            and not volume.deleting
        )

    def _is_reserved_for(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        return volume.claim is None and self._volumes.claim_of(volume) is not None

    def _is_free(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        return (
            volume.phase == "Available"
            and (claim.selector is None or claim.selector.matches(volume.labels))
            and claim.access_modes <= volume.access_modes
        )

    def _rows_left(self, volume: PersistentVolume) -> Rows:
        """Rows that reach the volume and on which no other claim of the pod gets it."""
        left = self._left.get(volume.name)
        return self._volumes.reach(volume.affinity) if left is None else left

    def _take(self, candidates: list[PersistentVolume], rows: Sequence[Rows], at: Ints) -> None:
        """The pod's other claims do not get these volumes. Once for each claim, as pods may have a thousand claims.

        Args:
            candidates: volumes.
            rows: that were left of each.
            at: by row, the place of the one that is taken.
        """
        order = np.argsort(at, kind="stable")
        places, starts = np.unique(at[order], return_index=True)
        for place, taken in zip(places.tolist(), np.split(order, starts[1:])):
            if place >= 0:
                name, before = candidates[place].name, rows[place]
                if not isinstance(before, slice) and len(before) == len(taken):
                    self._taken.add(name)
                    continue
                self._left[name] = left = np.flatnonzero(_without(before, taken, self._rows.size))
                if not len(left):
                    self._taken.add(name)

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


def _put(at: Ints, places: Sequence[int], rows: Sequence[Rows]) -> None:
    """Note each of these places on its rows, which are no slices, the last one last."""
    if places:
        each = [found for place in places if not isinstance(found := rows[place], slice)]
        at[np.concatenate(each)] = np.repeat(np.array(places), [len(found) for found in each])


def _without(rows: Rows, excluded: Ints, size: int) -> Bools:
    mask: Bools = np.zeros(size, dtype=np.bool_)
    mask[rows] = True
    mask[excluded] = False
    return mask
