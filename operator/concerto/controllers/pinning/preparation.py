"""PodCPUBindings that the operator makes for the pods it places: each is there before its pod is bound.

The durable assignment (a batch's PodReservation) comes first, then the binding, then the word of the node's agent that
it is ready for the pod's CPUs (condition Prepared), then the pod is bound. A process that dies in between leaves a
binding whose pod is on no node; nobody binds from it: whoever leads next deletes it and decides afresh. A binding
carries the name of its batch, so that one of an attempt before this one is never taken for this one's.

While a pod is on its way here, `assigned` tells the validation of bindings where it is to go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.conditions import find_condition
from concerto.api.cpulist import parse_cpu_list
from concerto.api.pod import PodView
from concerto.api.podcpubinding import BindingKey
from concerto.api.podreservation import Assignment, Pin
from concerto.controllers.pinning.status import read_answer
from concerto.kube import ApiError, Conflict, KubeError, NotFound, Object, Session, TooManyRequests
from concerto.kube.resources import POD_CPU_BINDINGS
from concerto.pinning.classification import LABEL
from concerto.pinning.validation import BoundPod, Verdict

MANAGED_BY = ("app.kubernetes.io/managed-by", "concerto-operator")
"""Label of the bindings that the operator made, and may delete."""
BATCH_ANNOTATION = "concerto.dev/batch"
"""The PodReservation that holds the assignment a binding was made for."""

_REFUSED = frozenset({"InvalidCPUSet", "CPUSetAllocationFailed", "NodeTopologyNotFound", "Failed"})


@dataclass(frozen=True)
class PinningSettings:
    """How bindings are written.

    Attributes:
        timeout_seconds: for one write; see `BinderSettings`.
        first_backoff_seconds: wait before the second attempt; doubles each time.
        longest_backoff_seconds: no wait is longer.
        sweep_seconds: how often bindings that nobody needs are looked for.
    """

    timeout_seconds: float = 4.0
    first_backoff_seconds: float = 0.1
    longest_backoff_seconds: float = 5.0
    sweep_seconds: float = 0.5


@dataclass(frozen=True)
class Unprepared:
    """Why a pod can't be bound to its node, its binding still being there.

    Attributes:
        message: for the pod's event.
        silent: whether it is for the node's agent, so that other pods had better go elsewhere.
    """

    message: str
    silent: bool = False


@dataclass
class _Flight:
    """One pinned pod between its decision and its being seen bound."""

    assignment: Assignment
    batch: str
    news: asyncio.Event
    over: str = ""  # why it need not go on
    bound: bool = False  # the API server has said so; the pod itself has not yet


class PinnedBindings:
    """The bindings of pods in flight, and the removal of those whose pod is none any more.

    Attributes:
        mark: told the namespace and name of a binding that is to be validated now.
    """

    def __init__(
        self,
        session: Session,
        is_bound: Callable[[str], bool],
        settings: PinningSettings,
        may_write: Callable[[], bool],
    ) -> None:
        """Nothing is written before it is asked to.

        Args:
            session: the way to the API server.
            is_bound: by UID, whether a pod is on a node.
            settings: see there.
            may_write: whether this process still leads; asked before each write.
        """
        self.mark: Callable[[str, str], None] = lambda namespace, name: None
        self._session = session
        self._is_bound = is_bound
        self._settings = settings
        self._may_write = may_write
        self._flights: dict[str, _Flight] = {}  # by the pod's UID
        self._uid_of: dict[BindingKey, str] = {}  # of pods in flight, by namespace and name of pod and binding
        self._ours: dict[BindingKey, Object] = {}  # bindings that the operator made, as they were last seen
        self._of_pod: dict[str, set[BindingKey]] = {}  # anybody may name any pod as an owner
        self._doubtful: set[BindingKey] = set()

    # --- what others ask

    def assigned(self, pod: tuple[str, str]) -> BoundPod | None:
        """The pod of that namespace and name, and the node that it is about to be bound to."""
        uid = self._uid_of.get(pod)
        return None if uid is None else BoundPod(uid, self._flights[uid].assignment.node)

    # --- what is seen

    def on_binding(self, old: Object | None, new: Object | None) -> None:
        """A PodCPUBinding appeared, changed or went."""
        obj = new or old or {}
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        flight = self._flights.get(self._uid_of.get(key, ""))
        if (known := self._ours.pop(key, None)) is not None:
            before = _owner(known) or ""
            self._of_pod[before].discard(key)
            if not self._of_pod[before]:
                del self._of_pod[before]
            if new is None and flight is not None and _batch(known) == flight.batch:
                flight.over = "Its PodCPUBinding was deleted."
        if new is not None and (owner := _owner(new)) is not None:
            self._ours[key] = new
            self._of_pod.setdefault(owner, set()).add(key)
            self._doubtful.add(key)
        if flight is not None:
            flight.news.set()

    def on_pod(self, uid: str, node: str) -> None:
        """A pod is seen bound to a node; or it has ended or gone, and there is none."""
        if not node:
            self._doubtful |= self._of_pod.get(uid, set())
        if (flight := self._flights.get(uid)) is None:
            return
        if flight.bound or node == flight.assignment.node:
            self._land(flight)
        else:
            flight.over = f"It was bound to {node} by somebody else." if node else "It is gone."
        flight.news.set()

    # --- what is done

    def begin(self, assignment: Assignment, batch: str) -> None:
        """The pod's assignment is stored: from now on its binding is valid for that node."""
        flight = _Flight(assignment, batch, asyncio.Event())
        self._flights[assignment.uid] = flight
        self._uid_of[assignment.namespace, assignment.name] = assignment.uid

    async def prepare(self, pod: PodView, within_seconds: float) -> Unprepared | None:
        """Make the binding of a pod in flight, and wait until the node's agent is ready for it.

        Returns:
            None once the pod may be bound; else why not. Its binding is to be removed then (`release`).
        """
        flight = self._flights[pod.uid]
        assignment, pin = flight.assignment, _pin(flight.assignment)
        deadline = asyncio.get_running_loop().time() + within_seconds
        problem = await self._create(build_pod_cpu_binding(pod, assignment, flight.batch), deadline)
        if problem is not None:
            return Unprepared(problem)
        key = (assignment.namespace, pin.binding)
        self.mark(*key)
        while True:
            flight.news.clear()
            if flight.over or pod.uid not in self._flights:
                return Unprepared(flight.over or "It was bound by somebody else.")
            obj = self._ours.get(key)
            heard = "" if obj is None or _batch(obj) != flight.batch else self._heard(obj, assignment)
            if heard is None:
                return None
            if isinstance(heard, Unprepared):
                return heard
            try:
                async with asyncio.timeout_at(deadline):
                    await flight.news.wait()
            except TimeoutError:
                asked = obj is not None and _batch(obj) == flight.batch and _is_asked(obj, assignment)
                untold = (
                    "is its agent running, with --pinning?"
                    if asked
                    else "its PodCPUBinding was not validated as it was made; was it edited?"
                )
                return Unprepared(
                    f"Node {assignment.node} did not get ready for CPUs {pin.cpus} within {within_seconds:g} s: "
                    f"{heard or untold} The pod is placed again.",
                    silent=asked,
                )

    def confirm(self, uid: str) -> None:
        """The API server has accepted the pod's binding to its node."""
        if (flight := self._flights.get(uid)) is not None:
            flight.bound = True
            if flight.over:
                self._land(flight)

    async def release(self, uid: str) -> None:
        """The pod is not going to be bound there: remove its binding, whatever it takes, and let the CPUs go."""
        flight = self._flights.get(uid)
        if flight is None:
            return
        key = (flight.assignment.namespace, _pin(flight.assignment).binding)
        backoff = self._settings.first_backoff_seconds
        while not await self._delete(key, uid):
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, self._settings.longest_backoff_seconds)
        self._land(flight)

    async def run(self) -> None:
        """Delete bindings of ours whose pod has ended, is gone, or is on no node and on its way to none; for ever."""
        while True:
            for key in list(self._doubtful):
                obj = self._ours.get(key)
                uid = None if obj is None else _owner(obj)
                needed = uid is not None and (uid in self._flights or self._is_bound(uid))
                if obj is None or needed or await self._delete_this(obj):
                    self._doubtful.discard(key)
            await asyncio.sleep(self._settings.sweep_seconds)

    # --- inside

    def _heard(self, obj: Object, assignment: Assignment) -> Unprepared | str | None:
        """None if the agent is ready; why it never will be; or what there is to say so far."""
        status, pin = obj.get("status") or {}, _pin(assignment)
        if status.get("observedGeneration") != obj["metadata"].get("generation"):
            return ""
        validated = find_condition(status.get("conditions"), "Validated") or {}
        if validated.get("status") != "True":
            message = str(validated.get("message", ""))
            return Unprepared(message) if status.get("resourceStatus") in _REFUSED else message
        if not _is_asked(obj, assignment):
            return ""
        said = read_answer(obj, Verdict("Validated", "", "", assignment.node, assignment.uid, pin.cpus, pin.mems))
        if said is None:
            return ""
        return None if said.prepared else said.message

    async def _create(self, body: Object, deadline: float) -> str | None:
        """POST until the binding is there; returns what is in the way, or None."""
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        path, owner = POD_CPU_BINDINGS.path(namespace), _owner(body)
        backoff = self._settings.first_backoff_seconds
        problem = "the API server did not take the PodCPUBinding in time"
        while asyncio.get_running_loop().time() < deadline:
            await self._leading()
            wait = backoff
            backoff = min(backoff * 2, self._settings.longest_backoff_seconds)
            try:
                await self._session.request(
                    "POST", path, body=body, timeout_seconds=self._settings.timeout_seconds, attempts=1
                )
                return None
            except TooManyRequests as error:
                await asyncio.sleep(max(wait, error.retry_after or 0.0))
                continue
            except Conflict:
                pass  # there is one of that name: ours, of an attempt before, or somebody's
            except ApiError as error:
                return f"The PodCPUBinding was rejected: {error.message}"
            except KubeError:
                pass  # outcome unknown, or unreachable
            try:
                found = await self._session.get(POD_CPU_BINDINGS.path(namespace, name))
            except KubeError:
                await asyncio.sleep(wait)  # it is not there, or nothing can be learned now
                continue
            if _owner(found) is None:
                return (
                    f"PodCPUBinding {namespace}/{name} is in the way of the pod's own: delete it, or take the label "
                    f"{LABEL} off the pod."
                )
            if _owner(found) == owner and _batch(found) == _batch(body):
                return None
            await self._delete_this(found)
            problem = f"PodCPUBinding {namespace}/{name} of an earlier attempt is still being deleted"
            await asyncio.sleep(wait)
        return f"Could not make the pod's PodCPUBinding: {problem}."

    async def _delete(self, key: BindingKey, owner: str) -> bool:
        """Delete the operator's binding of that pod; False if that is not known to have worked."""
        await self._leading()
        try:
            found = await self._session.get(POD_CPU_BINDINGS.path(*key))
        except NotFound:
            return True
        except KubeError:
            return False
        return _owner(found) != owner or await self._delete_this(found)

    async def _delete_this(self, obj: Object) -> bool:
        metadata = obj["metadata"]
        await self._leading()
        try:
            await self._session.delete(
                POD_CPU_BINDINGS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"]
            )
        except (NotFound, Conflict):
            return True  # it is gone, or another one
        except KubeError:
            return False
        return True

    async def _leading(self) -> None:
        if not self._may_write():
            await asyncio.Event().wait()

    def _land(self, flight: _Flight) -> None:
        assignment = flight.assignment
        self._flights.pop(assignment.uid, None)
        self._doubtful.add((assignment.namespace, _pin(assignment).binding))
        if self._uid_of.get((assignment.namespace, assignment.name)) == assignment.uid:
            del self._uid_of[assignment.namespace, assignment.name]


