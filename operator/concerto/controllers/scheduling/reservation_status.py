"""The status of a person's reservation."""

from __future__ import annotations

from typing import Any

from concerto.api.conditions import Condition, merge_conditions, with_progress
from concerto.api.podreservation import Reservation
from concerto.api.timestamps import format_timestamp
from concerto.kube import Object
from concerto.scheduling.state.reservation_ledger import ReservationState


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
        phase, ready = "Expired", Condition("Ready", "False", "Expired", (
            f"ttlSeconds have passed; {used} of {view.count} units were used, and the others are released. Delete "
            "this PodReservation, or create another."
        ))  # fmt: skip
    elif not state.remaining:
        phase, ready = "Consumed", Condition("Ready", "True", "Consumed", "Every unit has been used.")
    elif held >= state.remaining:
        phase, ready = "Active", Condition("Ready", "True", "Held", f"{held} units are held, {used} have been used.")
    else:
        reason, why = _shortage(view, limited=limited, nowhere=nowhere)
        words = f"{held} of {state.remaining} units are held: {why}. The rest is tried again every few seconds."
        phase, ready = "Pending", Condition("Ready", "False", reason, words)
    conditions = [
        *with_progress(ready, "Looking for room." if phase == "Pending" else "", has_ended=phase == "Expired"),
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
    return "NoCapacity", "no node that the reservation may use has more available capacity"
