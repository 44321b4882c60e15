"""What people's reservations hold on nodes, by what the pods that they are for were measured to cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from concerto.api.pod_kind import Kind
from concerto.api.podreservation import Reservation, ReservationKey
from concerto.capacity.kinds.cost import Cost
from concerto.capacity.kinds.node_loads import NONE_HELD, Held
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Floats, Rows

MAX_COMPARED = 200
"""Pods of its namespace, the latest ones, that a reservation's selector is compared with in each pass: 0.5 ms at most.
A namespace may have a thousand reservations that select none of its pods."""


def held_for_others(cluster: ClusterState, cost: Cost, reservation: ReservationKey | None, rows: Rows) -> Held:
    """What is held on these rows for other pods than those of one reservation.

    Args:
        cluster: the cluster.
        cost: of the pod that asks. Units count like this pod where nothing was measured of the pods they are for.
        reservation: whose units are left out; None: all count.
        rows: the rows.
    """
    reservations = cluster.ledger.reservations
    if not reservations.hold_any:
        return NONE_HELD
    cpu: Floats | float = 0.0
    memory: Floats | float = 0.0
    own = {} if reservation is None else reservations.held_by(reservation)
    own_kind = None if reservation is None else reservations.kind_of(reservation)
    for kind, held in reservations.held_for().items():
        units = _units(cluster, held, rows)
        if own and kind == own_kind:
            units = np.maximum(units - _units(cluster, own, rows), 0.0)
        of_one = _cost_of_one(cluster, kind, cost)
        cpu = cpu + units * of_one.share
        memory = memory + units * cluster.kinds.loads.memory_of(of_one)
    return Held(cpu, memory)


def find_kind(cluster: ClusterState, view: Reservation) -> None:
    """Take the kind of a pod on a node that the reservation selects, as long as no pod has used the reservation."""
    reservations = cluster.ledger.reservations
    if reservations.kind_of(view.key) is None:
        pods = islice(cluster.pod_counts.in_namespace(view.namespace), MAX_COMPARED)
        if (like := next((pod for pod in pods if view.selector.matches(pod.labels)), None)) is not None:
            reservations.set_kind(view.key, like.kind)


def units_held(cluster: ClusterState, rows: Rows) -> Floats:
    """Pods that all reservations together hold room for, by row."""
    held = cluster.ledger.reservations.held_for().values()
    return np.sum([_units(cluster, each, rows) for each in held], axis=0) if held else np.zeros(cluster.size)[rows]


def units_by_kind(cluster: ClusterState) -> dict[str, int]:
    """Pods that all reservations together hold room for, by the key of their kind, as far as it is known."""
    held_for = cluster.ledger.reservations.held_for()
    return {kind.key: sum(held.values()) for kind, held in held_for.items() if kind is not None}


def cost_of_reserved(cluster: ClusterState, reservation: ReservationKey) -> Cost | None:
    """What a pod costs that the reservation holds room for; None if nothing was measured of such pods."""
    kind = cluster.ledger.reservations.kind_of(reservation)
    if not cluster.kinds or kind is None:
        return None
    cost = cluster.kinds.cost_of_kind(kind)
    return cost if cost.known else None


def _cost_of_one(cluster: ClusterState, kind: Kind | None, otherwise: Cost) -> Cost:
    cost = None if kind is None else cluster.kinds.cost_of_kind(kind)
    return cost if cost is not None and cost.known else otherwise


def _units(cluster: ClusterState, held: Mapping[str, int], rows: Rows) -> Floats:
    """Units by row."""
    if not isinstance(rows, slice) and len(rows) < len(held):
        return np.array([held.get(cluster.names[row], 0) for row in rows.tolist()], dtype=np.float64)
    units = np.zeros(cluster.size)
    on = np.fromiter((cluster.row_of[node] for node in held), np.int64, len(held))
    units[on] = np.fromiter(held.values(), np.float64, len(held))
    of_rows: Floats = units[rows]
    return of_rows