def build_pod_cpu_binding(pod: PodView, assignment: Assignment, batch: str) -> Object:
    """The PodCPUBinding of a pinned pod; it goes with the pod."""
    pin = _pin(assignment)
    return {
        "apiVersion": POD_CPU_BINDINGS.api_version,
        "kind": POD_CPU_BINDINGS.kind,
        "metadata": {
            "namespace": pod.namespace,
            "name": pin.binding,
            "labels": dict([MANAGED_BY]) | {LABEL: pod.labels[LABEL]},
            "annotations": {BATCH_ANNOTATION: batch},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}],
        },
        "spec": {
            "podName": pod.name,
            "cpuSet": [{"cpuID": cpu} for cpu in sorted(parse_cpu_list(pin.cpus))],
            "exclusivenessLevel": pin.level,
        },
    }


def _is_asked(obj: Mapping[str, Any], assignment: Assignment) -> bool:
    """Whether the binding says what it was made for, so that the node's agent is the one to answer."""
    status, metadata = obj.get("status") or {}, obj["metadata"]
    validated = find_condition(status.get("conditions"), "Validated") or {}
    return (
        validated.get("status") == "True"
        and status.get("observedGeneration") == metadata.get("generation")
        and (status.get("nodeName"), status.get("podUID")) == (assignment.node, assignment.uid)
        and status.get("cpus") == _pin(assignment).cpus
    )


def _owner(obj: Mapping[str, Any]) -> str | None:
    """UID of the pod that the operator made this binding for; None if it is somebody else's."""
    metadata = obj["metadata"]
    if (metadata.get("labels") or {}).get(MANAGED_BY[0]) != MANAGED_BY[1]:
        return None
    return next((str(o["uid"]) for o in metadata.get("ownerReferences") or () if o["kind"] == "Pod"), None)


def _batch(obj: Mapping[str, Any]) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(BATCH_ANNOTATION, ""))


def _pin(assignment: Assignment) -> Pin:
    assert assignment.pin is not None, "only pinned pods come here"
    return assignment.pin
