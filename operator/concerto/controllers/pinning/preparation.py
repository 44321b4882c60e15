"""Preparation of pinned pods: each has its PodCPUBinding, and its node's agent is ready, before the pod is bound.

The placement record (a PodReservation) comes first, then the binding, then the agent's condition Prepared, then the pod
is bound. A process that ends in between leaves a binding whose pod is on no node. Nobody binds a pod from such a
binding: the next leader deletes it and decides again. Each binding names its placement record, so that a binding of an
earlier attempt is never mistaken for that of this attempt.

`assigned` gives the validation of bindings the node that a pod in preparation is about to be bound to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from concerto.api.conditions import find_condition
from concerto.api.doubling import doubling_waits
from concerto.api.pod import PodView
from concerto.api.podcpubinding import BindingKey
from concerto.api.podreservation import Assignment
from concerto.controllers.pinning.binding_objects import (
    build_pod_cpu_binding,
    is_validated_for,
    owner_of,
    pin_of,
    record_of,
)
from concerto.controllers.pinning.status import read_answer
from concerto.kube import ApiError, Conflict, KubeError, NotFound, Object, Session, TooManyRequests
from concerto.kube.backoff import Backoff
from concerto.kube.confirmed_writes import NotWritten, WriteSettings, wait_unless_leading, write_until_known
from concerto.kube.errors import seconds_asked
from concerto.kube.fair_places import PlaceOf
from concerto.kube.reflector import key_of
from concerto.kube.resources import POD_CPU_BINDINGS
from concerto.pinning.classification import LABEL
from concerto.pinning.validation import BoundPod, Verdict

_REFUSED = frozenset({"InvalidCPUSet", "CPUSetAllocationFailed", "NodeTopologyNotFound", "Failed"})
_BOUND_BY_OTHERS = "The pod was bound by another scheduler."


@dataclass(frozen=True)
class PreparationSettings:
    """How bindings are written.

    Attributes:
        timeout_seconds: time limit of one write; see `BinderSettings`.
        first_backoff_seconds: wait before the second attempt; doubles each time.
        max_backoff_seconds: longest wait.
        sweep_seconds: time between two searches for bindings that are no longer needed.
        max_sweep_backoff_seconds: longest wait until the deletion of one is tried again that was refused.
    """

    timeout_seconds: float = 4.0
    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 5.0
    sweep_seconds: float = 0.5
    max_sweep_backoff_seconds: float = 60.0


@dataclass(frozen=True)
class NotPrepared:
    """Why a pod cannot be bound to its node. Its binding still exists.

    Attributes:
        message: for the pod's event.
        agent_late: whether the node's agent did not answer in time, so that other pods should go elsewhere.
    """

    message: str
    agent_late: bool = False


@dataclass
class _InFlight:
    """A pinned pod between its decision and the watch event that shows it bound."""

    assignment: Assignment
    record: str
    changed: asyncio.Event
    ended: str = ""  # why the preparation has ended
    bound: bool = False  # the API server has accepted the pod's binding; the watch has not shown it yet


class PinningPreparation:
    """The bindings of pods in flight, and the deletion of bindings whose pod has gone.

    Attributes:
        mark: called with namespace and name of a binding that should be validated now.
    """

    def __init__(
        self,
        session: Session,
        is_bound: Callable[[str], bool],
        settings: PreparationSettings,
        may_write: Callable[[], bool],
        place: PlaceOf,
    ) -> None:
        """Writes nothing before the first call of `prepare` or `run`.

        Args:
            session: connection to the API server.
            is_bound: by UID, whether a pod is on a node.
            settings: waits and timeouts.
            may_write: whether this process still leads; asked before each write.
            place: held by each write, for its namespace.
        """
        self.mark: Callable[[str, str], None] = lambda namespace, name: None
        self._session = session
        self._is_bound = is_bound
        self._settings = settings
        self._may_write = may_write
        self._place = place
        self._flights: dict[str, _InFlight] = {}  # by the pod's UID
        self._uid_of: dict[BindingKey, str] = {}  # of pods in flight, by namespace and name of pod and binding
        self._ours: dict[BindingKey, Object] = {}  # bindings that the operator created, as they were last seen
        self._of_pod: dict[str, set[BindingKey]] = {}  # several: anybody may name any pod as an owner
        self._unchecked: set[BindingKey] = set()  # of `_ours`, those that may be unneeded
        self._refused: Backoff[BindingKey] = Backoff(  # of `_unchecked`, those that could not be deleted
            time.monotonic, first_seconds=settings.sweep_seconds, max_seconds=settings.max_sweep_backoff_seconds
        )

    # --- for validation

    def assigned(self, pod: tuple[str, str]) -> BoundPod | None:
        """The pod of that namespace and name, and the node that it is about to be bound to."""
        uid = self._uid_of.get(pod)
        return None if uid is None else BoundPod(uid, self._flights[uid].assignment.node)

    # --- watch events

    def on_cpu_binding(self, old: Object | None, new: Object | None) -> None:
        """A PodCPUBinding appeared, changed or went."""
        key = key_of(new or old or {})
        flight = self._flights.get(self._uid_of.get(key, ""))
        if (known := self._ours.pop(key, None)) is not None:
            before = owner_of(known) or ""
            self._of_pod[before].discard(key)
            if not self._of_pod[before]:
                del self._of_pod[before]
            # A standby replica never runs the sweep: what is gone must not stay in its set
            self._unchecked.discard(key)
            if new is None and flight is not None and record_of(known) == flight.record:
                flight.ended = "The pod's PodCPUBinding was deleted."
        if new is None or owner_of(new) is None or _may_be_asked_anew(known, new):
            self._refused.forget(key)
        if new is not None and (owner := owner_of(new)) is not None:
            self._ours[key] = new
            self._of_pod.setdefault(owner, set()).add(key)
            self._unchecked.add(key)
        if flight is not None:
            flight.changed.set()

    def on_pod(self, uid: str, node: str) -> None:
        """A pod is bound to ``node``; or it has ended or gone, and ``node`` is empty."""
        if not node:
            self._unchecked |= self._of_pod.get(uid, set())
        if (flight := self._flights.get(uid)) is None:
            return
        if flight.bound or node == flight.assignment.node:
            self._land(flight)
        else:
            flight.ended = f"The pod was bound to {node} by another scheduler." if node else "The pod is gone."
        flight.changed.set()

    # --- the steps of a placement

    def begin(self, assignment: Assignment, record: str) -> None:
        """The pod's assignment is stored in this placement record: its binding is valid for that node from now on."""
        flight = _InFlight(assignment, record, asyncio.Event())
        self._flights[assignment.uid] = flight
        self._uid_of[assignment.namespace, assignment.name] = assignment.uid

    async def prepare(self, pod: PodView, within_seconds: float) -> NotPrepared | None:
        """Create the binding of a pod in flight, and wait until the node's agent is ready for it.

        Returns:
            None once the pod may be bound; else why not. Its binding must be removed then (`release`).
        """
        flight = self._flights.get(pod.uid)
        if flight is None:  # it was seen bound since `begin`
            return NotPrepared(_BOUND_BY_OTHERS)
        deadline = asyncio.get_running_loop().time() + within_seconds
        problem = await self._create(build_pod_cpu_binding(pod, flight.assignment, flight.record), deadline)
        if problem is not None:
            return NotPrepared(problem)
        key = (flight.assignment.namespace, pin_of(flight.assignment).binding)
        self.mark(*key)
        while True:
            flight.changed.clear()
            if flight.ended or pod.uid not in self._flights:
                return NotPrepared(flight.ended or _BOUND_BY_OTHERS)
            obj = self._ours.get(key)
            if obj is not None and record_of(obj) != flight.record:
                obj = None  # of an earlier attempt
            progress = "" if obj is None else self._progress(obj, flight.assignment)
            if progress is None or isinstance(progress, NotPrepared):
                return progress
            try:
                async with asyncio.timeout_at(deadline):
                    await flight.changed.wait()
            except TimeoutError:
                return _too_late(flight.assignment, obj, progress, within_seconds)

    def confirm(self, uid: str) -> None:
        """The API server has accepted the pod's binding to its node."""
        if (flight := self._flights.get(uid)) is not None:
            flight.bound = True
            if flight.ended:
                self._land(flight)

    async def release(self, uid: str) -> None:
        """The pod is not going to be bound there: delete its PodCPUBinding, however often that takes."""
        flight = self._flights.get(uid)
        if flight is None:
            return
        key = (flight.assignment.namespace, pin_of(flight.assignment).binding)
        waits = doubling_waits(self._settings.first_backoff_seconds, self._settings.max_backoff_seconds)
        while True:
            try:
                await self._delete(key, uid)
                break
            except KubeError as error:
                await asyncio.sleep(max(next(waits), seconds_asked(error)))
        self._land(flight)

    async def run(self) -> None:
        """Delete bindings of the operator whose pod has ended, is gone, or is neither bound nor in flight; for ever.

        Each namespace has a sweep of its own: deletions that hang hold up those of their namespace alone.
        """
        sweeps: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                sweeps = {namespace: sweep for namespace, sweep in sweeps.items() if not sweep.done()}
                keys: dict[str, list[BindingKey]] = {}
                for key in self._unchecked:
                    if key[0] not in sweeps and self._refused.is_due(key):
                        keys.setdefault(key[0], []).append(key)
                sweeps |= {namespace: group.create_task(self._sweep(found)) for namespace, found in keys.items()}
                await asyncio.sleep(self._settings.sweep_seconds)

    # --- inside

    async def _sweep(self, keys: Iterable[BindingKey]) -> None:
        for key in keys:
            obj = self._ours.get(key)
            uid = None if obj is None else owner_of(obj)
            needed = uid is not None and (uid in self._flights or self._is_bound(uid))
            try:
                if obj is not None and not needed:
                    await self._delete_object(obj)
                self._unchecked.discard(key)
                self._refused.forget(key)
            except KubeError as error:
                if key in self._ours:  # it has not gone meanwhile
                    self._refused.failed(key, at_least_seconds=seconds_asked(error))
                if isinstance(error, TooManyRequests):
                    return  # the others have their turns in later sweeps

    def _progress(self, obj: Object, assignment: Assignment) -> NotPrepared | str | None:
        """None if the agent is ready; NotPrepared if it never will be; else what is known so far."""
        status, pin = obj.get("status") or {}, pin_of(assignment)
        if status.get("observedGeneration") != obj["metadata"].get("generation"):
            return ""
        validated = find_condition(status.get("conditions"), "Validated") or {}
        if validated.get("status") != "True":
            message = str(validated.get("message", ""))
            return NotPrepared(message) if status.get("resourceStatus") in _REFUSED else message
        if not is_validated_for(obj, assignment):
            return ""
        answer = read_answer(obj, Verdict("Validated", "", "", assignment.node, assignment.uid, pin.cpus, pin.mems))
        if answer is None:
            return ""
        return None if answer.prepared else answer.message

    async def _create(self, body: Object, deadline: float) -> str | None:
        """Create the binding before the deadline; returns the problem, or None."""
        problem = "the API server did not take the PodCPUBinding in time"
        waits = doubling_waits(self._settings.first_backoff_seconds, self._settings.max_backoff_seconds)
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    asked = 0.0
                    found = await self._post(body, deadline)
                    if isinstance(found, str):
                        return found
                    if found is not None:
                        if owner_of(found) == owner_of(body) and record_of(found) == record_of(body):
                            return None
                        name = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
                        if owner_of(found) is None:
                            return (
                                f"PodCPUBinding {name} has the name of the pod's own: delete it, or remove the label "
                                f"{LABEL} from the pod."
                            )
                        problem = f"PodCPUBinding {name} of an earlier attempt is still being deleted"
                        try:
                            await self._delete_object(found)
                        except KubeError as error:
                            asked = seconds_asked(error)
                    await asyncio.sleep(max(next(waits), asked))
        except (TimeoutError, NotWritten):
            return f"Could not create the pod's PodCPUBinding: {problem}."

    async def _post(self, body: Object, deadline: float) -> Object | str | None:
        """The binding of that name once there is one, a refusal, or None where an older one has just gone."""
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]

        async def write() -> Object:
            path, timeout = POD_CPU_BINDINGS.path(namespace), self._settings.timeout_seconds
            await self._session.request("POST", path, body=body, timeout_seconds=timeout, attempts=1)
            return body

        async def read_back() -> Object | None:
            try:
                return await self._session.get(POD_CPU_BINDINGS.path(namespace, name))
            except NotFound:
                return None

        try:
            async with self._place(namespace):
                settings = WriteSettings(
                    self._settings.first_backoff_seconds,
                    self._settings.max_backoff_seconds,
                    max(deadline - asyncio.get_running_loop().time(), 0.0),
                )
                return await write_until_known(
                    write, read_back, may_write=self._may_write, settings=settings, name="cpu-binding"
                )
        except Conflict:
            return None
        except ApiError as error:
            return f"The PodCPUBinding was rejected: {error.message}"

    async def _delete(self, key: BindingKey, owner: str) -> None:
        """Delete the operator's binding of that pod, if there is one.

        Raises:
            KubeError: it was not, as far as is known.
        """
        await wait_unless_leading(self._may_write)
        try:
            found = await self._session.get(POD_CPU_BINDINGS.path(*key))
        except NotFound:
            return
        if owner_of(found) == owner:
            await self._delete_object(found)

    async def _delete_object(self, obj: Object) -> None:
        metadata = obj["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        # If not, it is gone, or the name belongs to another one
        with contextlib.suppress(NotFound, Conflict):
            async with self._place(namespace):
                await wait_unless_leading(self._may_write)
                path, timeout = POD_CPU_BINDINGS.path(namespace, name), self._settings.timeout_seconds
                # One attempt, so that a webhook without an answer does not hold the place for long; the caller retries
                await self._session.delete(path, uid=metadata["uid"], timeout_seconds=timeout, attempts=1)

    def _land(self, flight: _InFlight) -> None:
        assignment = flight.assignment
        if self._flights.get(assignment.uid) is flight:
            del self._flights[assignment.uid]
        if self._uid_of.get((assignment.namespace, assignment.name)) == assignment.uid:
            del self._uid_of[assignment.namespace, assignment.name]
        if (key := (assignment.namespace, pin_of(assignment).binding)) in self._ours:
            self._unchecked.add(key)


def _may_be_asked_anew(before: Object | None, now: Object) -> bool:
    """Whether a binding has changed such that what has refused its deletion may allow it now."""
    fields = ("uid", "generation", "labels", "annotations", "ownerReferences")
    return before is None or any(before["metadata"].get(field) != now["metadata"].get(field) for field in fields)


def _too_late(assignment: Assignment, obj: Object | None, progress: str, within_seconds: float) -> NotPrepared:
    """The agent was not ready in time; ``obj`` is the binding as it was last seen."""
    asked = obj is not None and is_validated_for(obj, assignment)
    hint = (
        "is its agent running, with --pinning?"
        if asked
        else "its PodCPUBinding was not validated as it was created; was it edited?"
    )
    return NotPrepared(
        f"Node {assignment.node} did not prepare CPUs {pin_of(assignment).cpus} within {within_seconds:g} s: "
        f"{progress or hint} The pod is scheduled again.",
        agent_late=asked,
    )
