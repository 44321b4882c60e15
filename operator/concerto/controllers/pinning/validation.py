"""PodCPUBindings: validates each against its pod, the node's topology and the node's other bindings.

Applying a valid one is the part of the node's agent; how far that got follows from what the agent says in the status.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from concerto.api.conditions import find_condition
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod import MIRROR
from concerto.api.podcpubinding import FOREIGN_FINALIZERS, BindingKey, PodCPUBinding
from concerto.controllers.pinning.status import (
    NOT_ANSWERED,
    build_binding_status,
    is_stale,
    news,
    own_part,
    read_answer,
)
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.kube import Conflict, Invalid, KubeError, NotFound, Object, Session
from concerto.kube.apply import build_status
from concerto.kube.events import EventRecorder
from concerto.kube.resources import POD_CPU_BINDINGS
from concerto.pinning.validation import BoundPod, Verdict, judge_node, judge_unplaced

logger = logging.getLogger(__name__)

FIELD_MANAGER = "concerto-operator"

AGENT_FIELD_MANAGER = "concerto-agent"


class PodCPUBindingController:
    """Keeps the verdicts on all bindings equal to what the objects say."""

    def __init__(
        self,
        session: Session,
        recorder: EventRecorder,
        pods: Mapping[tuple[str, str], Object],
        topologies: Mapping[tuple[str, str], Object],
        *,
        patience_seconds: float = 20.0,
    ) -> None:
        """It writes statuses and events.

        Args:
            session: the way to the API server.
            recorder: for events.
            pods: all pods that have not ended, by namespace and name; kept up to date by somebody else.
            topologies: all NodeCPUTopologies, likewise.
            patience_seconds: how long an agent may leave a valid binding unanswered before it is said not to pin.
        """
        self._session = session
        self._recorder = recorder
        self._pods = pods
        self._topologies = topologies
        self._objects: dict[BindingKey, Object] = {}
        self._views: dict[BindingKey, PodCPUBinding] = {}
        self._of_pod: dict[tuple[str, str], set[BindingKey]] = {}
        self._node_of: dict[BindingKey, str] = {}  # where its pod was when that last changed
        self._on_node: dict[str, set[BindingKey]] = {}  # the other way round
        self._judged_on: dict[BindingKey, str] = {}  # the node whose other bindings it has a say in
        self._asked: dict[BindingKey, tuple[int, str, float]] = {}  # generation, pod's UID, when first seen unanswered
        self._patience_seconds = patience_seconds
        self.mark: Callable[[str | None, str], None] = lambda namespace, name: None
        self.assigned: Callable[[tuple[str, str]], BoundPod | None] = lambda pod: None
        """A pod, by namespace and name, and the node that it is about to be bound to; None if there is none. For the
        scheduler to answer, from its durable assignments; it marks the binding when the answer changes."""

    async def load(self) -> None:
        """Make every binding known before any is judged: a younger one must not win for want of the older."""
        listed = await self._session.list(POD_CPU_BINDINGS.path())
        for obj in listed["items"]:
            self._put((obj["metadata"]["namespace"], obj["metadata"]["name"]), obj)

    def on_pod(self, old: Object | None, new: Object | None) -> None:
        """A pod appeared, changed or went."""
        metadata = (new or old or {})["metadata"]
        keys = self._of_pod.get((metadata["namespace"], metadata["name"]))
        if keys and _bound(old) != _bound(new):
            for key in keys:
                self._locate(key)
                self.mark(*key)

    def on_topology(self, old: Object | None, new: Object | None) -> None:
        """A NodeCPUTopology appeared, changed or went."""
        name = (new or old or {})["metadata"]["name"]
        for key, node in self._judged_on.items():
            if node == name:
                self.mark(*key)

    async def reconcile(self, key: BindingKey, obj: Object | None) -> float | None:
        """Judge a binding, and with it all others on its node; returns when to look whether its agent has answered."""
        before = self._judged_on.get(key, "")
        if obj is not None and "deletionTimestamp" in obj["metadata"]:
            await self._let_go(key, obj)
            obj = None  # whatever else keeps the object: it holds nothing any more
        self._put(key, obj)
        # The node it was on comes first: until that has been judged, a retry must find it
        nodes = [before] if before else []
        if (view := self._views.get(key)) is not None:
            pod = self._pod_of(view)
            if pod is None or not pod.node:
                await self._write(key, judge_unplaced(view, pod))
            elif pod.node != before:
                nodes.append(pod.node)
        problem: KubeError | None = None
        for node in nodes:
            verdicts = self._judge(node)
            for each, verdict in verdicts.items():
                self._judged_on[each] = node
                try:
                    await self._write(each, verdict)
                except KubeError as error:
                    # What can't be written of one must not keep the others on the node from theirs
                    if each == key:
                        problem = error
                    else:
                        self.mark(*each)
            if key not in verdicts:
                self._judged_on.pop(key, None)
        if problem is not None:
            raise problem
        if key not in self._views:
            self._asked.pop(key, None)
        asked = self._asked.get(key)
        if asked is None or self._told_of_silence(key):
            return None
        return max(self._patience_seconds - (time.monotonic() - asked[2]), 0.1)

    def _judge(self, node: str) -> dict[BindingKey, Verdict]:
        there = []
        for key in self._on_node.get(node, ()):
            view = self._views[key]
            pod = self._pod_of(view)
            if pod is not None and pod.node == node:
                there.append((view, pod))
        raw = self._topologies.get(("", node))
        return judge_node(node, None if raw is None else NodeCPUTopology.from_raw(raw), there)

    def _pod_of(self, view: PodCPUBinding) -> BoundPod | None:
        pod = _bound(self._pods.get(view.pod_key))
        if pod is not None and not pod.node:
            assigned = self.assigned(view.pod_key)
            if assigned is not None and assigned.uid == pod.uid:
                return assigned
        return pod

    def _patient(self, key: BindingKey, obj: Object, verdict: Verdict) -> bool:
        """Whether the agent may be expected to answer yet; each generation and each pod is a question of its own."""
        if verdict.status != "Validated" or read_answer(obj, verdict) is not None:
            self._asked.pop(key, None)
            return True
        question = (obj["metadata"].get("generation", 0), verdict.pod_uid)
        asked = self._asked.get(key)
        if asked is None or asked[:2] != question:
            asked = self._asked[key] = (*question, time.monotonic())
        if self._told_of_silence(key):
            return False  # said by this process or the one before: it is not unsaid by a restart
        return time.monotonic() - asked[2] < self._patience_seconds

    def _told_of_silence(self, key: BindingKey) -> bool:
        """Whether the status says that the agent does not answer the question that is asked now."""
        obj = self._objects.get(key) or {}
        status = obj.get("status") or {}
        ready = find_condition(status.get("conditions"), "Ready") or {}
        told = (status.get("observedGeneration"), status.get("podUID"))
        return ready.get("reason") == NOT_ANSWERED and told == self._asked[key][:2]

    def _put(self, key: BindingKey, obj: Object | None) -> None:
        if (old := self._views.pop(key, None)) is not None:
            self._of_pod[old.pod_key].discard(key)
            if not self._of_pod[old.pod_key]:
                del self._of_pod[old.pod_key]
            del self._objects[key]
        if obj is not None and "deletionTimestamp" not in obj["metadata"]:
            view = self._views[key] = PodCPUBinding.from_raw(obj)
            self._objects[key] = obj
            self._of_pod.setdefault(view.pod_key, set()).add(key)
        self._locate(key)

    def _locate(self, key: BindingKey) -> None:
        view = self._views.get(key)
        pod = None if view is None else self._pod_of(view)
        before, now = self._node_of.pop(key, ""), "" if pod is None else pod.node
        if before:
            self._on_node[before].discard(key)
            if not self._on_node[before]:
                del self._on_node[before]
        if now:
            self._node_of[key] = now
            self._on_node.setdefault(now, set()).add(key)

    async def _let_go(self, key: BindingKey, obj: Object) -> None:
        """Remove 004's finalizer, whose controller is not there; everybody else's stay."""
        finalizers = obj["metadata"].get("finalizers") or []
        kept = [name for name in finalizers if name not in FOREIGN_FINALIZERS]
        if kept == finalizers:
            return
        metadata = {"finalizers": kept or None, "resourceVersion": obj["metadata"]["resourceVersion"]}
        try:
            await self._session.patch(POD_CPU_BINDINGS.path(*key), {"metadata": metadata})
        except NotFound:
            return
        logger.info("PodCPUBinding %s/%s: removed the finalizer of its manifest", *key)

    async def _write(self, key: BindingKey, verdict: Verdict) -> None:
        obj = self._objects[key]
        before = obj.get("status") or {}
        status = build_binding_status(obj, verdict, wall_timestamp(), patient=self._patient(key, obj, verdict))
        try:
            if status != own_part(before):
                obj = await self._apply(key, obj, status, FIELD_MANAGER)
                if (told := news(before, status)) is not None:
                    self._recorder.record(obj, type=told.type, reason=told.reason, action="Validating", note=told.note)
                    if told.reason == "Applied":
                        self._tell_pod(key, obj, verdict)
            if is_stale(obj, verdict):
                await self._withdraw(key, obj)
        except NotFound:
            return  # that is on its way to us
        except (Invalid, Conflict):
            if await self._is_anew(key, obj["metadata"]["uid"]):
                return
            raise

    def _tell_pod(self, key: BindingKey, obj: Object, verdict: Verdict) -> None:
        """Say it where people look who know the pod and not the binding."""
        metadata = {"namespace": key[0], "name": obj["spec"]["podName"], "uid": verdict.pod_uid}
        self._recorder.record(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata},
            reason="Pinned",
            action="Pinning",
            note=f"Runs on CPUs {verdict.cpus}, memory nodes {verdict.mems}, by PodCPUBinding {key[1]}",
            related=obj,
        )

    async def _apply(self, key: BindingKey, obj: Object, status: Object, field_manager: str) -> Object:
        document = build_status(POD_CPU_BINDINGS, key[1], status, namespace=key[0], uid=obj["metadata"]["uid"])
        if field_manager != FIELD_MANAGER:
            document["metadata"]["resourceVersion"] = obj["metadata"]["resourceVersion"]
        path = POD_CPU_BINDINGS.path(*key, "status")
        written = await self._session.apply(path, document, field_manager=field_manager, force=True)
        if self._objects.get(key) is obj:
            self._objects[key] = written
        return written

    async def _withdraw(self, key: BindingKey, obj: Object) -> None:
        """Take back what an agent said of another pod: it may write no binding that is not of its node any more."""
        try:
            await self._apply(key, obj, {}, AGENT_FIELD_MANAGER)
        except Conflict:
            self.mark(*key)  # an agent has answered meanwhile: look again

    async def _is_anew(self, key: BindingKey, uid: str) -> bool:
        """Whether an object is no longer the one that was judged; the new one is on its way to us."""
        try:
            found = await self._session.get(POD_CPU_BINDINGS.path(*key))
        except NotFound:
            return True
        return bool(found["metadata"]["uid"] != uid)


def _bound(pod: Object | None) -> BoundPod | None:
    if pod is None:
        return None
    static = MIRROR in (pod["metadata"].get("annotations") or ())
    return BoundPod(pod["metadata"]["uid"], pod["spec"].get("nodeName") or "", static)
