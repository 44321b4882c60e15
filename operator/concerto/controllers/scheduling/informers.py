"""How each kind that is watched reaches the state on which cycles decide: one row per kind.

All calls are synchronous and come from the reflectors, so that a cycle, which has no await in it, decides on one state
of the cluster.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.deviceclass import DeviceClass
from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacity
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.object_bounds import trim_metadata
from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_labels
from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.podgroup import PodGroup
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.controllers.scheduling.placement_records import PlacementRecord, read_record
from concerto.kube import Object
from concerto.kube.reflector import key_of
from concerto.scheduling.state.changes import Change

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Informer:
    """One kind's way into the cluster state.

    Attributes:
        kind: the kind, for logs and metrics.
        parse: reads an object; whatever it raises means that the object is not usable.
        put: takes what was read, and returns what may have become possible.
        remove: takes the object as it was last seen, once it is gone.
        unusable: takes an object that could not be read; by default it counts as gone.
        metrics: where unusable objects are counted.
        requeue: given what may have become possible.
    """

    kind: str
    parse: Callable[[Object], Any]
    put: Callable[[Any], Change]
    remove: Callable[[Object], Change]
    metrics: Metrics
    requeue: Callable[[Change], None]
    unusable: Callable[[Object], Change] | None = None

    def on_change(self, old: Object | None, new: Object | None) -> None:
        """An object appeared, changed or went; one that cannot be read must not keep the others waiting."""
        if new is None:
            if old is not None:
                self.requeue(self.remove(old))
            return
        try:
            change = self.put(self.parse(new))
        except Exception:
            self._report_unusable(new)
            change = (self.unusable or self.remove)(new)
        self.requeue(change)

    def _report_unusable(self, obj: Object) -> None:
        metadata = obj["metadata"]
        key = "/".join(part for part in (metadata.get("namespace"), metadata["name"]) if part)
        error = sys.exception()
        logger.warning("%s %s is not usable, and is left out: %s: %s", self.kind, key, type(error).__name__, error)
        self.metrics.unreadable.labels(self.kind).inc()


def trim_namespace(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a raw Namespace that is read: its name and labels, as far as a pod's are."""
    metadata = trim_metadata(obj, "labels")
    if "labels" in metadata:
        metadata["labels"] = trim_labels(metadata["labels"])
    return {"metadata": metadata}


