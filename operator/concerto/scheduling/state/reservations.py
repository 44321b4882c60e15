"""Where a person's reservation is held: room on the emptiest nodes that fit, by measured capacity. Pure.

Source: algorithms section 4 (standing reservations). Room that is held stays where it is as long as its node will do;
what is missing is looked for on the node that can take most, unit by unit, so that it spreads as pods do.
"""

from __future__ import annotations

import heapq

import numpy as np

from concerto.api.podreservation import StandingReservation
from concerto.api.selectors import NodeSelector
from concerto.scheduling.state.cluster import MEASURED, Snapshot


def no_such_node(snapshot: Snapshot, view: StandingReservation) -> bool:
    """Whether no node there is has the name or the labels that the reservation asks for."""
    named = snapshot.exists[: snapshot.size] & snapshot.selected(
        NodeSelector(labels=view.node_selector), slice(0, snapshot.size)
    )
    if view.node_name:
        named &= np.arange(snapshot.size) == snapshot.row_of.get(view.node_name, -1)
    return not named.any()


def place(
    snapshot: Snapshot,
    view: StandingReservation,
    *,
    now: float,
    most_units: int,
    stale_after_seconds: float,
) -> dict[str, int]:
    """Units to hold by node, for what is left of a reservation; fewer than asked for where there is no room.

    Args:
        snapshot: the cluster; it knows the reservation (``set_standing``), and is only read.
        view: the reservation.
        now: seconds since the epoch.
        most_units: what its namespace may still hold, what this reservation holds now included.
        stale_after_seconds: age up to which a node's telemetry is used; room is never held on unmeasured nodes.
    """
    state = snapshot.ledger.standing(view.key)
    wanted = min(state.remaining, most_units)
    rows = np.arange(snapshot.size)
    fits = snapshot.exists[: snapshot.size] & snapshot.ready[: snapshot.size]
    fits &= snapshot.selected(NodeSelector(labels=view.node_selector), slice(0, snapshot.size))
    fits &= snapshot.basis(now, stale_after_seconds=stale_after_seconds, policy="Avoid") == MEASURED
    if view.node_name:
        fits &= rows == snapshot.row_of.get(view.node_name, -1)
    placements: dict[str, int] = {}
    for node, units in sorted(state.held.items()):
        row = snapshot.row_of.get(node)
        if row is not None and fits[row] and wanted > 0:
            placements[node] = min(units, wanted)
            wanted -= placements[node]
    # New room only where new pods may go; and what this reservation holds is not in `holdable` any more
    fits &= ~snapshot.unschedulable[: snapshot.size]
    room: list[tuple[float, str]] = []
    for index in np.flatnonzero(fits):
        holdable = snapshot.holdable(int(index))
        if holdable >= 1.0:
            room.append((-holdable, snapshot.names[index]))
    heapq.heapify(room)
    while wanted > 0 and room:
        available, node = heapq.heappop(room)
        placements[node] = placements.get(node, 0) + 1
        wanted -= 1
        if available + 1.0 <= -1.0:
            heapq.heappush(room, (available + 1.0, node))
    return placements
