"""After kubelet has resized a pod in place, its PodCPUBinding gets as many CPUs as the pod requests now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.api.pod import PodView
from concerto.api.pod_requests import is_being_resized
from concerto.api.podcpubinding import BindingKey
from concerto.controllers.pinning.binding_objects import SIZE_ANNOTATION, containers_of, owner_of, size_of
from concerto.kube import Conflict, NotFound, Object, Session
from concerto.kube.confirmed_writes import wait_unless_leading
from concerto.kube.events import EventRecorder
from concerto.kube.references import build_event_subject
from concerto.kube.resources import POD_CPU_BINDINGS, PODS
from concerto.pinning.allocator import Placement
from concerto.pinning.classification import LABEL
from concerto.pinning.resizing import resize
from concerto.pinning.topology import bits, to_mask
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.cpus import Workload, workload_of

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0
"""Wait for the next try after a binding changed meanwhile, or while one of the node is not validated yet."""
_NO_ROOM_SECONDS = 15.0
"""Wait for the next try for a pod whose node has too few CPUs."""


class PodResizes:
    """Changes the PodCPUBindings that the operator created when their pods are resized.

    If a person has edited the binding, the change begins with the CPUs that it has then.

    Attributes:
        mark: called with namespace and name of a binding that has to be reconciled.
    """

    def __init__(
        self,
        session: Session,
        cluster: ClusterState,
        profiles: Mapping[str, Profile],
        pods: Mapping[tuple[str, str], Object],
        recorder: EventRecorder,
        may_write: Callable[[], bool],
    ) -> None:
        """Writes from `reconcile` only.

        Args:
            session: connection to the API server.
            cluster: which CPUs pods hold, and what they request.
            profiles: by scheduler name, those in use.
            pods: all pods that have not ended, by namespace and name; the caller keeps it up to date.
            recorder: for events.
            may_write: whether this process still leads; called before each write.
        """
        self.mark: Callable[[str | None, str], None] = lambda namespace, name: None
        self._session = session
        self._cluster = cluster
        self._profiles = profiles
        self._pods = pods
        self._recorder = recorder
        self._may_write = may_write
        # By node, a binding that was written and its generation, until its status shows that it was validated
        self._unvalidated: dict[str, tuple[BindingKey, int]] = {}

    def on_pod(self, old: Object | None, new: Object | None) -> None:
        """A pod appeared, changed or went. Its binding has its name."""
        if new is not None and LABEL in (new["metadata"].get("labels") or {}) and _resources(old) != _resources(new):
            self.mark(new["metadata"]["namespace"], new["metadata"]["name"])

    async def reconcile(self, key: BindingKey, obj: Object | None) -> float | None:
        """Give a binding as many CPUs as its pod runs with.

        Returns:
            Seconds after which to reconcile it again; None if nothing is to be done before a change.
        """
        status = (obj or {}).get("status") or {}
        observed = status.get("observedGeneration", 0)
        self._unvalidated = {
            node: (each, generation)
            for node, (each, generation) in self._unvalidated.items()
            if each != key or (obj is not None and observed < generation)
        }
        raw, node = self._pods.get(key), status.get("nodeName", "")
        if obj is None or raw is None or "deletionTimestamp" in obj["metadata"]:
            return None
        is_valid = status.get("resourceStatus") in ("Validated", "Applied")
        if not is_valid or observed != obj["metadata"].get("generation"):
            return None
        found = self._new_workload(obj, raw)
        if found is None:
            return None
        pod, workload = found
        if node in self._unvalidated:
            return _AGAIN_SECONDS
        placement = self._place(key, pod, workload, status)
        if placement is None:
            self._report(obj, pod, workload, status["cpus"])
            return _NO_ROOM_SECONDS
        return await self._write(key, obj, pod, placement)

    def _new_workload(self, obj: Object, raw: Object) -> tuple[PodView, Workload] | None:
        """The pod and its workload, if its binding was made for another one."""
        made_for = (obj["metadata"].get("annotations") or {}).get(SIZE_ANNOTATION)
        metadata, status = raw["metadata"], obj["status"]
        is_own = owner_of(obj) == metadata["uid"] == status.get("podUID")
        if made_for is None or not is_own or LABEL not in (metadata.get("labels") or {}):
            return None
        is_elsewhere = raw["spec"].get("nodeName") != status.get("nodeName")
        if is_elsewhere or is_being_resized(raw["spec"], raw.get("status") or {}):
            return None
        pod = PodView.from_raw(raw)
        profile = self._profiles.get(pod.scheduler_name)
        if size_of(pod) == made_for or profile is None:
            return None
        workload = workload_of(pod, profile.settings.workload_aware)
        return (pod, workload) if isinstance(workload, Workload) else None

    def _place(self, key: BindingKey, pod: PodView, workload: Workload, status: Mapping[str, Any]) -> Placement | None:
        """CPUs for the pod that no other pod holds or requests; None if its node has too few."""
        node = status["nodeName"]
        occupancy = self._cluster.cpus.occupancy_without(node, key)
        if occupancy is None or node not in self._cluster.row_of:
            return None
        own, level = to_mask(parse_cpu_list(status["cpus"])), status["exclusivenessLevel"]
        found = resize(occupancy, own, workload.kind, workload.threads, workload.features, level)
        if found is None:
            return None
        needed, held = (1000 * occupancy.index.closure(cpus, level).bit_count() for cpus in (found.cpus, own))
        row, request = self._cluster.row_of[node], pod.requests.get("cpu", 0)
        free = int(self._cluster.resources.free(("cpu",), slice(row, row + 1))[0][0])
        others = int(self._cluster.exclusive.beyond_requests[row]) - max(held - request, 0)
        return found if needed <= max(held, request, free + request - others) else None  # all in millicores

    def _report(self, obj: Object, pod: PodView, workload: Workload, cpus: str) -> None:
        note = (
            f"Keeps CPUs {cpus}: node {pod.node_name} has no CPUs for {workload.threads} {workload.kind} threads that "
            "no other pod holds or requests"
        )
        self._recorder.record(
            build_event_subject(PODS, pod.name, namespace=pod.namespace, uid=pod.uid),
            type="Warning",
            reason="CPUsNotResized",
            action="Resizing",
            note=note,
            related=obj,
        )

    async def _write(self, key: BindingKey, obj: Object, pod: PodView, placement: Placement) -> float | None:
        metadata = {
            "resourceVersion": obj["metadata"]["resourceVersion"],
            "annotations": {SIZE_ANNOTATION: size_of(pod)},
        }
        spec = {
            "cpuSet": [{"cpuID": cpu} for cpu in bits(placement.cpus)],
            "containers": list(containers_of(pod)) or None,
        }
        known = obj["metadata"].get("generation", 0)
        # Where this takes long, other namespaces have turns: none of them is to find the same CPUs free meanwhile
        self._unvalidated[pod.node_name] = (key, known + 1)
        try:
            await wait_unless_leading(self._may_write)
            written = await self._session.patch(POD_CPU_BINDINGS.path(*key), {"metadata": metadata, "spec": spec})
        except NotFound:
            return None
        except Conflict:
            return _AGAIN_SECONDS  # its status was written meanwhile
        finally:
            self._unvalidated.pop(pod.node_name, None)
        cpus = format_cpu_list(bits(placement.cpus))
        logger.info("PodCPUBinding %s/%s: CPUs %s for a pod that was resized", *key, cpus)
        if written["metadata"]["generation"] != obj["metadata"].get("generation"):
            self._unvalidated[pod.node_name] = (key, written["metadata"]["generation"])
        return None


def _resources(pod: Object | None) -> object:
    """The fields that change with a resize, and when kubelet has completed it."""
    if pod is None:
        return None
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    names = ("containerStatuses", "initContainerStatuses", "resources", "allocatedResources")
    try:
        return (
            [each.get("resources") for kind in ("containers", "initContainers") for each in spec.get(kind) or ()],
            spec.get("resources"),
            [status.get(name) for name in names],
        )
    except (AttributeError, TypeError):  # the pod can't be read
        return None
