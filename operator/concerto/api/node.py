"""What scheduling needs of a Node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Self

from concerto.api.conditions import find_condition
from concerto.api.object_bounds import trim_metadata
from concerto.api.quantities import resource_amount

_MEASURED = ("cpu", "memory")


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


def trim_node(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a raw Node that ``NodeView`` reads."""
    spec = obj.get("spec") or {}
    status = obj.get("status") or {}
    ready = find_condition(status.get("conditions"), "Ready")
    return {
        "metadata": trim_metadata(obj, "labels"),
        "spec": {k: spec[k] for k in ("taints", "unschedulable") if k in spec},
        "status": {
            "allocatable": status.get("allocatable") or {},
            "capacity": {r: v for r, v in (status.get("capacity") or {}).items() if r in _MEASURED},
            "addresses": _internal(status),
            "declaredFeatures": status.get("declaredFeatures") or [],
            "images": [
                # Nodes have the same images: one string for each name
                {"names": [intern(name) for name in image.get("names") or ()], "sizeBytes": image.get("sizeBytes")}
                for image in status.get("images") or ()
            ],
            "conditions": [{"type": "Ready", "status": ready.get("status")}] if ready is not None else [],
        },
    }
