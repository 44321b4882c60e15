"""A Pod as scheduling sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from concerto.api.conditions import find_condition
from concerto.api.pod_kind import ANY, Kind, kind_of_pod
from concerto.api.pod_ownership import belongs_to_node
from concerto.api.pod_requests import resized_requests
from concerto.api.pod_shape import PodShape, shape_of
from concerto.api.timestamps import parse_timestamp

Raw = Mapping[str, Any]

PREEMPTED = "PreemptionByScheduler"
"""Reason of the condition DisruptionTarget of a pod that a scheduler evicts."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A Pod as scheduling sees it.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID. All accounting goes by UID, because names are used again.
        labels: its labels.
        shape: what it shares with the other pods of its template.
        requests: what it requests of its node: the shape's requests, except while it is being resized.
        node_name: the node it is bound to; empty before it is bound.
        scheduler_name: the scheduler that places it.
        priority: the higher, the sooner.
        created: creation time, seconds since the epoch.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        deleting: whether its deletion has begun.
        counted: whether it counts as a unit of measured capacity: pods that belong to their node do not.
        gates: names of its scheduling gates; a pod with a gate is not scheduled.
        started: when the kubelet of its node accepted it, seconds since the epoch; None before.
        kind: which pods cost what it costs.
        nominated_node: the node that a scheduler makes room on for it (``status.nominatedNodeName``); empty if none is.
        preempts: whether pods of lower priority may be evicted for it (``spec.preemptionPolicy``).
        preempted: whether its deletion has begun because a scheduler evicts it for a pod of higher priority.
    """

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    shape: PodShape
    requests: Mapping[str, int]
    node_name: str
    scheduler_name: str
    priority: int
    created: float
    phase: str
    deleting: bool
    counted: bool
    gates: tuple[str, ...]
    started: float | None = None
    kind: Kind = ANY
    nominated_node: str = ""
    preempts: bool = True
    preempted: bool = False

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def terminal(self) -> bool:
        """Whether it has ended, so that it uses nothing of its node any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def waiting(self) -> bool:
        """Whether it is to be placed: not bound, not ended or being deleted, and without scheduling gates."""
        return not (self.node_name or self.gates or self.deleting or self.terminal)

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it, whole or as ``trim_pod`` leaves it."""
        metadata = obj["metadata"]
        spec = obj["spec"]
        status = obj.get("status") or {}
        shape = shape_of(spec)
        resized = resized_requests(spec, status)
        created = metadata.get("creationTimestamp")
        started = status.get("startTime")
        deleting = "deletionTimestamp" in metadata
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            labels=metadata.get("labels") or {},
            shape=shape,
            requests=shape.requests if resized is None else resized,
            node_name=spec.get("nodeName") or "",
            scheduler_name=spec.get("schedulerName") or "default-scheduler",
            priority=spec.get("priority") or 0,
            created=parse_timestamp(created) if created else 0.0,
            phase=status.get("phase") or "Pending",
            deleting=deleting,
            counted=not belongs_to_node(obj),
            gates=tuple(g["name"] for g in spec.get("schedulingGates") or ()),
            started=parse_timestamp(started) if started else None,
            kind=kind_of_pod(obj),
            nominated_node=status.get("nominatedNodeName") or "",
            preempts=spec.get("preemptionPolicy") != "Never",
            preempted=deleting and _is_preempted(status),
        )


def _is_preempted(status: Raw) -> bool:
    target = find_condition(status.get("conditions"), "DisruptionTarget")
    return target is not None and (target.get("status"), target.get("reason")) == ("True", PREEMPTED)
