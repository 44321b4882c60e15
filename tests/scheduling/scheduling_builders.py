"""Short ways to make the objects that scheduling reads."""

from __future__ import annotations

from typing import Any

from concerto.api.node import NodeView, Taint
from concerto.api.nodecapacity import AgentInfo, CapacitySettings, NodeCapacity, NodeCapacityStatus
from concerto.api.pod import PodView

GI = 2**30


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
        metadata["ownerReferences"] = [{"kind": owner, "controller": True, "name": "owner"}]
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
    at: float = 1000.0,
    instance: str = "first",
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
        )
    return NodeCapacity(name, f"ncap-{name}", str(version), 1, CapacitySettings(), status)
