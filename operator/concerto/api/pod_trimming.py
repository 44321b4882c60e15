"""Trimming of raw Pods, so that a reflector does not keep environments and volumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from concerto.api.object_bounds import controlling_owner, trim_metadata
from concerto.api.pod_bounds import bound_spec, bound_status
from concerto.api.pod_end import may_have_ended, trim_ended
from concerto.api.pod_ownership import MIRROR
from concerto.api.pod_shape import pack_constraints
from concerto.api.pod_start import CONTAINER_STATUSES, trim_start
from concerto.api.pod_volumes import trim_volumes

Raw = Mapping[str, Any]

_METADATA = (
    "generateName", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
"""What is kept of a pod's metadata beside what is of every kind's (``trim_metadata``)."""
SPEC = (
    "nodeName", "schedulerName", "priority", "overhead", "resources", "tolerations", "nodeSelector", "affinity",
    "topologySpreadConstraints", "resourceClaims", "schedulingGates", "workloadRef", "schedulingGroup",
    "preemptionPolicy", "hostNetwork", "hostUsers", "restartPolicy",
)  # fmt: skip
STATUS = ("phase", "startTime", "resources", "allocatedResources", "nominatedNodeName", "hostIP")
_TIMED, _EXPLAINED = ("type", "status", "lastTransitionTime"), ("type", "status", "reason")
CONDITIONS = {"Ready": _TIMED, "PodScheduled": _TIMED, "PodResizePending": _EXPLAINED, "DisruptionTarget": _EXPLAINED}
"""What is kept of conditions, by their type."""
CONTAINER = ("name", "image", "resources", "ports", "restartPolicy", "restartPolicyRules")
_TARGET_SPEC = ("nodeName", "schedulerName", "overhead", "resources")
_TARGET_STATUS = ("phase", "startTime", "hostIP", "conditions")
_MAX_CONTAINERS, _MAX_RESOURCES = 100, 16
CONTAINER_STATUS = ("name", "resources", "allocatedResources")
_FEW_LABELS = 40  # of at most 317 + 63 bytes each


MAX_LABEL_BYTES = 16 * 1024
"""A pod with more text in its labels is held without them, so that no selector finds it: anybody may write 1.5 MiB."""


def trim_pod(obj: Raw) -> dict[str, Any]:
    """The part of a raw Pod that ``PodView`` reads, bounded in size."""
    trimmed = _trim(obj)
    pack_constraints(bound_spec(trimmed["spec"]))
    return trimmed


def _trim(obj: Raw) -> dict[str, Any]:
    metadata = obj["metadata"]
    spec = obj["spec"]
    status = obj.get("status") or {}
    trimmed_metadata = trim_metadata(obj, *_METADATA)
    if "labels" in metadata:
        trimmed_metadata["labels"] = trim_labels(metadata["labels"])
    if "ownerReferences" in metadata:
        trimmed_metadata["ownerReferences"] = controlling_owner(metadata["ownerReferences"])
    if MIRROR in (metadata.get("annotations") or ()):
        trimmed_metadata["annotations"] = {MIRROR: ""}
    trimmed = {k: spec[k] for k in SPEC if k in spec}
    for containers in ("containers", "initContainers"):
        if containers in spec:
            trimmed[containers] = [{k: c[k] for k in CONTAINER if k in c} for c in spec[containers]]
    if volumes := trim_volumes(spec.get("volumes")):
        trimmed["volumes"] = volumes
    trimmed_status: dict[str, Any] = {k: status[k] for k in STATUS if k in status}
    ended = may_have_ended(status)
    for statuses in CONTAINER_STATUSES:
        kept = [trim_container_status(s, status.get("phase"), ended=ended) for s in status.get(statuses) or ()]
        if any(kept):
            trimmed_status[statuses] = [s for s in kept if s]
    conditions = [
        {k: condition[k] for k in CONDITIONS[condition["type"]] if k in condition}
        for condition in status.get("conditions") or ()
        if condition.get("type") in CONDITIONS
    ]
    if conditions:
        trimmed_status["conditions"] = conditions
    return {"metadata": trimmed_metadata, "spec": trimmed, "status": bound_status(trimmed_status)}


def trim_labels(labels: Any) -> Any:
    """Of ``metadata.labels``, none if they have too much text."""
    return {} if labels and len(labels) > _FEW_LABELS and _has_too_much_text(labels) else labels


def trim_container_status(status: Raw, phase: str | None, *, ended: bool = False) -> dict[str, Any]:
    """The part of a container's status that is read of a pod in this phase; ``ended``: all of them have ended."""
    resized = "resources" in status or "allocatedResources" in status
    trimmed = {k: status[k] for k in CONTAINER_STATUS if k in status} if resized else {}
    if phase == "Pending":
        trimmed |= trim_start(status)
    return trimmed | trim_ended(status) if ended else trimmed


def _has_too_much_text(labels: Mapping[str, str]) -> bool:
    return len(json.dumps(labels, ensure_ascii=False).encode()) > MAX_LABEL_BYTES


def trim_target_pod(obj: Raw) -> dict[str, Any]:
    """The part of a raw Pod that autoscaling reads, bounded in size: for a process that does not place pods.

    Limits are those that the pod's node enforces: until a resize in place is carried out, they are not those of the
    spec.
    """
    trimmed = _trim(obj)
    spec = {k: trimmed["spec"][k] for k in _TARGET_SPEC if k in trimmed["spec"]}
    if gates := trimmed["spec"].get("schedulingGates"):
        spec["schedulingGates"] = gates[:1]  # that there is one is all that matters
    if "resources" in spec:
        spec["resources"] = _first_resources(_enforced(spec["resources"], trimmed["status"]))
    statuses = (trimmed["status"].get(group) or () for group in CONTAINER_STATUSES)
    reported = {each.get("name"): each for each in chain.from_iterable(statuses)}
    for containers in ("containers", "initContainers"):
        if containers in trimmed["spec"]:
            first = trimmed["spec"][containers][:_MAX_CONTAINERS]
            spec[containers] = [_trim_target_container(c, reported.get(c.get("name"), {})) for c in first]
    status = {k: v for k, v in trimmed["status"].items() if k in _TARGET_STATUS}
    return {"metadata": trimmed["metadata"], "spec": spec, "status": status}


def _trim_target_container(container: Raw, status: Raw) -> dict[str, Any]:
    trimmed = {k: container[k] for k in ("name", "restartPolicy") if k in container}
    if "resources" in container:
        trimmed["resources"] = _first_resources(_enforced(container["resources"], status))
    return trimmed


def _enforced(wanted: Raw, status: Raw) -> Raw:
    """The resources of a pod or a container with the limits that its status reports, where it reports any."""
    reported = status.get("resources")
    return wanted if reported is None else {**wanted, "limits": reported.get("limits")}


def _first_resources(resources: Raw) -> dict[str, Any]:
    """Requests and limits of the first few resources; cpu and memory are always among them."""
    return {
        kind: dict(sorted(amounts.items(), key=lambda item: item[0] not in ("cpu", "memory"))[:_MAX_RESOURCES])
        for kind in ("requests", "limits")
        if (amounts := resources.get(kind))
    }
