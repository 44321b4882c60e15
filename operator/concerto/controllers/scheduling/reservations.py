"""Standing PodReservations, the ones that people make: hold their room, say how they stand, let them expire.

The operator never deletes a person's object: one that has expired says so and holds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from concerto.api.conditions import Condition, find_condition, merge_conditions
from concerto.api.podreservation import Reservation, ReservationKey
from concerto.api.timestamps import format_timestamp
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.kube import NotFound, Object
from concerto.kube.resources import POD_RESERVATIONS
from concerto.scheduling.reservation_placement import no_such_node, place
from concerto.scheduling.state.reservations import ReservationState

logger = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 5.0
"""A reservation that lacks room, or holds some, is looked at that often: nodes come and go, and capacity moves."""


class ReservationController:
    """Reconciles one standing reservation at a time."""

    def __init__(self, context: Context, parts: SchedulerParts) -> None:
        """It changes the cluster state, and writes statuses."""
        self._context = context
        self._parts = parts

    def load(self, objects: Iterable[Object]) -> None:
        """Make every reservation known, with what its status holds, before anything is decided."""
        for obj in objects:
            if "podSelector" not in obj["spec"]:
                continue
            try:
                self._parts.cluster.set_reservation(Reservation.from_raw(obj))
            except Exception:
                # One that can't be read holds nothing; its turn to be reconciled says so, again and again
                logger.exception("PodReservation %(namespace)s/%(name)s is not usable", obj["metadata"])

    async def reconcile(self, key: tuple[str, str], obj: Object | None) -> float | None:
        """Hold what can be held, and write the status if it says something new."""
        cluster = self._parts.cluster
        if obj is None or "podSelector" not in obj["spec"]:
            self._parts.pending.requeue(cluster.remove_reservation(key))
            return None
        view = Reservation.from_raw(obj)
        now = self._context.clock()
        change = cluster.set_reservation(view) | cluster.expire(now)
        limit, stale_after = self._parts.profiles.reservation_limits()
        others = sum(
            sum(cluster.ledger.reservations.held_by(v.key).values())
            for v in cluster.ledger.reservations.views()
            if v.namespace == view.namespace and v.key != view.key
        )
        allowed = max(limit - others, 0)
        placements = place(cluster, view, now=now, max_units=allowed, stale_after_seconds=stale_after)
        change |= cluster.hold(view.key, placements)
        self._parts.pending.requeue(change)
        state = cluster.ledger.reservations.state(view.key)
        status = build_reservation_status(
            obj,
            view,
            state,
            consumers=self._consumers(obj, state),
            limited=sum(placements.values()) >= allowed < state.remaining,
            nowhere=no_such_node(cluster, view),
            now=wall_timestamp(),
        )
        if status != obj.get("status"):
            await self._write(view.key, obj, status)
        if state.expired or not state.remaining:
            return None
        until_expiry = view.expires_at - now if view.expires_at is not None else _LOOK_AGAIN_SECONDS
        return max(0.1, min(_LOOK_AGAIN_SECONDS, until_expiry))

    async def _write(self, key: ReservationKey, before: Object, status: Object) -> None:
        patch = {"metadata": {"uid": before["metadata"]["uid"]}, "status": status}
        try:
            written = await self._context.session.patch(POD_RESERVATIONS.path(*key, "status"), patch)
        except NotFound:
            return
        # What the status says has been used is what allows the batch that used it to be deleted
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

    def _consumers(self, obj: Object, state: ReservationState) -> list[Object]:
        """Who has used a unit; names come from the status, or from the batch that used it (which is still there)."""
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


def build_reservation_status(
    obj: Object,
    view: Reservation,
    state: ReservationState,
    *,
    consumers: list[Object],
    limited: bool,
    nowhere: bool = False,
    now: str,
) -> Object:
    """The status of a standing reservation.

    Args:
        obj: the object as it is, for its generation and conditions.
        view: its spec.
        state: what the ledger holds for it.
        consumers: items of ``consumedBy``.
        limited: whether the namespace's limit keeps it from holding more.
        nowhere: whether there is no node of the name or with the labels that it asks for.
        now: RFC 3339 time of this look.
    """
    held = sum(state.held.values())
    used = len(state.consumed)
    generation = obj["metadata"].get("generation", 0)
    if state.expired:
        phase, ready = "Expired", Condition("Ready", "False", "Expired", f"Its time is over; {used} of {view.count} units were used, and the others are free. Delete it, or create another.")  # fmt: skip # noqa: E501
    elif not state.remaining:
        phase, ready = "Consumed", Condition("Ready", "True", "Consumed", "Every unit has been used.")
    elif held >= state.remaining:
        phase, ready = "Active", Condition("Ready", "True", "Held", f"{held} units are held, {used} have been used.")
    else:
        reason, why = _shortage(view, limited=limited, nowhere=nowhere)
        words = f"{held} of {state.remaining} units are held: {why}. It is tried again every few seconds."
        phase, ready = "Pending", Condition("Ready", "False", reason, words)
    reconciling = phase == "Pending"
    conditions = [
        ready,
        Condition(
            "Reconciling",
            "True" if reconciling else "False",
            ready.reason,
            "Looking for room." if reconciling else "Nothing is left to do.",
        ),
        Condition("Stalled", "False", ready.reason, "Nothing keeps it from going on."),
        Condition(
            "Expired",
            "True" if state.expired else "False",
            "TimeOver" if state.expired else "InTime",
            "ttlSeconds have passed." if state.expired else "ttlSeconds have not passed, or are not set.",
        ),
    ]
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": phase,
        "used": used,
        "consumedBy": consumers,
        "placements": [{"node": n, "units": u} for n, u in sorted(state.held.items())],
        "conditions": merge_conditions(
            (obj.get("status") or {}).get("conditions") or (), conditions, now=now, observed_generation=generation
        ),
    }
    if view.expires_at is not None:
        status["expiresAt"] = format_timestamp(view.expires_at)
    return status


def _shortage(view: Reservation, *, limited: bool, nowhere: bool) -> tuple[str, str]:
    """Why not all of a reservation is held: the reason, and the middle of a sentence."""
    if nowhere and view.node_name:
        return "NodeNotFound", f"there is no node {view.node_name} (spec.nodeName)"
    if nowhere and view.node_selector:
        return "NodeNotFound", "no node has the labels of spec.nodeSelector"
    if limited:
        return (
            "NamespaceLimit",
            "the limit of standing reservations of this namespace is reached "
            "(spec.reservations.maxUnitsPerNamespace of the SchedulingProfile)",
        )
    return "NoCapacity", "no node that it may use has more measured capacity free"
