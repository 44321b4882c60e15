"""PodCPUBindings: validates each against its pod, the node's topology and the node's other bindings.

Nothing is pinned by this: applying a valid binding is the agent's part, and a status says so as long as none does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from concerto.api.conditions import Condition, merge_conditions
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.podcpubinding import FOREIGN_FINALIZERS, BindingKey, PodCPUBinding
from concerto.controllers.clock import wall_timestamp
from concerto.kube import Conflict, Invalid, NotFound, Object, Session, apply_status
from concerto.kube.events import EventRecorder
from concerto.kube.resources import POD_CPU_BINDINGS
from concerto.pinning.validation import BoundPod, Verdict, judge_node, judge_unplaced

logger = logging.getLogger(__name__)

FIELD_MANAGER = "concerto-operator"

_OWN_CONDITIONS = frozenset({"Ready", "Validated", "Applied", "Reconciling", "Stalled"})
_OWN_FIELDS = (
    "observedGeneration", "nodeName", "podUID", "resourceStatus", "cpus", "mems", "conflictsWith",
)  # fmt: skip
_FINAL = frozenset({"InvalidCPUSet", "Failed"})
"""Statuses that only an edit changes; the others change with the pod, the node or another binding."""


class PodCPUBindingController:
    """Keeps the verdicts on all bindings equal to what the objects say."""

    def __init__(
        self,
        session: Session,
        recorder: EventRecorder,
        pods: Mapping[tuple[str, str], Object],
        topologies: Mapping[tuple[str, str], Object],
    ) -> None:
        """It writes statuses and events.

        Args:
            session: the way to the API server.
            recorder: for events.
            pods: all pods that have not ended, by namespace and name; kept up to date by somebody else.
            topologies: all NodeCPUTopologies, likewise.
        """
        self._session = session
        self._recorder = recorder
        self._pods = pods
        self._topologies = topologies
        self._objects: dict[BindingKey, Object] = {}
        self._views: dict[BindingKey, PodCPUBinding] = {}
        self._of_pod: dict[tuple[str, str], set[BindingKey]] = {}
        self._judged_on: dict[BindingKey, str] = {}  # the node whose other bindings it has a say in
        self.mark: Callable[[str | None, str], None] = lambda namespace, name: None

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
                self.mark(*key)

    def on_topology(self, old: Object | None, new: Object | None) -> None:
        """A NodeCPUTopology appeared, changed or went."""
        name = (new or old or {})["metadata"]["name"]
        for key, node in self._judged_on.items():
            if node == name:
                self.mark(*key)

    async def reconcile(self, key: BindingKey, obj: Object | None) -> None:
        """Judge a binding, and with it all others on its node."""
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
        for node in nodes:
            verdicts = self._judge(node)
            for each, verdict in verdicts.items():
                self._judged_on[each] = node
                await self._write(each, verdict)
            if key not in verdicts:
                self._judged_on.pop(key, None)

    def _judge(self, node: str) -> dict[BindingKey, Verdict]:
        there = []
        for view in self._views.values():
            pod = self._pod_of(view)
            if pod is not None and pod.node == node:
                there.append((view, pod))
        raw = self._topologies.get(("", node))
        return judge_node(node, None if raw is None else NodeCPUTopology.from_raw(raw), there)

    def _pod_of(self, view: PodCPUBinding) -> BoundPod | None:
        return _bound(self._pods.get(view.pod_key))

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
        status = build_binding_status(obj, verdict, wall_timestamp())
        if status == _own_part(before):
            return
        try:
            written = await apply_status(
                self._session,
                POD_CPU_BINDINGS,
                key[1],
                status,
                field_manager=FIELD_MANAGER,
                namespace=key[0],
                uid=obj["metadata"]["uid"],
                force=True,
            )
        except NotFound:
            return  # that is on its way to us
        except (Invalid, Conflict):
            if await self._is_anew(key, obj["metadata"]["uid"]):
                return
            raise
        if self._objects.get(key) is obj:
            self._objects[key] = written
        if verdict.status != "Pending" and _told(before) != _told(status):
            self._recorder.record(
                obj,
                type="Normal" if verdict.status == "Validated" else "Warning",
                reason=verdict.status,
                action="Validating",
                note=verdict.message,
            )

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
    return BoundPod(pod["metadata"]["uid"], pod["spec"].get("nodeName") or "")


def _own_part(status: Mapping[str, Any]) -> Object:
    """What of a status this controller has said."""
    own = {name: status[name] for name in _OWN_FIELDS if name in status}
    return own | {"conditions": [c for c in status.get("conditions") or () if c["type"] in _OWN_CONDITIONS]}


def _told(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an event is worth: the verdict, and whom it is about."""
    validated = next((c for c in status.get("conditions") or () if c["type"] == "Validated"), {})
    return status.get("resourceStatus"), status.get("podUID"), validated.get("message")


def build_binding_status(obj: Object, verdict: Verdict, now: str) -> Object:
    """The operator's part of a PodCPUBinding's status; the agent's is its own.

    Args:
        obj: the object as it is, for its generation and conditions.
        verdict: how it stands.
        now: RFC 3339 time of this look.
    """
    generation = obj["metadata"].get("generation", 0)
    valid = verdict.status == "Validated"
    final = verdict.status in _FINAL
    conditions = [
        Condition("Validated", "True" if valid else "False", verdict.reason, verdict.message),
    ]
    if valid:
        text = "The CPUs are held against other bindings, but the agent does not write cpusets: the pod is not pinned."
        conditions += [
            Condition("Ready", "False", "NotApplied", text),
            Condition("Applied", "Unknown", "AgentNotSupported", text),
            Condition("Reconciling", "False", "NotApplied", "Validation is all that is done."),
            Condition("Stalled", "True", "AgentNotSupported", text),
        ]
    else:
        waiting = "Waiting for an edit." if final else "Looked at again with each change of pod, node or bindings."
        conditions += [
            Condition("Ready", "False", verdict.reason, verdict.message),
            Condition("Reconciling", "False" if final else "True", verdict.reason, waiting),
            Condition("Stalled", "True" if final else "False", verdict.reason, waiting),
        ]
    status: Object = {"observedGeneration": generation, "resourceStatus": verdict.status}
    for name, value in (
        ("nodeName", verdict.node), ("podUID", verdict.pod_uid), ("cpus", verdict.cpus), ("mems", verdict.mems),
    ):  # fmt: skip
        if value:
            status[name] = value
    if verdict.loses_to is not None:
        status["conflictsWith"] = dict(zip(("namespace", "name"), verdict.loses_to, strict=True))
    mine = [c for c in (obj.get("status") or {}).get("conditions") or () if c["type"] in {c.type for c in conditions}]
    status["conditions"] = merge_conditions(mine, conditions, now=now, observed_generation=generation)
    return status
