"""Short ways to make PodGroups and their pods."""

from __future__ import annotations

from typing import Any

from concerto.api.pod import PodView
from concerto.api.podgroup import PodGroup
from concerto.scheduling.state.cluster import ClusterState
from support.scheduling_builders import NOW, pod, raw_pod


def raw_group(name: str = "g", min_count: int | None = 2, **over: Any) -> dict[str, Any]:
    """A raw PodGroup; without a ``min_count``, of the policy basic. `over` sets fields of the spec, and conditions."""
    policy: dict[str, Any] = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
    metadata = {
        "namespace": over.pop("namespace", "default"), "name": name, "uid": over.pop("uid", f"uid-group-{name}"),
        "generation": 1, "resourceVersion": "1",
    }  # fmt: skip
    status = {"conditions": over.pop("conditions", [])}
    return {"metadata": metadata, "spec": {"schedulingPolicy": policy} | over, "status": status}


def group(name: str = "g", min_count: int | None = 2, **over: Any) -> PodGroup:
    return PodGroup.from_raw(raw_group(name, min_count, **over))


def raw_member(name: str, of: str = "g", **over: Any) -> dict[str, Any]:
    return raw_pod(name, schedulingGroup={"podGroupName": of}, **over)


def member(name: str, of: str = "g", **over: Any) -> PodView:
    return pod(name, schedulingGroup={"podGroupName": of}, **over)


def members(count: int, of: str = "g", **over: Any) -> list[PodView]:
    return [member(f"{of}-{i}", of, **over) for i in range(count)]


def add(cluster: ClusterState, *things: PodGroup | PodView) -> None:
    """PodGroups and pods are seen."""
    for thing in things:
        if isinstance(thing, PodGroup):
            cluster.pod_groups.set_group(thing)
        else:
            cluster.set_pod(thing, NOW)
