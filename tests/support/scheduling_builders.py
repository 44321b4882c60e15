"""Short ways to make the objects that scheduling reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.node import NodeView, Taint
from concerto.api.nodecapacity import AgentInfo, NodeCapacity, NodeCapacityStatus, Window
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Reservation
from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.framework import Filter, Query, Score
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.ledger import Ledger
from support.daemon_sets import daemon_affinity
from support.daemon_sets import owner as owned_by

GI = 2**30
NOW = 1000.0


def raw_pod(name: str = "pod", **over: Any) -> dict[str, Any]:
    """A raw Pod; `over` sets metadata fields (namespace, uid, labels, owner, annotations), status and spec fields."""
    metadata: dict[str, Any] = {
        "namespace": over.pop("namespace", "default"),
        "name": name,
        "uid": over.pop("uid", f"uid-{name}"),
        "creationTimestamp": over.pop("created", "2026-03-01T12:00:00Z"),
        "labels": over.pop("labels", {}),
        "annotations": over.pop("annotations", {}),
    }
    if owner := over.pop("owner", None):
        metadata["ownerReferences"] = [owned_by(owner)]
        if owner == "DaemonSet":
            over.setdefault("affinity", daemon_affinity(over.get("nodeName") or "n1"))
    if over.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-03-01T12:00:01Z"
    status = {"phase": over.pop("phase", "Pending"), **over.pop("status", {})}
    requests = over.pop("requests", None)
    spec: dict[str, Any] = {
        "schedulerName": "concerto",
        "containers": [{"name": "main", "resources": {"requests": requests} if requests else {}}],
    }
    return {"metadata": metadata, "spec": spec | over, "status": status}


def pod(name: str = "pod", **over: Any) -> PodView:
    return PodView.from_raw(raw_pod(name, **over))


def node(name: str = "node", **over: Any) -> NodeView:
    """A ready node of 4 cores, 8 GiB and 110 pods."""
    taints = tuple(Taint(*t) for t in over.pop("taints", ()))
    allocatable = {"cpu": 4000, "memory": 8 * GI, "pods": 110} | over.pop("allocatable", {})
    labels = {"kubernetes.io/hostname": name} | over.pop("labels", {})
    return NodeView(name, f"uid-{name}", labels, allocatable, taints, **over)


def capacity(
    name: str = "node",
    value: float | None = 5.0,
    observed: tuple[str, ...] = (),
    *,
    version: int = 1,
    at: float = NOW,
    instance: str = "first",
    windows: tuple[Window, ...] = (),
    room: float | None = None,
    large: dict[str, float] | None = None,
    pod_share: float | None = None,
    spare_share: float = 1.0,
) -> NodeCapacity:
    """A NodeCapacity whose agent published `value` at `at`; None: it has not published."""
    status = None
    if value is not None:
        status = NodeCapacityStatus(
            observed_at=at,
            observed_generation=1,
            agent=AgentInfo("0.1.0", instance, "Machine", "Inotify"),
            capacity=value,
            capacity_mode="Quiet",
            signal=1.0,
            baseline=1.0,
            per_pod_cost=0.1,
            pod_count=len(observed),
            young_pods=0,
            observed_pod_uids=observed,
            settle_time_seconds=1.0,
            room=room,
            large_pods=large or {},
            pod_share=pod_share,
            spare_share=spare_share,
            windows=windows,
        )
    return NodeCapacity(name, f"ncap-{name}", str(version), 1, CapacitySettings(), status)


def load(
    cpu: tuple[float, float] | None, memory: tuple[float, float] | None = (0.0, 0.0), covered: int = 300
) -> tuple[Window, ...]:
    """Windows of 5 minutes with these means and deviations; None: not measured."""
    both = {"cpu": cpu, "memory": memory}
    return tuple(Window(r, "5m", of[0], of[1], of[0], covered) for r, of in both.items() if of is not None)


def scores(plugin: Score, asked: Query) -> dict[str, float]:
    """Scores by node without those it abstains on; asked in whole and row by row, which must agree."""
    rows = np.arange(asked.cluster.size)
    state = plugin.prepare(asked)
    if state is None:
        return {}
    whole = plugin.score(state, slice(0, asked.cluster.size))
    np.testing.assert_array_equal([plugin.score(state, rows[i : i + 1])[0] for i in rows], whole)
    given = plugin.normalise(state, whole)
    if given is None:
        return {}
    return {name: given[row] for name, row in asked.cluster.row_of.items() if not np.isnan(given[row])}


def cluster_state(
    nodes: Iterable[NodeView], pods: Iterable[PodView] = (), capacities: Iterable[NodeCapacity] = ()
) -> ClusterState:
    made = ClusterState()
    for view in nodes:
        made.set_node(view)
    for status in capacities:
        made.set_capacity(status, NOW)
    for p in pods:
        made.set_pod(p, NOW)
    return made


def restored_ledger(
    pods: Iterable[PodView],
    capacities: Iterable[NodeCapacity],
    records: Mapping[str, Sequence[Assignment]],
    reservations: Iterable[Reservation] = (),
    *,
    now: float,
) -> Ledger:
    """The ledger as a new leader builds it, from what the API server holds and nothing else."""
    made = Ledger()
    for status in capacities:
        made.set_capacity(status, now)
    for p in pods:
        made.set_pod(p, now)
    for reservation in reservations:
        made.reservations.set(reservation)
    for name, assignments in records.items():
        made.adopt_record(name, assignments)
    return made


def profile(name: str = "concerto", **settings: Any) -> Profile:
    return Profile.build(ProfileSettings(name, **({"tie_breaking": "FirstByName"} | settings)))


def query(
    cluster: ClusterState, p: PodView, *, now: float = NOW, reserved: dict[str, float] | None = None, **settings: Any
):
    """What a plugin is asked, under a profile with these settings."""
    chosen = ProfileSettings("concerto", **settings)
    basis = cluster.measured.basis(now, stale_after_seconds=chosen.stale_after_seconds, policy=chosen.metrics_policy)
    units = np.zeros(cluster.size)
    for name, held in (reserved or {}).items():
        units[cluster.row_of[name]] = held
    reservation = cluster.ledger.reservations.for_pod(p) or ("default", "held") if reserved else None
    return Query(p, cluster, chosen, basis, units, now, reservation=reservation)


def passes(plugin: Filter, asked: Query) -> list[str]:
    """Names of the nodes that a filter lets pass; asked in whole and row by row, which must agree."""
    rows = np.arange(asked.cluster.size)
    state = plugin.prepare(asked)
    if state is None:
        return list(asked.cluster.names)
    whole = plugin.check(state, slice(0, asked.cluster.size))
    assert [plugin.check(state, rows[i : i + 1])[0] for i in rows] == whole.tolist()
    return [asked.cluster.names[row] for row in rows[whole == 0]]


def reasons(plugin: Filter, asked: Query) -> dict[str, int]:
    """Why the filter refuses what it refuses."""
    state = plugin.prepare(asked)
    if state is None:
        return {}
    codes = plugin.check(state, slice(0, asked.cluster.size))
    return dict(plugin.reasons(state, np.flatnonzero(codes), codes[codes != 0]))
