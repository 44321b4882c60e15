"""Pods as the API server holds them, to the little that the rules need.

Anybody who may create a pod, and every kubelet, chooses what stands in it. So its size is bounded here, and a time
that cannot be read counts as one that tells nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from concerto.api.conditions import find_condition
from concerto.api.quantities import milli
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.pods import ContainerView, TargetPod

Raw = Mapping[str, Any]
_T = TypeVar("_T")

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


MAX_LABEL_BYTES = 16 * 1024
"""A pod with more text in its labels is held without them, so that no selector finds it."""
_MAX_CONTAINERS, _MAX_RESOURCES = 100, 16
"""Containers of a pod, and resources of a container, that are held; cpu and memory come first."""
_NEVER = 253402300799.0
"""The last second of the year 9999."""


def trim_pod(obj: Raw) -> dict[str, Any]:
    """The part of a raw Pod that `read_pod` and `label_text` read, bounded in size.

    ``metadata.labels`` becomes text: a mapping of many labels takes some twenty times the memory.
    """
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    trimmed: dict[str, Any] = {
        k: [_trim(c) for c in spec[k][:_MAX_CONTAINERS]] for k in ("containers", "initContainers") if k in spec
    }
    trimmed |= {k: spec[k] for k in ("overhead", "nodeName", "schedulerName") if k in spec}
    if "resources" in spec:
        trimmed["resources"] = _trim_resources(spec["resources"])
    observed = {k: status[k] for k in ("phase", "startTime", "hostIP") if k in status}
    observed["conditions"] = [
        {k: c.get(k) for k in ("type", "status", "lastTransitionTime")}
        for c in status.get("conditions") or ()
        if c["type"] in ("Ready", "PodScheduled")
    ][:2]
    meta = {k: obj["metadata"][k] for k in _METADATA if k in obj["metadata"]}
    return {"metadata": {**meta, "labels": label_text(obj["metadata"])}, "spec": trimmed, "status": observed}


def label_text(meta: Raw) -> str:
    """The labels of a raw or trimmed Pod as JSON; ``{}`` where they are longer than `MAX_LABEL_BYTES`."""
    labels = meta.get("labels") or {}
    text = labels if isinstance(labels, str) else json.dumps(labels, separators=(",", ":"), ensure_ascii=False)
    return text if len(text.encode()) <= MAX_LABEL_BYTES else "{}"


def read_pod(obj: Raw) -> TargetPod:
    """The view of a raw (or trimmed) Pod.

    Raises:
        ValueError: a quantity is not valid.
    """
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready = find_condition(status.get("conditions"), "Ready")
    bound = find_condition(status.get("conditions"), "PodScheduled") or {}
    bound_at = bound.get("lastTransitionTime") if bound.get("status") == "True" else None
    labels = json.loads(label_text(meta))
    containers = [*spec.get("containers", ()), *(c for c in spec.get("initContainers", ()) if _restarts(c))]
    since = ready.get("lastTransitionTime") if ready else None
    return TargetPod(
        name=meta["name"],
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in meta,
        ready=ready["status"] if ready else None,
        # A pod whose readiness changed at an unknown time has no reading that is about load alone
        ready_since=_time(since, _NEVER) if since else 0.0,
        started_at=_time(status["startTime"], None) if "startTime" in status else None,
        created_at=_time(meta["creationTimestamp"], 0.0),
        containers=tuple(ContainerView(c["name"], _amounts(c, "requests"), _amounts(c, "limits")) for c in containers),
        pod_requests=_pod_level(spec, containers),
        uid=meta.get("uid", ""),
        revision=next((labels[k] for k in _REVISION_LABELS if k in labels), ""),
        node=spec.get("nodeName", ""),
        host=status.get("hostIP", ""),
        scheduler=spec.get("schedulerName", ""),
        deleting_since=_deleting_since(meta),
        scheduled_at=_time(bound_at, None) if bound_at else None,
    )


def _deleting_since(meta: Raw) -> float:
    """``deletionTimestamp`` is when the grace period will be over, not when the deletion was requested."""
    if "deletionTimestamp" not in meta:
        return 0.0
    until = _time(meta["deletionTimestamp"], None)
    return 0.0 if until is None else until - (meta.get("deletionGracePeriodSeconds") or 0)


def _time(text: str, unreadable: _T) -> float | _T:
    """Seconds; ``unreadable`` for what Kubernetes accepts and Python cannot represent, such as the year 10000."""
    try:
        return parse_timestamp(text)
    except (ValueError, OverflowError):
        return unreadable


def _trim(container: Raw) -> dict[str, Any]:
    trimmed = {k: container[k] for k in ("name", "restartPolicy") if k in container}
    if "resources" in container:
        trimmed["resources"] = _trim_resources(container["resources"])
    return trimmed


def _trim_resources(resources: Raw) -> dict[str, Any]:
    """Requests and limits of the first few resources; cpu and memory are always among them."""
    return {
        kind: dict(sorted(amounts.items(), key=lambda item: item[0] not in ("cpu", "memory"))[:_MAX_RESOURCES])
        for kind in ("requests", "limits")
        if (amounts := resources.get(kind))
    }


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
