"""Pods as the API server holds them, to the little that the rules need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from concerto.api.conditions import find_condition
from concerto.api.quantities import milli
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.pods import ContainerView, TargetPod

Raw = Mapping[str, Any]

_REVISION_LABELS = ("pod-template-hash", "controller-revision-hash")
_METADATA = (
    "namespace",
    "name",
    "uid",
    "resourceVersion",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def trim_pod(obj: Raw) -> dict[str, Any]:
    """The part of a raw Pod that `read_pod` reads."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    kept = {k: [_trim(c) for c in spec[k]] for k in ("containers", "initContainers") if k in spec}
    kept |= {k: spec[k] for k in ("resources", "overhead", "nodeName", "schedulerName") if k in spec}
    said = {k: status[k] for k in ("phase", "startTime", "hostIP") if k in status}
    said["conditions"] = [c for c in status.get("conditions") or () if c["type"] == "Ready"]
    return {
        "metadata": {k: obj["metadata"][k] for k in _METADATA if k in obj["metadata"]},
        "spec": kept,
        "status": said,
    }


def read_pod(obj: Raw) -> TargetPod:
    """The view of a raw (or trimmed) Pod.

    Raises:
        ValueError: a quantity or a time is not valid.
    """
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready = find_condition(status.get("conditions"), "Ready")
    labels = meta.get("labels") or {}
    containers = [*spec.get("containers", ()), *(c for c in spec.get("initContainers", ()) if _restarts(c))]
    since = ready.get("lastTransitionTime") if ready else None
    return TargetPod(
        name=meta["name"],
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in meta,
        ready=ready["status"] if ready else None,
        ready_since=parse_timestamp(since) if since else 0.0,
        started_at=parse_timestamp(status["startTime"]) if "startTime" in status else None,
        created_at=parse_timestamp(meta["creationTimestamp"]),
        containers=tuple(ContainerView(c["name"], _amounts(c, "requests"), _amounts(c, "limits")) for c in containers),
        pod_requests=_pod_level(spec, containers),
        uid=meta.get("uid", ""),
        revision=next((labels[k] for k in _REVISION_LABELS if k in labels), ""),
        node=spec.get("nodeName", ""),
        host=status.get("hostIP", ""),
        scheduler=spec.get("schedulerName", ""),
        deleting_since=_deleting_since(meta),
    )


def _deleting_since(meta: Raw) -> float:
    """The API server writes down when the pod's time to end is over."""
    if "deletionTimestamp" not in meta:
        return 0.0
    return parse_timestamp(meta["deletionTimestamp"]) - (meta.get("deletionGracePeriodSeconds") or 0)


def _trim(container: Raw) -> dict[str, Any]:
    return {k: container[k] for k in ("name", "resources", "restartPolicy") if k in container}


def _restarts(container: Raw) -> bool:
    return container.get("restartPolicy") == "Always"


def _amounts(owner: Raw, kind: str) -> dict[str, int]:
    return {k: milli(v) for k, v in ((owner.get("resources") or {}).get(kind) or {}).items()}


def _pod_level(spec: Raw, containers: Iterable[Raw]) -> dict[str, int] | None:
    """Pod-level requests over those of the containers, with overhead; None where the pod has none of its own."""
    own = _amounts(spec, "requests")
    if not own:
        return None
    total: dict[str, int] = {}
    for container in containers:
        for name, amount in _amounts(container, "requests").items():
            total[name] = total.get(name, 0) + amount
    total |= own
    for name, amount in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, 0) + milli(amount)
    return total
