"""A Pod as scheduling and autoscaling see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from concerto.api.conditions import find_condition
from concerto.api.pod_end import TERMINAL, containers_have_ended
from concerto.api.pod_kind import ANY, Kind, kind_of_pod
from concerto.api.pod_ownership import MIRROR, belongs_to_node, spreading_owner
from concerto.api.pod_requests import resized_requests
from concerto.api.pod_shape import PodShape, pod_group_of, shape_of
from concerto.api.pod_start import start_fails
from concerto.api.pod_volumes import NO_VOLUMES, PodVolumes, pod_volumes
from concerto.api.timestamps import read_timestamp

Raw = Mapping[str, Any]

PREEMPTED = "PreemptionByScheduler"
"""Reason of the condition DisruptionTarget of a pod that a scheduler evicts."""
_REVISION_LABELS = ("pod-template-hash", "controller-revision-hash")
_NEVER = 253402300799.0
"""The last second of the year 9999."""


@dataclass(slots=True, unsafe_hash=True)  # frozen: a call for each field, and a fifth of what it takes to make one
class PodView:
    """A Pod as scheduling and autoscaling see it. Nobody changes it. Times are seconds since the epoch.

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
        created: creation time.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        deleting: whether its deletion has begun.
        counted: whether it counts as a unit of measured capacity: pods that belong to their node do not.
        gates: names of its scheduling gates; a pod with a gate is not scheduled.
        started: when the kubelet of its node accepted it; None before.
        kind: which pods cost what it costs.
        nominated_node: the node on which a scheduler makes room for it (``status.nominatedNodeName``); empty without.
        preempts: whether pods of lower priority may be evicted for it (``spec.preemptionPolicy``).
        preempted: whether its deletion has begun because a scheduler evicts it for a pod of higher priority.
        ready: status of its condition Ready ("True", "False", "Unknown"); None without that condition.
        ready_since: when that condition last changed.
        scheduled_at: when it was bound to its node; None where its conditions do not say so.
        deleting_since: when its deletion was requested; 0 where that is unknown, or it is not being deleted.
        host: IP address of its node; empty before its kubelet has reported it.
        owner: kind and name of the ReplicationController, ReplicaSet or StatefulSet that controls it; None without one.
        images: of its containers, init containers and volumes, each with a tag or digest.
        unscheduled_since: when its condition PodScheduled became False; None unless it is False.
        first_ready: when it became Ready for the first time; None unless that was observed (no field of a Pod has it).
        was_gated: whether it was observed with scheduling gates (no field of a Pod has that once they are gone).
        volumes: its volumes that matter for where it can run.
        mirror: whether it stands for a static pod, which its kubelet runs on, and shows again, if it is deleted.
        group: name of its PodGroup, in its namespace (``spec.schedulingGroup.podGroupName``); empty without one.
        start_fails: whether none of its containers has ever run, and one can't be created (ImagePullBackOff).
        uses_nothing: whether it does not count because all its containers have ended for good, or because its start has
            failed for long (``UnstartedPods``). What it requests counts until its kubelet has taken it down.
        nonzero: cpu millicores and memory bytes that it counts for with defaults for containers without a request,
            while it is being resized; None: those of its shape.
    """

    namespace: Final[str]
    name: Final[str]
    uid: Final[str]
    labels: Final[Mapping[str, str]]
    shape: Final[PodShape]
    requests: Final[Mapping[str, int]]
    node_name: Final[str]
    scheduler_name: Final[str]
    priority: Final[int]
    created: Final[float]
    phase: Final[str]
    deleting: Final[bool]
    counted: Final[bool]
    gates: Final[tuple[str, ...]]
    started: Final[float | None] = None
    kind: Final[Kind] = ANY
    nominated_node: Final[str] = ""
    preempts: Final[bool] = True
    preempted: Final[bool] = False
    ready: Final[str | None] = None
    ready_since: Final[float] = 0.0
    scheduled_at: Final[float | None] = None
    deleting_since: Final[float] = 0.0
    host: Final[str] = ""
    first_ready: Final[float | None] = None
    was_gated: Final[bool] = False
    owner: Final[tuple[str, str] | None] = None
    volumes: Final[PodVolumes] = NO_VOLUMES
    images: Final[tuple[str, ...]] = ()
    unscheduled_since: Final[float | None] = None
    mirror: Final[bool] = False
    group: Final[str] = ""
    start_fails: Final[bool] = False
    uses_nothing: Final[bool] = False
    nonzero: Final[tuple[int, int] | None] = None

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def terminal(self) -> bool:
        """Whether it has ended, so that it uses nothing of its node any more."""
        return self.phase in TERMINAL

    @property
    def waiting(self) -> bool:
        """Whether it is to be placed: not bound, not ended or being deleted, and without scheduling gates."""
        return not (self.node_name or self.gates or self.deleting or self.terminal)

    @property
    def is_ready(self) -> bool:
        """Running and Ready."""
        return self.phase == "Running" and self.ready == "True"

    @property
    def bound_at(self) -> float:
        """When it was bound to its node, as far as is known: else when its kubelet accepted it, else its creation."""
        return self.scheduled_at if self.scheduled_at is not None else self.started or self.created

    @property
    def revision(self) -> str:
        """Hash of the template that its workload made it from; empty without one."""
        return next((self.labels[key] for key in _REVISION_LABELS if key in self.labels), "")

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it, whole or as ``trim_pod`` leaves it."""
        metadata = obj["metadata"]
        spec = obj["spec"]
        status = obj.get("status") or {}
        shape = shape_of(spec)
        requests, nonzero = _counted(shape, spec, status)
        by_type = {c.get("type"): c for c in status.get("conditions") or ()}
        ready, scheduled = by_type.get("Ready") or {}, by_type.get("PodScheduled") or {}
        since, scheduled_at = ready.get("lastTransitionTime"), read_timestamp(scheduled.get("lastTransitionTime"), None)
        deleting = "deletionTimestamp" in metadata
        phase, counted = status.get("phase") or "Pending", not belongs_to_node(obj)
        uses_nothing = counted and containers_have_ended(metadata, spec, status)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            labels=metadata.get("labels") or {},
            shape=shape,
            requests=requests,
            nonzero=nonzero,
            node_name=spec.get("nodeName") or "",
            scheduler_name=spec.get("schedulerName") or "default-scheduler",
            priority=spec.get("priority") or 0,
            created=read_timestamp(metadata.get("creationTimestamp"), 0.0),
            phase=phase,
            deleting=deleting,
            counted=counted and not uses_nothing,
            uses_nothing=uses_nothing,
            mirror=MIRROR in (metadata.get("annotations") or ()),
            group=pod_group_of(spec),
            gates=tuple(g["name"] for g in spec.get("schedulingGates") or ()),
            started=read_timestamp(status.get("startTime"), None),
            kind=kind_of_pod(obj),
            nominated_node=status.get("nominatedNodeName") or "",
            preempts=spec.get("preemptionPolicy") != "Never",
            preempted=deleting and _is_preempted(status),
            ready=ready.get("status"),
            # A pod whose readiness changed at an unknown time has no reading that is about load alone
            ready_since=read_timestamp(since, _NEVER) if since else 0.0,
            scheduled_at=scheduled_at if scheduled.get("status") == "True" else None,
            deleting_since=_deleting_since(metadata),
            host=status.get("hostIP") or "",
            owner=spreading_owner(metadata),
            volumes=pod_volumes(metadata["name"], spec.get("volumes")),
            images=images_of(spec),
            unscheduled_since=scheduled_at if scheduled.get("status") == "False" else None,
            start_fails=start_fails(status),
        )


