"""Where a person's reservation is held: room on the emptiest nodes that fit, by what its pods cost. Pure.

Held room stays on its node while that node fits. Missing room is looked for unit by unit, on the node that can take
most, so that it spreads as pods do. Source: docs/references.md, "Reservation ledger".
"""

from __future__ import annotations

import heapq

import numpy as np

from concerto.api.podreservation import Reservation
from concerto.api.selectors import NodeSelector
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Floats
from concerto.scheduling.state.measured_capacity import MEASURED
from concerto.scheduling.state.reserved_loads import cost_of_reserved, held_for_others, units_held
from concerto.scheduling.state.resources import PODS


def no_such_node(cluster: ClusterState, view: Reservation) -> bool:
    """Whether no node there is has the name or the labels that the reservation asks for."""
    named = cluster.nodes.exists[: cluster.size] & cluster.nodes.labels.selected(
        NodeSelector(labels=view.node_selector), slice(0, cluster.size)
    )
    if view.node_name:
        named &= np.arange(cluster.size) == cluster.row_of.get(view.node_name, -1)
    return not named.any()


def place(
    cluster: ClusterState,
    view: Reservation,
    *,
    now: float,
    max_units: int,
    stale_after_seconds: float,
) -> dict[str, int]:
    """Units to hold by node, for what is left of a reservation; fewer than asked for where there is no room.

    Args:
        cluster: the cluster; it knows the reservation (``set_reservation``), and is only read.
        view: the reservation.
        now: seconds since the epoch.
        max_units: what its namespace may still hold, what this reservation holds now included.
        stale_after_seconds: age up to which a node's telemetry is used; room is never held on unmeasured nodes.
    """
    state = cluster.ledger.reservations.state(view.key)
    wanted = min(state.remaining, max_units)
    rows = np.arange(cluster.size)
    fits = cluster.nodes.exists[: cluster.size] & cluster.nodes.ready[: cluster.size]
    fits &= cluster.nodes.labels.selected(NodeSelector(labels=view.node_selector), slice(0, cluster.size))
    fits &= cluster.measured.basis(now, stale_after_seconds=stale_after_seconds, policy="Avoid") == MEASURED
    if view.node_name:
        fits &= rows == cluster.row_of.get(view.node_name, -1)
    placements: dict[str, int] = {}
    for node, units in sorted(state.held.items()):
        row = cluster.row_of.get(node)
        if row is not None and fits[row] and wanted > 0:
            placements[node] = min(units, wanted)
            wanted -= placements[node]
    # New room only where new pods may go; and what this reservation holds is not in `holdable` any more
    fits &= ~cluster.nodes.unschedulable[: cluster.size]
    holdable = _holdable(cluster, view)
    candidates = np.flatnonzero(fits & (np.nan_to_num(holdable, nan=0.0) >= 1.0))
    # The emptiest ones: each unit takes one of them at most
    order = np.lexsort((cluster.rows.name_ranks()[candidates], -holdable[candidates]))[: max(wanted, 0)]
    room = [(-float(holdable[row]), cluster.names[row]) for row in candidates[order]]
    heapq.heapify(room)
    while wanted > 0 and room:
        available, node = heapq.heappop(room)
        placements[node] = placements.get(node, 0) + 1
        wanted -= 1
        if available + 1.0 <= -1.0:
            heapq.heappush(room, (available + 1.0, node))
    return placements


def _holdable(cluster: ClusterState, view: Reservation) -> Floats:
    """(N,) pods like the reservation's that each node can take beside all that is held; NaN where unmeasured.

    As long as nothing was measured of such pods, each of them is one unit of the node's capacity.
    """
    rows = slice(0, cluster.size)
    cost = cost_of_reserved(cluster, view.key)
    if cost is None:
        return cluster.measured.holdable[rows]
    pods = cluster.kinds.loads.capacity(cost, rows, held_for_others(cluster, cost, None, rows))
    # kubelet takes no more pods than its limit, whatever they cost
    places = cluster.resources.allocatable(PODS, rows) - cluster.resources.used(PODS, rows) - units_held(cluster, rows)
    return np.where(np.isnan(cluster.measured.capacity[rows]), np.nan, np.minimum(pods, places))
