"""PodReservation: room held for pods to come (a person's), or the record of placements under way (the operator's)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Self

from concerto.api.podcpubinding import Level
from concerto.api.podgroup import GroupKey
from concerto.api.quantities import milli, whole
from concerto.api.selectors import LabelSelector, Requirement
from concerto.api.timestamps import parse_timestamp
from concerto.api.volumes import NO_BINDINGS, VolumeBindings

Basis = Literal["Capacity", "Requests"]
KnownFrom = Literal["Ended", "Running", "Guess"]
ReservationKey = tuple[str, str]
"""Namespace and name of a standing reservation."""

_MAX_NUMBER = 1e6
_MAX_LENGTH = 64
IN_FLIGHT_LABEL = "concerto.dev/in-flight"


@dataclass(frozen=True, slots=True)
class Pin:
    """CPUs that an assignment holds for a pinned pod.

    Attributes:
        cpus: those it is to run on, as a list like ``0-3,8``.
        mems: the memory nodes they belong to, likewise.
        level: what of the node nobody else gets a part of.
        binding: name of the PodCPUBinding, in the pod's namespace, that says so.
    """

    cpus: str
    mems: str
    level: Level
    binding: str


@dataclass(frozen=True, slots=True)
class AssignmentCost:
    """What a pod was taken to cost when it was placed, and what its node had left before that.

    Attributes:
        cpu_millicores: CPU that it takes while it holds its place.
        cpu_seconds: CPU time over its life; None if it runs without end, or nobody knows.
        memory_bytes: memory.
        known_from: pods of its kind that have ended, that run, or none.
        head_room: CPU that the node is filled to, in parts of what it does not take for itself.
        cpu_left_millicores: CPU that was not committed; negative where the node is over.
        memory_left_bytes: memory that was not committed; negative likewise.
    """

    cpu_millicores: int
    cpu_seconds: float | None
    memory_bytes: int
    known_from: KnownFrom
    head_room: float
    cpu_left_millicores: int
    memory_left_bytes: int

    def to_raw(self) -> dict[str, Any]:
        """``cost`` of an assignment."""
        raw: dict[str, Any] = {
            "cpu": f"{self.cpu_millicores}m",
            "memory": str(self.memory_bytes),
            "knownFrom": self.known_from,
            "headRoom": _written(self.head_room),
            "cpuLeft": f"{self.cpu_left_millicores}m",
            "memoryLeft": str(self.memory_left_bytes),
        }
        return raw if self.cpu_seconds is None else {**raw, "cpuSeconds": _written(self.cpu_seconds)}

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``cost`` of an assignment."""
        return cls(
            cpu_millicores=milli(raw["cpu"]),
            cpu_seconds=float(raw["cpuSeconds"]) if "cpuSeconds" in raw else None,
            memory_bytes=int(raw["memory"]),
            known_from=raw["knownFrom"],
            head_room=float(raw["headRoom"]),
            cpu_left_millicores=milli(raw["cpuLeft"]),
            memory_left_bytes=int(raw["memoryLeft"]),
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """One pod placed on one node, and what that was decided on.

    Attributes:
        namespace: the pod's namespace.
        name: the pod's name.
        uid: the pod's UID.
        node: the node it is placed on.
        basis: ``Capacity``: the node's measured capacity; ``Requests``: requests, as telemetry was missing or too old.
        node_capacity_resource_version: the NodeCapacity decided on; empty where the node has none.
        available: pods the node could still take before this placement, units of ``reservation`` included.
        units: room it takes, in pods.
        reservation: the standing reservation it uses a unit of.
        pin: CPUs held for it; None for a pod that shares those of the node.
        cost: what it was taken to cost; None where it was placed as one unit, or by requests.
        pod_group: name of the PodGroup, in the pod's namespace, whose pods are placed together; empty for a pod that is
            placed by itself.
        volumes: what is bound before it is. It is not stored: after a restart the volumes and claims show it.
    """

    namespace: str
    name: str
    uid: str
    node: str
    basis: Basis
    node_capacity_resource_version: str
    available: float
    units: int = 1
    reservation: ReservationKey | None = None
    pin: Pin | None = None
    cost: AssignmentCost | None = None
    volumes: VolumeBindings = NO_BINDINGS
    pod_group: str = ""

    @property
    def gang(self) -> GroupKey | None:
        """Namespace and name of the PodGroup whose pods are placed together; None for a pod placed by itself."""
        return (self.namespace, self.pod_group) if self.pod_group else None

    def to_raw(self) -> dict[str, Any]:
        """An item of ``spec.assignments``."""
        raw: dict[str, Any] = {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "node": self.node,
            "units": self.units,
            "basis": self.basis,
            "available": _written(self.available),
        }
        if self.node_capacity_resource_version:
            raw["nodeCapacityResourceVersion"] = self.node_capacity_resource_version
        if self.reservation is not None:
            raw["reservation"] = {"namespace": self.reservation[0], "name": self.reservation[1]}
        if self.pin is not None:
            raw |= {"cpus": self.pin.cpus, "exclusivenessLevel": self.pin.level, "binding": self.pin.binding}
            if self.pin.mems:
                raw["mems"] = self.pin.mems
        if self.cost is not None:
            raw["cost"] = self.cost.to_raw()
        if self.pod_group:
            raw["podGroup"] = self.pod_group
        return raw

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """An item of ``spec.assignments``.

        Raises:
            Exception: it cannot be read.
        """
        reservation = raw.get("reservation")
        return cls(
            namespace=_text(raw, "namespace"),
            name=_text(raw, "name"),
            uid=_text(raw, "uid"),
            node=_text(raw, "node"),
            basis=raw["basis"],
            node_capacity_resource_version=raw.get("nodeCapacityResourceVersion", ""),
            available=float(raw.get("available", "0")),
            units=whole(raw["units"]),
            reservation=(_text(reservation, "namespace"), _text(reservation, "name")) if reservation else None,
            pin=(
                Pin(raw["cpus"], raw.get("mems", ""), raw["exclusivenessLevel"], raw["binding"])
                if "binding" in raw
                else None
            ),
            cost=AssignmentCost.from_raw(raw["cost"]) if "cost" in raw else None,
            pod_group=_text(raw, "podGroup") if "podGroup" in raw else "",
        )


def _text(raw: Mapping[str, Any], key: str) -> str:
    """The value of a key. One that is not a string would otherwise fail only where it is looked up."""
    text = raw[key]
    if not isinstance(text, str):
        raise ValueError(f"{key} {text!r} is not a string")
    return text


def _written(number: float) -> str:
    """Without an exponent, and no longer than the CRD takes, whatever the number is."""
    bounded = 0.0 if math.isnan(number) else float(max(-_MAX_NUMBER, min(number, _MAX_NUMBER)))
    text = f"{Decimal(repr(bounded)):f}"
    return text if len(text) <= _MAX_LENGTH else f"{Decimal(repr(round(bounded, 6))):f}"


@dataclass(frozen=True)
class Reservation:
    """A person's PodReservation.

    Attributes:
        namespace: its namespace, and that of the pods it is for.
        name: its name.
        uid: its UID.
        selector: the pods it is for.
        count: units it asks for.
        created: creation time, seconds since the epoch.
        expires_at: when what is left is given up, seconds since the epoch; None: never.
        node_name: the one node to hold room on; empty for any.
        node_selector: labels of the nodes to hold room on; empty for any.
        placements: units that its status says are held, by node.
        consumed: pods that its status says have used a unit, UID to node.
    """

    namespace: str
    name: str
    uid: str
    selector: LabelSelector
    count: int
    created: float = 0.0
    expires_at: float | None = None
    node_name: str = ""
    node_selector: tuple[Requirement, ...] = ()
    placements: Mapping[str, int] = field(default_factory=dict)
    consumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> ReservationKey:
        """Namespace and name."""
        return (self.namespace, self.name)

    @classmethod
    def from_raw(cls, obj: Mapping[str, Any]) -> Self:
        """A PodReservation with a ``podSelector``, as the API server holds it."""
        metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
        created = parse_timestamp(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0.0
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            selector=LabelSelector.from_raw(spec["podSelector"]),
            count=spec["count"],
            created=created,
            expires_at=created + spec["ttlSeconds"] if "ttlSeconds" in spec else None,
            node_name=spec.get("nodeName", ""),
            node_selector=tuple(Requirement(k, "In", (v,)) for k, v in (spec.get("nodeSelector") or {}).items()),
            placements={p["node"]: whole(p["units"]) for p in status.get("placements") or ()},
            consumed={c["uid"]: c["node"] for c in status.get("consumedBy") or ()},
        )


def build_placement_record(namespace: str, name: str, assignments: Sequence[Assignment]) -> dict[str, Any]:
    """The operator's own form: the PodReservation that records the decisions of one cycle (at most 250)."""
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodReservation",
        "metadata": {"namespace": namespace, "name": name, "labels": {IN_FLIGHT_LABEL: "true"}},
        "spec": {"count": len(assignments), "assignments": [a.to_raw() for a in assignments]},
    }
