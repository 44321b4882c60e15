"""What plugins are asked about a pod under its profile."""

from __future__ import annotations

from typing import NamedTuple

from concerto.api.pod import PodView
from concerto.api.pod_kind import Kind
from concerto.api.podreservation import ReservationKey
from concerto.capacity.kinds.cost import Cost
from concerto.scheduling.evaluation import reserved
from concerto.scheduling.framework import Query
from concerto.scheduling.large_pod_drain import ignores_size_by_kind, required_cpu, waits
from concerto.scheduling.node_sizes import large_enough
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools


class Request(NamedTuple):
    """What one pod asks for beyond its shape, under its profile and as of now.

    Attributes:
        reservation: the reservation that holds units for it; None without one.
        required_cpu: millicores that a node must have left for a large pod; None for a regular pod.
        ignores_size: whether it goes wherever there is room for one more pod.
        cost: what such a pod costs by what was measured of its kind; None while nothing is measured of any kind.
        first_of: its kind, while no pod of it has ended: how many of its pods run where matters then.
        starts_together: whether it is placed together with others, whatever nodes' pace.
        has_waited: for so long that it takes nodes of any size.
    """

    reservation: ReservationKey | None
    required_cpu: float | None
    ignores_size: bool
    cost: Cost | None = None
    first_of: Kind | None = None
    starts_together: bool = False
    has_waited: bool = False


_NOTHING = Request(None, None, False)


def request_of(
    cluster: ClusterState, pod: PodView, profile: Profile, now: float, *, starts_together: bool = False
) -> Request:
    """What the pod asks for beyond its shape."""
    reservation = cluster.ledger.reservations.for_pod(pod)
    if not (cluster.kinds and pod.counted):
        required, ignores_size = required_cpu(cluster, pod, profile, now)
        if reservation is None and required is None and not (ignores_size or starts_together):
            return _NOTHING
        return Request(reservation, required, ignores_size, starts_together=starts_together)
    cost = cluster.kinds.cost_of(pod)
    ignores_size = ignores_size_by_kind(cluster, pod, cost, profile, now)
    first_of = None if cost.basis == "Ended" else pod.kind
    has_waited = waits(pod, profile, now) > 0
    return Request(reservation, None, ignores_size, cost, first_of, starts_together, has_waited)


def query_for(
    cluster: ClusterState, pod: PodView, profile: Profile, now: float, request: Request | None = None
) -> Query:
    """What plugins are asked about a pod under its profile, as of now."""
    settings = profile.settings
    request = request_of(cluster, pod, profile, now) if request is None else request
    basis = cluster.measured.basis(
        now, stale_after_seconds=settings.stale_after_seconds, policy=profile.capacity_policy
    )
    return Query(
        pod,
        cluster,
        settings,
        basis,
        reserved(cluster, request.reservation),
        now,
        reservation=request.reservation,
        required_cpu=request.required_cpu,
        ignores_size=request.ignores_size,
        cost=request.cost,
        starts_together=request.starts_together,
        large_enough=_large_enough(cluster, pod, request),
    )


def _large_enough(cluster: ClusterState, pod: PodView, request: Request) -> Bools | None:
    cost = request.cost
    if cost is None or not cost.known or request.starts_together or request.has_waited or pod.shape.selects_nodes:
        return None
    return large_enough(cluster, cost)
