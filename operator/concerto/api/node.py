"""What scheduling needs of a Node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from sys import intern
from typing import Any, Self

from concerto.api.conditions import find_condition
from concerto.api.object_bounds import is_large, trim_metadata
from concerto.api.quantities import resource_amount

_MEASURED = ("cpu", "memory")
_OF_EACH = (*_MEASURED, "ephemeral-storage", "pods")
_MAX_RESOURCES, _MAX_FEATURES, _MAX_ADDRESSES, _MAX_IMAGE_NAMES = 1024, 1024, 16, 4096
"""Of a node. A kubelet reports 50 images with two names each, unless it is configured to report all."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node.

    Attributes:
        key: the taint's key.
        value: its value, possibly empty.
        effect: NoSchedule, PreferNoSchedule or NoExecute.
    """

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node as scheduling sees it.

    Attributes:
        name: the node's name.
        uid: UID of the Node object.
        labels: its labels.
        allocatable: amounts by resource: millicores for cpu, whole units for all else.
        taints: its taints, in the object's order.
        unschedulable: whether it has been cordoned.
        ready: whether its Ready condition is True; a node without the condition is not ready.
        capacity: amounts of cpu and memory of the machine; usage is measured as a share of them.
        addresses: its internal IP addresses, which some metrics use as the node's name.
        images: bytes of the container images that are on the node, by name.
        declared_features: names of features that its kubelet says it has.
    """

    name: str
    uid: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    capacity: Mapping[str, int] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    images: Mapping[str, int] = field(default_factory=dict)
    declared_features: frozenset[str] = frozenset()

    @classmethod
    def from_raw(cls, obj: Mapping[str, Any]) -> Self:
        """The object as the API server holds it."""
        metadata = obj["metadata"]
        spec = obj.get("spec") or {}
        status = obj.get("status") or {}
        ready = find_condition(status.get("conditions"), "Ready")
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            labels=metadata.get("labels") or {},
            allocatable={r: resource_amount(r, v) for r, v in (status.get("allocatable") or {}).items()},
            taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ()),
            unschedulable=bool(spec.get("unschedulable")),
            ready=ready is not None and ready.get("status") == "True",
            capacity={r: resource_amount(r, v) for r, v in (status.get("capacity") or {}).items() if r in _MEASURED},
            addresses=tuple(a["address"] for a in _internal(status)),
            images={
                name: image.get("sizeBytes") or 0
                for image in status.get("images") or ()
                for name in image.get("names") or ()
            },
            declared_features=frozenset(status.get("declaredFeatures") or ()),
        )


def _internal(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [a for a in status.get("addresses") or () if a.get("type") == "InternalIP"]


def _first_images(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Its images, which kubelets sort by size, up to a number of names."""
    left = _MAX_IMAGE_NAMES
    for image in status.get("images") or ():
        left -= len(image.get("names") or ())
        if left < 0:
            return
        yield image


def trim_node(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a raw Node that ``NodeView`` reads, bounded in size: a kubelet writes most of it.

    A node with large labels counts as one without labels, and one with large taints as unschedulable.
    """
    metadata = trim_metadata(obj, "labels")
    if is_large(metadata.get("labels")):
        metadata["labels"] = {}
    spec = obj.get("spec") or {}
    if is_large(spec.get("taints")):
        spec = {"unschedulable": True}
    status = obj.get("status") or {}
    offered = status.get("allocatable") or {}
    ready = find_condition(status.get("conditions"), "Ready")
    return {
        "metadata": metadata,
        "spec": {k: spec[k] for k in ("taints", "unschedulable") if k in spec},
        "status": {
            "allocatable": {r: offered[r] for r in _OF_EACH if r in offered}
            | dict(islice(offered.items(), _MAX_RESOURCES)),
            "capacity": {r: v for r, v in (status.get("capacity") or {}).items() if r in _MEASURED},
            "addresses": _internal(status)[:_MAX_ADDRESSES],
            "declaredFeatures": (status.get("declaredFeatures") or [])[:_MAX_FEATURES],
            "images": [
                # Nodes have the same images: one string for each name
                {"names": [intern(name) for name in image.get("names") or ()], "sizeBytes": image.get("sizeBytes")}
                for image in _first_images(status)
            ],
            "conditions": [{"type": "Ready", "status": ready.get("status")}] if ready is not None else [],
        },
    }