class Informers:
    """The informer of each kind.

    Attributes:
        nodes: Nodes.
        pods: pods that have not ended.
        capacities: NodeCapacities. Without a readable one, a node takes part as one without telemetry.
        topologies: NodeCPUTopologies.
        cpu_bindings: PodCPUBindings.
        placement_records: the operator's own PodReservations.
        namespaces: Namespaces, whose labels pod affinity may select by.
        budgets: PodDisruptionBudgets. One that cannot be read protects no pod.
        pod_groups: PodGroups. Pods of one that cannot be read wait as if it did not exist.
        device_classes: DeviceClasses.
        capacity_uids: UIDs of NodeCapacities by node: ``kubectl describe`` finds events by UID alone.
        on_first_group: called when a pod that names a PodGroup is seen.
        on_extended_resource: called when a pod that waits and requests an extended resource is seen.
    """

    def __init__(self, parts: SchedulerParts, metrics: Metrics, clock: Callable[[], float]) -> None:
        """Everything that is seen goes into the scheduler's parts.

        Args:
            parts: cluster, pending pods, placement records, and pods that wait for CPUs of their own.
            metrics: counts objects that cannot be read.
            clock: seconds since the epoch.
        """
        cluster = self._cluster = parts.cluster
        self._pending = parts.pending
        self._records = parts.records
        self._pins = parts.pins
        self._volumes = parts.volumes
        self._clock = clock
        self.capacity_uids: dict[str, str] = {}
        self.on_first_group: Callable[[], None] = lambda: None
        self.on_extended_resource: Callable[[], None] = lambda: None

        def informer(
            kind: str,
            parse: Callable[[Object], Any],
            put: Callable[[Any], Change],
            remove: Callable[[Object], Change],
            unusable: Callable[[Object], Change] | None = None,
        ) -> Informer:
            return Informer(kind, parse, put, remove, metrics, parts.pending.requeue, unusable)

        def by_name(remove: Callable[[str], Change]) -> Callable[[Object], Change]:
            return lambda obj: remove(obj["metadata"]["name"])

        self.nodes = informer("Node", NodeView.from_raw, cluster.set_node, by_name(self._remove_node))
        self.pods = informer("Pod", PodView.from_raw, self._put_pod, self._remove_pod, self._unusable_pod)
        self.capacities = informer(
            "NodeCapacity", NodeCapacity.from_raw, self._put_capacity, by_name(cluster.remove_capacity)
        )
        self.topologies = informer(
            "NodeCPUTopology", NodeCPUTopology.from_raw, cluster.set_topology, by_name(cluster.remove_topology)
        )
        self.cpu_bindings = informer(
            "PodCPUBinding",
            lambda obj: obj,
            cluster.set_cpu_binding,
            lambda obj: cluster.remove_cpu_binding(key_of(obj)),
        )
        self.namespaces = informer(
            "Namespace",
            lambda obj: obj["metadata"],
            lambda metadata: cluster.namespaces.set(metadata["name"], metadata.get("labels") or {}),
            by_name(lambda name: cluster.namespaces.set(name, None)),
        )
        self.placement_records = informer(
            "PodReservation", read_record, self._put_record, self._remove_record, lambda _: Change.NOTHING
        )

        self.budgets = informer("PodDisruptionBudget", DisruptionBudget.from_raw, self._put_budget, self._remove_budget)
        self.pod_groups = informer("PodGroup", PodGroup.from_raw, self._put_group, self._remove_group)
        classes = cluster.resources.device_classes
        self.device_classes = informer("DeviceClass", DeviceClass.from_raw, classes.set, by_name(classes.remove))

    def on_capacity(self, old: Object | None, new: Object | None) -> None:
        """A NodeCapacity appeared, changed or went."""
        if new is not None:
            self.capacity_uids[new["metadata"]["name"]] = new["metadata"].get("uid", "")
        elif old is not None:
            self.capacity_uids.pop(old["metadata"]["name"], None)
        self.capacities.on_change(old, new)

    def on_cpu_binding(self, old: Object | None, new: Object | None) -> None:
        """A PodCPUBinding appeared, changed or went."""
        self.cpu_bindings.on_change(old, new)
        self._pins.on_cpu_binding(old, new)

    def on_reservation(self, old: Object | None, new: Object | None) -> None:
        """A PodReservation appeared, changed or went; only placement records count here."""
        old, new = (obj if obj is not None and self._records.is_record(obj) else None for obj in (old, new))
        self.placement_records.on_change(old, new)

    def _remove_node(self, name: str) -> Change:
        change = self._cluster.remove_node(name)
        self._volumes.on_node_gone(name)
        return change

    def _put_pod(self, pod: PodView) -> Change:
        change = self._cluster.set_pod(pod, self._clock())
        if pod.node_name or pod.terminal or pod.deleting:
            self._pins.on_pod(pod.uid, "" if pod.terminal else pod.node_name)
            self._volumes.on_pod(pod.uid, "" if pod.terminal else pod.node_name)
            self._pending.remove_pod(pod.uid)
        else:
            self._pending.add_pod(pod)
            if pod.shape.requests_extended_resource:
                self.on_extended_resource()
        if pod.group:
            self.on_first_group()
            self._pending.requeue_pod_groups()
        return change

    def _remove_pod(self, obj: Object) -> Change:
        uid = obj["metadata"]["uid"]
        change = self._cluster.remove_pod(uid)
        self._pins.on_pod(uid, "")
        self._volumes.on_pod(uid, "")
        self._pending.remove_pod(uid)
        self._pending.requeue_pod_groups()
        return change

    def _unusable_pod(self, obj: Object) -> Change:
        """What was known of it goes on counting; it is not placed as long as it cannot be read."""
        self._pending.remove_pod(obj["metadata"]["uid"])
        return Change.NOTHING

    def _put_capacity(self, capacity: NodeCapacity) -> Change:
        return self._cluster.set_capacity(capacity, self._clock())

    def _put_budget(self, budget: DisruptionBudget) -> Change:
        self._cluster.budgets.set(budget)
        return Change.NOTHING

    def _remove_budget(self, obj: Object) -> Change:
        self._cluster.budgets.remove(*key_of(obj))
        return Change.NOTHING

    def _put_group(self, group: PodGroup) -> Change:
        self._cluster.pod_groups.set_group(group)
        self._pending.requeue_pod_groups()
        return Change.NOTHING

    def _remove_group(self, obj: Object) -> Change:
        self._cluster.pod_groups.remove_group(key_of(obj))
        self._pending.requeue_pod_groups()
        return Change.NOTHING

    def _put_record(self, record: PlacementRecord) -> Change:
        self._records.on_found(record)
        return Change.NOTHING

    def _remove_record(self, obj: Object) -> Change:
        self._records.forget(obj["metadata"]["name"])
        return Change.NOTHING
