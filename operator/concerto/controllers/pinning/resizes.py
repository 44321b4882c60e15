"""After kubelet has resized a pod in place, its PodCPUBinding gets as many CPUs as the pod requests now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.api.pod import PodView
from concerto.api.pod_requests import is_being_resized
from concerto.api.podcpubinding import BindingKey
from concerto.controllers.pinning.binding_objects import SIZE_ANNOTATION, containers_of, owner_of, size_of
from concerto.kube import ApiError, Conflict, NotFound, Object, ServerError, Session
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
_WRITE_SECONDS = 4.0
"""For one write: it is tried again later, and not at once, where a webhook keeps it."""


@dataclass(frozen=True)
class _Room:
    """CPUs for a pod.

    Attributes:
        placement: the CPUs.
        beyond: how many millicores more than before they are beyond the pod's request.
    """

    placement: Placement
    beyond: int


@dataclass(frozen=True)
class _Written:
    """A binding that is being written or was written, and whose status does not show that yet.

    Attributes:
        node: of its pod.
        generation: that it has then.
        cpus: that it gets, as bits.
        beyond: how many millicores more than before it holds beyond its pod's request.
        is_known: whether the write is known to have been carried out.
    """

    node: str
    generation: int
    cpus: int
    beyond: int
    is_known: bool = False


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
        self._unvalidated: dict[BindingKey, _Written] = {}

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
        before = self._unvalidated.get(key)
        if before is not None and (obj is None or not before.is_known or observed >= before.generation):
            del self._unvalidated[key]
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
        if key in self._unvalidated:
            return _AGAIN_SECONDS
        room = self._place(key, pod, workload, status)
        if room is None and self._others_of(node, key):
            return _AGAIN_SECONDS  # they may be about to give CPUs up
        if room is None:
            self._report(obj, pod, workload, status["cpus"])
            return _NO_ROOM_SECONDS
        return await self._write(key, obj, pod, room)

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

    def _others_of(self, node: str, key: BindingKey) -> dict[BindingKey, _Written]:
        """Other bindings of the node that were written and are not validated yet."""
        return {each: made for each, made in self._unvalidated.items() if made.node == node and each != key}

    def _place(self, key: BindingKey, pod: PodView, workload: Workload, status: Mapping[str, Any]) -> _Room | None:
        """CPUs for the pod that no other pod holds, requests or is about to get; None if its node has too few."""
        node = status["nodeName"]
        unvalidated = self._others_of(node, key)
        more = {each: made.cpus for each, made in unvalidated.items()}
        occupancy = self._cluster.cpus.occupancy_without(node, key, more)
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
        others += sum(made.beyond for made in unvalidated.values())
        if needed > max(held, request, free + request - others):  # all in millicores
            return None
        return _Room(found, max(max(needed, request) - max(held, request), 0))

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

    async def _write(self, key: BindingKey, obj: Object, pod: PodView, room: _Room) -> float | None:
        cpus, generation = room.placement.cpus, obj["metadata"].get("generation", 0)
        metadata = {
            "resourceVersion": obj["metadata"]["resourceVersion"],
            "annotations": {SIZE_ANNOTATION: size_of(pod)},
        }
        spec = {"cpuSet": [{"cpuID": cpu} for cpu in bits(cpus)], "containers": list(containers_of(pod)) or None}
        path, patch = POD_CPU_BINDINGS.path(*key), {"metadata": metadata, "spec": spec}
        # Where this takes long, others of the node have turns: none of them is to find the same CPUs free
        made = self._unvalidated[key] = _Written(pod.node_name, generation + 1, cpus, room.beyond)
        try:
            await wait_unless_leading(self._may_write)
            written = await self._session.patch(path, patch, timeout_seconds=_WRITE_SECONDS, attempts=1)
        except ApiError as error:
            if not isinstance(error, ServerError):  # else it may have been carried out
                self._unvalidated.pop(key, None)
            if isinstance(error, NotFound):
                return None
            if isinstance(error, Conflict):
                return _AGAIN_SECONDS  # its status was written meanwhile
            raise
        logger.info("PodCPUBinding %s/%s: CPUs %s for a pod that was resized", *key, format_cpu_list(bits(cpus)))
        if written["metadata"]["generation"] == generation:
            self._unvalidated.pop(key, None)
        else:
            self._unvalidated[key] = replace(made, generation=written["metadata"]["generation"], is_known=True)
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
