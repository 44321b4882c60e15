"""What a scenario consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

from e2e.testbed.placement.changes import Change
from e2e.testbed.placement.random_objects import Object


@dataclass
class Scenario:
    """One cluster, and pods that are to be placed on it one after another.

    Attributes:
        name: prefix of all its objects.
        nodes: its Nodes.
        storage: PersistentVolumes, claims, CSINodes, CSIStorageCapacities and VolumeAttachments.
        running: pods that are bound when the scenario begins.
        statuses: of running pods whose status is not that of a new pod, by name.
        deleted: names of running pods that are being deleted.
        nominated: pods on no node that wait with a scheduling gate, and their status.
        budgets: PodDisruptionBudgets, with their status.
        services: Services, by whose selectors pods without spread constraints are spread.
        workloads: ReplicationControllers, ReplicaSets and StatefulSets, by which pods are spread, too.
        pods: those to place, in order.
        changes: what changes before a pod is placed, by the pod's name.
        nominations: nodes for which pods to place are nominated before they are looked at, by the pod's name.
    """

    name: str
    nodes: list[Object] = field(default_factory=list)
    storage: list[Object] = field(default_factory=list)
    running: list[Object] = field(default_factory=list)
    statuses: dict[str, Object] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    nominated: list[Object] = field(default_factory=list)
    budgets: list[Object] = field(default_factory=list)
    services: list[Object] = field(default_factory=list)
    workloads: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    changes: dict[str, list[Change]] = field(default_factory=dict)
    nominations: dict[str, str] = field(default_factory=dict)