def _counted(shape: PodShape, spec: Raw, status: Raw) -> tuple[Mapping[str, int], tuple[int, int] | None]:
    """``requests`` and ``nonzero`` of the pod."""
    resized = resized_requests(spec, status)
    if resized is None:
        return shape.requests, None
    of_shape = (shape.nonzero_cpu_millicores, shape.nonzero_memory_bytes)
    return (
        shape.requests if resized.requests == shape.requests else resized.requests,
        None if resized.nonzero == of_shape else resized.nonzero,
    )


def images_of(spec: Raw) -> tuple[str, ...]:
    """The images of a pod's containers and volumes as kubelets name them; without a tag, it is latest."""
    found = [c.get("image") for kind in ("initContainers", "containers") for c in spec.get(kind) or ()]
    found += [(volume.get("image") or {}).get("reference") for volume in spec.get("volumes") or ()]
    return tuple(f"{i}:latest" if i.rfind(":") <= i.rfind("/") else i for i in found if i)


def _deleting_since(metadata: Raw) -> float:
    """``deletionTimestamp`` is when the grace period will be over, not when the deletion was requested."""
    if "deletionTimestamp" not in metadata:
        return 0.0
    until = read_timestamp(metadata["deletionTimestamp"], None)
    return 0.0 if until is None else until - (metadata.get("deletionGracePeriodSeconds") or 0)


def _is_preempted(status: Raw) -> bool:
    target = find_condition(status.get("conditions"), "DisruptionTarget")
    return target is not None and (target.get("status"), target.get("reason")) == ("True", PREEMPTED)
