"""Persons' reservations: what each still holds on which node, and which pods have used a unit of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.api.pod_kind import Kind
from concerto.api.podreservation import Reservation, ReservationKey
from concerto.scheduling.state.held_units import HeldUnits, age_of
from concerto.scheduling.state.signatures import PodSignatures

_SPARE_ENDS = 64
"""Ends that edits have moved, and that are kept beside as many as there are reservations."""


@dataclass(frozen=True)
class ReservationState:
    """The state of a person's reservation.

    Attributes:
        held: units still held, by node.
        consumed: pods that have used a unit, UID to node.
        remaining: units not used yet, held or not; 0 once it has expired.
        expired: whether its time is over.
    """

    held: Mapping[str, int]
    consumed: Mapping[str, str]
    remaining: int
    expired: bool


@dataclass(slots=True, eq=False)
class _Reservation:
    view: Reservation
    held: dict[str, int]
    consumed: dict[str, str]
    expired: bool = False
    kind: Kind | None = None

    @property
    def remaining(self) -> int:
        """Units not used yet; 0 once it has expired."""
        return 0 if self.expired else max(self.view.count - len(self.consumed), 0)


class Reservations:
    """All people's reservations. Pure.

    Args:
        on_held: called with a node and by how many units what is held there has changed.
        signatures: given the labels of pods that the reservations select by.
    """

    def __init__(self, on_held: Callable[[str, int], None], signatures: PodSignatures) -> None:
        self._signatures = signatures
        self._on_held = on_held
        self._by_key: dict[ReservationKey, _Reservation] = {}
        self._with_units = HeldUnits()
        self._held_in: Counter[str] = Counter()  # by namespace
        self._held_before = 0
        self._held_for: dict[Kind | None, Counter[str]] = {}  # by kind and node
        self._ends: list[tuple[float, ReservationKey]] = []  # the next one first
        self._noted_ends: dict[ReservationKey, float] = {}

    # --- what is asked

    def state(self, key: ReservationKey) -> ReservationState:
        """The state of a reservation.

        Raises:
            KeyError: no reservation has that namespace and name.
        """
        found = self._by_key[key]
        return ReservationState(dict(found.held), dict(found.consumed), found.remaining, found.expired)

    def is_known(self, key: ReservationKey) -> bool:
        """Whether there is a reservation of that namespace and name."""
        return key in self._by_key

    def views(self) -> list[Reservation]:
        """Every reservation, oldest first."""
        return [found.view for found in sorted(self._by_key.values(), key=lambda found: age_of(found.view))]

    def for_pod(self, pod: PodView) -> ReservationKey | None:
        """The oldest reservation that holds units for the pod; None for a pod that takes no units."""
        return self._with_units.oldest_for(pod) if pod.counted else None

    def held_by(self, key: ReservationKey) -> Mapping[str, int]:
        """Units that the reservation holds, by node."""
        return self._by_key[key].held

    @property
    def hold_any(self) -> bool:
        """Whether any reservation holds a unit."""
        return bool(self._held_in)

    def held_in(self, namespace: str) -> int:
        """Units that the reservations of a namespace hold."""
        return self._held_in[namespace]

    def kind_of(self, key: ReservationKey) -> Kind | None:
        """The kind of the pods that the reservation holds room for; None while no pod that may use it was seen."""
        return self._by_key[key].kind

    def held_for(self) -> Mapping[Kind | None, Mapping[str, int]]:
        """Units that all reservations hold, by the kind of the pods they are for and by node."""
        return self._held_for

    def take_freed(self) -> bool:
        """Whether less is held than when this was last asked."""
        before, self._held_before = self._held_before, self._held_in.total()
        return self._held_before < before

    def lacks_in_status(self, key: ReservationKey, uid: str) -> bool:
        """Whether the pod has used a unit of the reservation, and the reservation's status does not show it yet."""
        found = self._by_key.get(key)
        return found is not None and uid in found.consumed and uid not in found.view.consumed

    # --- what is seen and decided

    def set(self, view: Reservation) -> None:
        """A reservation as the API server has it now.

        Where its units are held and which pods have used them is read from its status only when it is first seen; from
        then on this account is newer than a status that the operator wrote itself.
        """
        known = self._by_key.get(view.key)
        if known is not None and known.view.uid != view.uid:
            self.remove(view.key)
            known = None
        if known is None:
            self._signatures.add_selector(view.selector)
            self._by_key[view.key] = known = _Reservation(view, {}, dict(view.consumed))
            for node, units in view.placements.items():
                self._hold(known, node, units)
        if known.view.selector != view.selector:
            self._signatures.remove_selector(known.view.selector)
            self._signatures.add_selector(view.selector)
        # An edit may have moved the end; whether the new end is over, too, is decided by `expire`
        known.expired = known.expired and known.view.expires_at == view.expires_at
        if known.held:
            self._with_units.remove(known.view)
            self._with_units.add(view)
        known.view = view
        self._note_end(view)
        self._trim(known)

    def set_kind(self, key: ReservationKey, kind: Kind) -> None:
        """The reservation's pods are of that kind: one of them was seen, and it counts until another kind is."""
        if (known := self._by_key.get(key)) is None or known.kind == kind:
            return
        for node, units in known.held.items():
            self._count(known.kind, node, -units)
            self._count(kind, node, units)
        known.kind = kind

    def remove(self, key: ReservationKey) -> None:
        """The reservation is gone; its units are free."""
        known = self._by_key.pop(key, None)
        if known is not None:
            self._noted_ends.pop(key, None)
            self._release(known)
            self._signatures.remove_selector(known.view.selector)

    def hold(self, key: ReservationKey, placements: Mapping[str, int]) -> None:
        """Hold the reservation's units on these nodes, and nowhere else."""
        known = self._by_key[key]
        self._release(known)
        for node, units in placements.items():
            self._hold(known, node, units)
        self._trim(known)

    def expire(self, now: float) -> list[ReservationKey]:
        """Give up what is left of the reservations whose time is over; returns those for which it is over just now."""
        over: dict[ReservationKey, None] = {}
        while self._ends and self._ends[0][0] <= now:
            end, key = heapq.heappop(self._ends)
            if self._noted_ends.get(key) == end:
                del self._noted_ends[key]
            found = self._by_key.get(key)
            if found is not None and not found.expired and found.view.expires_at == end:  # an edit may have moved it
                over[key] = None
        for key in over:
            self._by_key[key].expired = True
            self._release(self._by_key[key])
        return list(over)

    def consume(self, key: ReservationKey, uid: str, node: str) -> None:
        """The pod, placed on the node, uses a unit; nothing happens if it has used one already."""
        found = self._by_key.get(key)
        if found is None or uid in found.consumed:
            return
        found.consumed[uid] = node
        if node in found.held:
            self._release_units(found, node, 1)
        self._trim(found)

    def give_back(self, key: ReservationKey, uid: str, node: str) -> None:
        """The pod is not placed on the node after all: its unit is held there again."""
        found = self._by_key.get(key)
        if found is not None and found.consumed.pop(uid, None) is not None and not found.expired:
            self._hold(found, node, 1)
            self._trim(found)

    # --- inside

    def _note_end(self, view: Reservation) -> None:
        """Have `expire` look at the reservation when its time is over."""
        if view.expires_at is None or self._noted_ends.get(view.key) == view.expires_at:
            return
        self._noted_ends[view.key] = view.expires_at
        heapq.heappush(self._ends, (view.expires_at, view.key))
        if len(self._ends) > 2 * len(self._noted_ends) + _SPARE_ENDS:
            self._ends = [(end, key) for key, end in self._noted_ends.items()]
            heapq.heapify(self._ends)

    def _hold(self, found: _Reservation, node: str, units: int) -> None:
        if units > 0:
            if not found.held:
                self._with_units.add(found.view)
            found.held[node] = found.held.get(node, 0) + units
            self._held_in[found.view.namespace] += units
            self._count(found.kind, node, units)
            self._on_held(node, units)

    def _release_units(self, found: _Reservation, node: str, units: int) -> None:
        left = found.held[node] - units
        if left:
            found.held[node] = left
        else:
            del found.held[node]
            if not found.held:
                self._with_units.remove(found.view)
        namespace = found.view.namespace
        self._held_in[namespace] -= units
        if not self._held_in[namespace]:
            del self._held_in[namespace]
        self._count(found.kind, node, -units)
        self._on_held(node, -units)

    def _count(self, kind: Kind | None, node: str, units: int) -> None:
        counts = self._held_for.setdefault(kind, Counter())
        counts[node] += units
        if not counts[node]:
            del counts[node]
            if not counts:
                del self._held_for[kind]

    def _release(self, found: _Reservation) -> None:
        for node, units in list(found.held.items()):
            self._release_units(found, node, units)

    def _trim(self, found: _Reservation) -> None:
        """Hold no more than what is left of the count."""
        surplus = sum(found.held.values()) - found.remaining
        for node in sorted(found.held):
            if surplus <= 0:
                return
            units = min(surplus, found.held[node])
            self._release_units(found, node, units)
            surplus -= units
