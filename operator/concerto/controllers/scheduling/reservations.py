"""PodReservations that people make: hold their room, write their status, let them expire.

The operator never deletes a person's object: one that has expired shows it in its status, and holds nothing.

A status lists the pods that have used a unit. Once it does, the placement record that says so is deleted. So no status
of an earlier look may replace a later one: only `ReservationController.reconcile` writes, which has one turn at a time
for a reservation, and what it writes names the resourceVersion that it was made from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from concerto.api.conditions import find_condition
from concerto.api.podreservation import Reservation, ReservationKey
from concerto.api.resource_version import not_newer
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.controllers.scheduling.reservation_status import build_reservation_status
from concerto.kube import Conflict, NotFound, Object
from concerto.kube.failpoints import point
from concerto.kube.reflector import key_of
from concerto.kube.resources import POD_RESERVATIONS
from concerto.kube.status_writes import raise_if_changed, write_status
from concerto.scheduling.reservation_placement import no_such_node, place
from concerto.scheduling.state.reservation_ledger import ReservationState
from concerto.scheduling.state.reserved_loads import find_kind

logger = logging.getLogger(__name__)

_PASS_SECONDS = 5.0
"""Between two passes over all reservations that lack room or hold some: nodes come and go, and capacity changes."""
_MAX_HELD_SECONDS = 0.02
"""A pass lets others have the event loop after that long."""


@dataclass(frozen=True)
class _Outcome:
    """What one reservation has after its room was looked for."""

    state: ReservationState
    limited: bool


class ReservationController:
    """Holds room for reservations: at once for one that has changed, and for all in regular passes.

    Attributes:
        objects: returns all reservations, as they are watched; for passes.
        mark: called with namespace and name of a reservation whose status has to change.
        backs_off: by namespace and name, whether one could not be written and waits to be tried again.
    """

    def __init__(self, context: Context, parts: SchedulerParts) -> None:
        """It changes the cluster state, and writes statuses from `reconcile` only."""
        self.objects: Callable[[], list[Object]] = list
        self.mark: Callable[[str, str], None] = lambda namespace, name: None
        self.backs_off: Callable[[str, str], bool] = lambda namespace, name: False
        self._context = context
        self._parts = parts
        self._written: dict[ReservationKey, Object] = {}  # as the last write of a status returned them

    def load(self, objects: Iterable[Object]) -> None:
        """Make every reservation known, with what its status holds, before anything is decided."""
        for obj in objects:
            try:
                if "podSelector" in obj["spec"]:
                    self._parts.cluster.set_reservation(view := Reservation.from_raw(obj))
                    find_kind(self._parts.cluster, view)
            except Exception:
                # One that cannot be read holds nothing; its reconciles report it again and again
                logger.exception("PodReservation %(namespace)s/%(name)s is not usable", obj["metadata"])

    async def reconcile(self, key: tuple[str, str], obj: Object | None) -> float | None:
        """Hold what can be held, and write the status if it has changed; returns seconds until the reservation ends."""
        if obj is None or "podSelector" not in obj["spec"]:
            self._written.pop(key, None)
            self._parts.pending.requeue(self._parts.cluster.remove_reservation(key))
            return None
        obj = self._newest(key, obj)
        view = Reservation.from_raw(obj)
        state, status = self._renew(obj, view)
        if status != obj.get("status"):
            await self._write(key, obj, status)
        if state.expired or not state.remaining or view.expires_at is None:
            return None
        return max(0.1, view.expires_at - self._context.clock())

    async def run(self) -> None:
        """Look again for the room of every reservation, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_PASS_SECONDS)
            began = clock()
            for obj in self.objects():
                if clock() - began > _MAX_HELD_SECONDS:
                    await asyncio.sleep(0)
                    began = clock()
                try:
                    self._look_again(obj)
                except Exception as error:
                    # It cannot be read, which its reconcile reports
                    logger.debug("PodReservation %(namespace)s/%(name)s", obj["metadata"], exc_info=error)

    def _look_again(self, obj: Object) -> None:
        key = key_of(obj)
        reservations = self._parts.cluster.ledger.reservations
        if not reservations.is_known(key) or (state := reservations.state(key)).expired or not state.remaining:
            return
        limit, _ = self._parts.profiles.reservation_limits()
        if not state.held and reservations.held_in(key[0]) >= limit and _ready(obj.get("status") or {}):
            return  # the limit of its namespace is reached, as its status has it since its first reconcile
        newest = self._newest(key, obj)
        _, status = self._renew(newest, Reservation.from_raw(newest))
        if status != newest.get("status") and not self.backs_off(*key):
            self.mark(*key)

    def _renew(self, obj: Object, view: Reservation) -> tuple[ReservationState, Object]:
        """Hold what can be held; returns what the reservation has now, and the status that shows it."""
        cluster = self._parts.cluster
        outcome = self._hold(view)
        status = build_reservation_status(
            obj,
            view,
            outcome.state,
            consumers=self._consumers(obj, outcome.state),
            limited=outcome.limited,
            nowhere=no_such_node(cluster, view),
            now=wall_timestamp(),
        )
        return outcome.state, status

    def _hold(self, view: Reservation) -> _Outcome:
        cluster, now = self._parts.cluster, self._context.clock()
        change = cluster.set_reservation(view) | cluster.expire(now)
        find_kind(cluster, view)
        limit, stale_after = self._parts.profiles.reservation_limits()
        reservations = cluster.ledger.reservations
        others = reservations.held_in(view.namespace) - sum(reservations.held_by(view.key).values())
        allowed = max(limit - others, 0)
        placements = place(cluster, view, now=now, max_units=allowed, stale_after_seconds=stale_after)
        if placements != reservations.held_by(view.key):
            change |= cluster.hold(view.key, placements)
        self._parts.pending.requeue(change)
        state = reservations.state(view.key)
        return _Outcome(state, limited=sum(placements.values()) >= allowed < state.remaining)

    def _newest(self, key: ReservationKey, obj: Object) -> Object:
        """The object as it is watched, or as the last write returned it: the watch may be behind."""
        written = self._written.get(key)
        if written is None or written["metadata"]["uid"] != obj["metadata"]["uid"]:
            return obj
        seen, known = (o["metadata"]["resourceVersion"] for o in (obj, written))
        return written if not_newer(seen, known) else obj

    async def _write(self, key: ReservationKey, before: Object, status: Object) -> None:
        point("before-reservation-status")
        try:
            written = await write_status(self._context.session, POD_RESERVATIONS, before, status)
        except (Conflict, NotFound):
            return  # it has changed since, and its watch event marks it
        point("after-reservation-status")
        self._written[key] = written
        # What the status shows as used is what allows the placement record that used it to be deleted
        self._parts.pending.requeue(self._parts.cluster.set_reservation(Reservation.from_raw(written)))
        old, new = _ready(before.get("status") or {}), _ready(status)
        if new["reason"] != old.get("reason") and new["reason"] != "Held":
            self._context.recorder.record(
                before,
                type="Normal" if new["reason"] == "Consumed" else "Warning",
                reason=new["reason"],
                action="Reserving",
                note=new["message"],
            )
        raise_if_changed(before, written, status, written.get("status") or {})

    def _consumers(self, obj: Object, state: ReservationState) -> list[Object]:
        """Who has used a unit; names come from the status, or from the record that used it (which still exists)."""
        known = {c["uid"]: c for c in (obj.get("status") or {}).get("consumedBy") or ()}
        consumers = []
        for uid, node in state.consumed.items():
            if uid in known:
                consumers.append(known[uid])
            elif (assignment := self._parts.records.assignment_of(uid)) is not None:
                consumers.append({"namespace": assignment.namespace, "name": assignment.name, "uid": uid, "node": node})
        return sorted(consumers, key=lambda c: (c["name"], c["uid"]))


def _ready(status: Object) -> Object:
    return dict(find_condition(status.get("conditions"), "Ready") or {})
