"""PodCPUBindings: validates each against its pod, the node's topology and the node's other bindings.

The node's agent applies a valid binding; the conditions that it writes into the status show how far it got.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from concerto.api.conditions import find_condition
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod_ownership import MIRROR
from concerto.api.pod_shape import shape_of
from concerto.api.podcpubinding import FOREIGN_FINALIZERS, BindingKey
from concerto.controllers.pinning.binding_index import BindingIndex
from concerto.controllers.pinning.fit_events import FitEvents
from concerto.controllers.pinning.status import (
    NOT_ANSWERED,
    binding_event,
    build_binding_status,
    is_stale,
    own_part,
    read_answer,
)
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.kube import Conflict, Invalid, KubeError, NotFound, Object, Session
from concerto.kube.apply import Target, build_status
from concerto.kube.events import EventRecorder
from concerto.kube.references import build_event_subject
from concerto.kube.reflector import key_of
from concerto.kube.resources import POD_CPU_BINDINGS, PODS
from concerto.kube.status_writes import raise_if_changed
from concerto.pinning.validation import BoundPod, Verdict, judge_node, judge_unplaced

logger = logging.getLogger(__name__)

FIELD_MANAGER = "concerto-operator"

AGENT_FIELD_MANAGER = "concerto-agent"

_FEW_BINDINGS = 64
"""A node with no more bindings is judged at each change."""
_WRITE_SECONDS = 4.0
"""For the removal of a finalizer, which a webhook may keep."""
_JUDGING_PAUSE = 20.0
"""Pause between two judgements of a node with more bindings, times the time that the last one took."""


class PodCPUBindingController:
    """Writes the verdict on each binding into its status, and keeps it up to date.

    Attributes:
        mark: called with namespace and name of a binding that has to be reconciled.
        back_off: called with those of one whose status could not be written, and why; it is tried again after a wait.
        assigned: by namespace and name of a pod, the pod and the node that it is about to be bound to, or None. The
            scheduler answers from its placement records, and marks the binding when the answer changes.
    """

    def __init__(
        self,
        session: Session,
        recorder: EventRecorder,
        pods: Mapping[tuple[str, str], Object],
        topologies: Mapping[tuple[str, str], Object],
        *,
        patience_seconds: float = 20.0,
    ) -> None:
        """Writes statuses and events from `reconcile` only.

        Args:
            session: connection to the API server.
            recorder: for events.
            pods: all pods that have not ended, by namespace and name; the caller keeps it up to date.
            topologies: all NodeCPUTopologies, likewise.
            patience_seconds: time after which a valid binding without an answer of its agent is reported.
        """
        self.mark: Callable[[str | None, str], None] = lambda namespace, name: None
        self.back_off: Callable[[str | None, str, KubeError], None] = lambda namespace, name, error: None
        self.assigned: Callable[[tuple[str, str]], BoundPod | None] = lambda pod: None
        self._session = session
        self._recorder = recorder
        self._pods = pods
        self._topologies = topologies
        self._index = BindingIndex(self._pod_of)
        self._fit_events = FitEvents(recorder)
        self._judged_on: dict[BindingKey, str] = {}  # the node that it was last judged on
        # Verdicts on nodes that are in the statuses, or are written in turns of their own, which were asked for
        self._written: dict[BindingKey, Verdict] = {}
        self._verdicts: dict[str, dict[BindingKey, Verdict]] = {}  # by node
        self._judge_again_at: dict[str, float] = {}  # by node
        self._asked: dict[BindingKey, tuple[int, str, float]] = {}  # generation, pod's UID, when first seen unanswered
        self._patience_seconds = patience_seconds

    def load(self, objects: Iterable[Object]) -> None:
        """Take all bindings before any is judged, so that a younger one does not win because the older is unknown."""
        for obj in objects:
            key = key_of(obj)
            try:
                self._index.put(key, obj)
            except Exception:  # it holds no CPUs; its reconciles report it again and again
                logger.exception("PodCPUBinding %s/%s is not usable", *key)

    def on_pod(self, old: Object | None, new: Object | None) -> None:
        """A pod appeared, changed or went."""
        keys = list(self._index.of_pod(key_of(new or old or {})))
        if keys and _bound(old) != _bound(new):
            for key in keys:
                self._index.locate(key)
                self.mark(*key)

    def on_topology(self, old: Object | None, new: Object | None) -> None:
        """A NodeCPUTopology appeared, changed or went."""
        name = (new or old or {})["metadata"]["name"]
        self._index.mark_outdated(name)
        for view, _ in self._index.of_node(name):
            self.mark(*view.key)

    async def reconcile(self, key: BindingKey, obj: Object | None) -> float | None:
        """Judge a binding, and with it the others on its node if anything has changed there.

        Returns:
            Seconds after which to reconcile it again: its agent may have to answer by then, or its node has so many
            bindings that it is judged again later, once for all that change until then.
        """
        if obj is None or "deletionTimestamp" not in obj["metadata"]:
            return await self._judge_with_others(key, obj)
        # Whatever keeps the object, it holds nothing any more: others do not wait until its finalizer is removed
        again = await self._judge_with_others(key, None)
        await self._remove_finalizer(key, obj)
        return again

    async def _judge_with_others(self, key: BindingKey, obj: Object | None) -> float | None:
        self._index.put(key, obj)
        self._fit_events.seen(key, obj)
        pod = self._index.pod(key)
        problem: KubeError | None = None
        again: float | None = None
        # The node that it was on comes first: until that has been judged, a retry must find it
        nodes = (self._judged_on.get(key, ""), "" if pod is None else pod.node)
        for node in dict.fromkeys(node for node in nodes if node):
            wait = self._judge_again_at.get(node, 0.0) - time.monotonic()
            if wait > 0 and self._index.is_outdated(node):
                again = wait
                break
            problem = await self._write_verdicts(node, key) or problem
        # Last: one that has left its node gives up its CPUs to others, whatever becomes of its own status
        view, pod = self._index.view(key), self._index.pod(key)
        if view is None:
            self._asked.pop(key, None)
        elif pod is None or not pod.node:
            await self._write(key, judge_unplaced(view, pod))
        if again is not None:
            return again
        if problem is not None:
            raise problem
        asked = self._asked.get(key)
        if asked is None or self._has_reported(key):
            return None
        return max(self._patience_seconds - (time.monotonic() - asked[2]), 0.1)

    async def _write_verdicts(self, node: str, key: BindingKey) -> KubeError | None:
        """Write the verdict on ``key`` and those that have changed; returns why that on ``key`` was not written.

        Statuses of other namespaces are written in turns of their own, which go on beside a write that hangs.
        """
        problem = None
        verdicts = self._judge(node)
        changed = [each for each, verdict in verdicts.items() if self._written.get(each) != verdict and each != key]
        changed.sort(key=lambda each: each[0] == key[0])  # those of other namespaces come first: they don't take long
        for each in [*changed, *([key] if key in verdicts else [])]:
            self._judged_on[each] = node
            verdict = self._newest(node, each, verdicts)
            if each[0] != key[0]:
                if self._is_to_change(each, verdict):
                    self.mark(*each)
                self._written[each] = verdict
                continue
            try:
                await self._write(each, verdict)
            except KubeError as error:
                # A binding that cannot be written must not keep the others on the node from their verdicts
                if each == key:
                    problem = error
                else:
                    self.back_off(*each, error)
            self._written[each] = verdict
            if self._newest(node, each, verdicts) != verdict:
                self.mark(*each)
        if key not in verdicts and self._judged_on.get(key) == node:
            del self._judged_on[key]
            self._written.pop(key, None)
        return problem

    def _newest(self, node: str, key: BindingKey, verdicts: Mapping[BindingKey, Verdict]) -> Verdict:
        """The verdict; in a turn of another namespace, the node may have been judged again since these were found."""
        return self._verdicts.get(node, verdicts).get(key, verdicts[key])

    def _judge(self, node: str) -> Mapping[BindingKey, Verdict]:
        """Verdicts on the node's bindings, computed again only if something has changed."""
        if self._index.is_outdated(node) or node not in self._verdicts:
            began = time.monotonic()
            bindings = self._index.of_node(node)
            verdicts = judge_node(node, self._topology_of(node), bindings)
            self._index.mark_judged(node)
            self._verdicts[node] = verdicts
            if len(bindings) > _FEW_BINDINGS:
                now = time.monotonic()
                self._judge_again_at[node] = now + _JUDGING_PAUSE * (now - began)
            else:
                self._judge_again_at.pop(node, None)
            if not verdicts:
                del self._verdicts[node]
            return verdicts
        return self._verdicts[node]

    def _topology_of(self, node: str) -> NodeCPUTopology | None:
        raw = self._topologies.get(("", node))
        try:
            return None if raw is None else NodeCPUTopology.from_raw(raw)
        except Exception as error:  # as without one, the node's bindings hold nothing, and their statuses show it
            logger.warning("NodeCPUTopology %s is not usable: %s: %s", node, type(error).__name__, error)
            return None

    def _pod_of(self, key: tuple[str, str]) -> BoundPod | None:
        pod = _bound(self._pods.get(key))
        if pod is not None and not pod.node:
            assigned = self.assigned(key)
            if assigned is not None and assigned.uid == pod.uid:
                return replace(pod, node=assigned.node)
        return pod

    def _patient(self, key: BindingKey, obj: Object, verdict: Verdict) -> bool:
        """Whether the agent still has time to answer; each generation and each pod begins anew."""
        if verdict.status != "Validated" or read_answer(obj, verdict) is not None:
            self._asked.pop(key, None)
            return True
        subject = (obj["metadata"].get("generation", 0), verdict.pod_uid)
        asked = self._asked.get(key)
        if asked is None or asked[:2] != subject:
            asked = self._asked[key] = (*subject, time.monotonic())
        if self._has_reported(key):
            return False  # this process or the one before has reported it: a restart does not take it back
        return time.monotonic() - asked[2] < self._patience_seconds

    def _has_reported(self, key: BindingKey) -> bool:
        """Whether the status reports that the agent does not answer for this generation and pod."""
        obj = self._index.objects.get(key) or {}
        status = obj.get("status") or {}
        ready = find_condition(status.get("conditions"), "Ready") or {}
        reported = (status.get("observedGeneration"), status.get("podUID"))
        return ready.get("reason") == NOT_ANSWERED and reported == self._asked[key][:2]

    async def _remove_finalizer(self, key: BindingKey, obj: Object) -> None:
        """Remove the finalizer of Maestro's manifests, whose controller does not run here. Other finalizers stay."""
        finalizers = obj["metadata"].get("finalizers") or []
        remaining = [name for name in finalizers if name not in FOREIGN_FINALIZERS]
        if remaining == finalizers:
            return
        metadata = {"finalizers": remaining or None, "resourceVersion": obj["metadata"]["resourceVersion"]}
        path, patch = POD_CPU_BINDINGS.path(*key), {"metadata": metadata}
        try:
            await self._session.patch(path, patch, timeout_seconds=_WRITE_SECONDS, attempts=1)
        except NotFound:
            return
        logger.info("PodCPUBinding %s/%s: removed the finalizer of its manifest", *key)

    def _status(self, key: BindingKey, obj: Object, verdict: Verdict) -> Object:
        """The operator's part of the status that shows the verdict."""
        return build_binding_status(obj, verdict, wall_timestamp(), patient=self._patient(key, obj, verdict))

    def _is_to_change(self, key: BindingKey, verdict: Verdict) -> bool:
        """Whether the status, as it was seen last, does not show the verdict."""
        obj = self._index.objects.get(key)
        if obj is None:
            return False
        return is_stale(obj, verdict) or self._status(key, obj, verdict) != own_part(obj.get("status") or {})

    async def _write(self, key: BindingKey, verdict: Verdict) -> None:
        obj = self._index.objects.get(key)
        if obj is None:
            return  # it has gone since it was judged
        before, judged = obj.get("status") or {}, obj
        status = self._status(key, obj, verdict)
        try:
            if is_to_change := status != own_part(before):
                obj = await self._apply(key, obj, status, FIELD_MANAGER)
                if (event := binding_event(before, status)) is not None:
                    self._recorder.record(
                        obj, type=event.type, reason=event.reason, action="Validating", note=event.note
                    )
                    if event.reason == "Applied":
                        self._record_pinned(key, obj, verdict)
            if is_stale(obj, verdict):
                await self._remove_answer(key, obj)
            if is_to_change:
                raise_if_changed(judged, obj, status, own_part(obj.get("status") or {}))
        except NotFound:
            return  # its watch event will come
        except (Invalid, Conflict):
            if await self._is_replaced(key, obj["metadata"]["uid"]):
                return
            raise

    def _record_pinned(self, key: BindingKey, obj: Object, verdict: Verdict) -> None:
        """Record an event on the pod, for those who know the pod and not the binding."""
        self._recorder.record(
            build_event_subject(PODS, obj["spec"]["podName"], namespace=key[0], uid=verdict.pod_uid),
            reason="Pinned",
            action="Pinning",
            note=f"Runs on CPUs {verdict.cpus}, memory nodes {verdict.mems}, by PodCPUBinding {key[1]}",
            related=obj,
        )

    async def _apply(self, key: BindingKey, obj: Object, status: Object, field_manager: str) -> Object:
        document = build_status(Target(POD_CPU_BINDINGS, key[1], key[0], obj["metadata"]["uid"]), status)
        if field_manager != FIELD_MANAGER:
            document["metadata"]["resourceVersion"] = obj["metadata"]["resourceVersion"]
        path = POD_CPU_BINDINGS.path(*key, "status")
        written = await self._session.apply(path, document, field_manager=field_manager, force=True)
        if self._index.objects.get(key) is obj:
            self._index.objects[key] = written
        return written

    async def _remove_answer(self, key: BindingKey, obj: Object) -> None:
        """Remove an agent's answer about another pod: the agent itself may only write bindings of its own node.

        Raises:
            Conflict: an agent has answered since.
        """
        await self._apply(key, obj, {}, AGENT_FIELD_MANAGER)

    async def _is_replaced(self, key: BindingKey, uid: str) -> bool:
        """Whether the object is no longer the one that was judged; its watch event will come."""
        try:
            found = await self._session.get(POD_CPU_BINDINGS.path(*key))
        except NotFound:
            return True
        return bool(found["metadata"]["uid"] != uid)


def _bound(pod: Object | None) -> BoundPod | None:
    if pod is None:
        return None
    static = MIRROR in (pod["metadata"].get("annotations") or ())
    shape = shape_of(pod["spec"])
    memory = shape.limits.get("memory") or shape.requests.get("memory", 0)
    spec = pod["spec"]
    names = frozenset(
        c["name"] for kind in ("containers", "initContainers") for c in spec.get(kind) or () if "name" in c
    )
    hugepages = {name: size for name, size in shape.requests.items() if name.startswith("hugepages-")}
    return BoundPod(pod["metadata"]["uid"], spec.get("nodeName") or "", static, memory, names or None, hugepages)
