"""Make room for a pod: nominate it, then evict others. Each write is repeated until its outcome is known.

The nomination is stored first. So a process that ends anywhere in between leaves no victim without a pod that the room
is kept for: the next leader reads the nomination, and finishes what was begun.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from concerto.api.pod import PREEMPTED, PodView
from concerto.api.pod_end import TERMINAL
from concerto.controllers.runtime.clock import wall_timestamp
from concerto.kube import (
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    Object,
    Session,
    TooManyRequests,
    Unauthorized,
)
from concerto.kube.confirmed_writes import NotWritten, OnFailure, WriteSettings, write_until_known
from concerto.kube.fair_places import FairPlaces
from concerto.kube.request_bodies import STRATEGIC_PATCH, Patch
from concerto.kube.resources import PODS

_CHECKS = 3
"""How often a deletion is checked that the API server gives no answer to."""
_DENIED = re.compile("denied (the )?request")
"""In the message of an admission webhook's or policy's refusal, which may have any status."""


@dataclass(frozen=True)
class EvictionSettings:
    """How pods are nominated and evicted.

    Attributes:
        timeout_seconds: for one request; see ``BinderSettings.timeout_seconds``.
        give_up_after_seconds: when a write that is known not to have been carried out is no longer repeated.
        max_at_a_time: for how many pods or gangs others are evicted at a time. The rest waits, the namespaces in turn.
            Otherwise all of their victims would end together, and the first pod would wait for the last.
        max_concurrent: requests to victims that are in flight at a time, and nominations that are.
    """

    timeout_seconds: float = 4.0
    give_up_after_seconds: float = 15.0
    max_at_a_time: int = 32
    max_concurrent: int = 64


class EvictionPlaces:
    """How much is done at a time, for pods and for gangs together; see `FairPlaces` for what a namespace may have.

    A namespace whose requests are never answered, as an admission webhook keeps them, holds up no other namespace.

    Attributes:
        preemptions: held by a pod or gang that others are evicted for: for its namespace, and for those of its victims.
        nominations: held by a request, for the namespace of its pod.
        evictions: held by a request to a victim, for the namespace of that.
    """

    def __init__(self, settings: EvictionSettings) -> None:
        self.preemptions = FairPlaces(settings.max_at_a_time)
        self.nominations = FairPlaces(settings.max_concurrent)
        self.evictions = FairPlaces(settings.max_concurrent)
        self._nominations_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by UID

    @asynccontextmanager
    async def nomination(self, pod: PodView) -> AsyncIterator[None]:
        """Held by a write of the pod's nomination: one that is repeated must not undo a later one."""
        if (lock := self._nominations_of.get(pod.uid)) is None:
            lock = self._nominations_of[pod.uid] = asyncio.Lock()
        async with lock, self.nominations.place(pod.namespace):
            yield

    def are_slow(self, namespaces: Iterable[str]) -> bool:
        """Whether writes of one of the namespaces last for long, as an admission webhook keeps them."""
        named = frozenset(namespaces)
        return any(places.hangs(named) for places in (self.preemptions, self.nominations, self.evictions))


class NotNeeded(Exception):
    """The pod that room was made for needs none any more, or not there: no victim is to be evicted for it."""


@dataclass(frozen=True)
class _Write:
    """One write to a pod.

    Attributes:
        name: in the names of failpoints.
        pod: the pod.
        method, path, body: the request.
        is_done: whether the pod, as it was read, shows the write.
    """

    name: str
    pod: PodView
    method: str
    path: str
    body: Object | Patch
    is_done: Callable[[Object], bool]


class PodWriter:
    """Writes of nominations, conditions and deletions of pods.

    Args:
        session: the way to the API server.
        may_write: whether this process still leads.
        on_failure: given each failed attempt that is repeated.
        places: how many requests are in flight at a time.
        settings: timeouts.
    """

    def __init__(
        self,
        session: Session,
        may_write: Callable[[], bool],
        on_failure: OnFailure,
        places: EvictionPlaces,
        settings: EvictionSettings | None = None,
    ) -> None:
        self._session = session
        self._may_write = may_write
        self._on_failure = on_failure
        self._settings = settings or EvictionSettings()
        self._places = places

    async def nominate(
        self,
        pod: PodView,
        node: str,
        conditions: Sequence[Object] = (),
        is_needed: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write the pod's nominatedNodeName; an empty name removes it.

        Args:
            pod: the pod.
            node: where room is made for it.
            conditions: of the pod, for the same write.
            is_needed: whether the pod still needs the room; asked before each attempt.

        Returns:
            False if the pod is gone, bound, or has ended: it needs no room.

        Raises:
            KubeError: the API server refuses it.
            NotNeeded: the room is not needed any more; an attempt before may have been carried out all the same.
        """
        status: Object = {"nominatedNodeName": node or None}
        if conditions:
            status["conditions"] = list(conditions)
        async with self._places.nomination(pod):
            return await self._write_status(
                "nomination", pod, status, lambda found: _is_nominated(found, node), is_needed
            )

    async def mark(self, victim: PodView, preemptor: PodView, is_needed: Callable[[], bool]) -> bool:
        """Set the victim's condition DisruptionTarget, without which a policy refuses its deletion.

        Args:
            victim: the pod to evict.
            preemptor: the pod that needs the room.
            is_needed: whether it still does; asked before each attempt of a write, which may come minutes after the
                first.

        Returns:
            False if it was gone already.

        Raises:
            KubeError: the API server refuses it.
            NotNeeded: the room is not needed any more.
        """
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": PREEMPTED,
            "message": f"{preemptor.scheduler_name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": wall_timestamp(),
        }
        async with self._places.evictions.place(victim.namespace):
            status = {"conditions": [condition]}
            return await self._write_status("disruption-target", victim, status, _is_disrupted, is_needed)

    async def check_deletion(self, victim: PodView, is_needed: Callable[[], bool]) -> None:
        """Ask the API server to check the deletion of a victim that was marked, and not to carry it out (dry run).

        A webhook that is asked in no dry run is passed over, and so is a victim that is gone.

        Raises:
            KubeError: it refuses the deletion, or gives no answer when it is asked several times.
            NotNeeded: the room is not needed any more.
        """
        # In the body: where there is one, the API server ignores the query parameter, and would delete the pod
        path, body = PODS.path(victim.namespace, victim.name), _delete_options(victim) | {"dryRun": ["All"]}
        timeout = self._settings.timeout_seconds
        async with self._places.evictions.place(victim.namespace):
            _raise_unless(is_needed)
            try:
                await self._session.request("DELETE", path, body=body, timeout_seconds=timeout, attempts=_CHECKS)
            except ApiError as error:
                if not _says_nothing(error):
                    raise

    async def delete(self, victim: PodView, is_needed: Callable[[], bool]) -> bool:
        """Delete a victim that was marked, with its own grace period; as `mark`.

        Raises:
            KubeError: the API server refuses it; the victim is not deleted then.
            NotNeeded: the room is not needed any more; an attempt before may have deleted the victim all the same.
        """
        path, body = PODS.path(victim.namespace, victim.name), _delete_options(victim)
        write = _Write("eviction", victim, "DELETE", path, body, _is_being_deleted)
        async with self._places.evictions.place(victim.namespace):
            return await self._until_known(write, is_needed)

    async def _write_status(
        self,
        name: str,
        pod: PodView,
        status: Object,
        is_written: Callable[[Object], bool],
        is_needed: Callable[[], bool] = lambda: True,
    ) -> bool:
        # A strategic merge patch; the UID is a precondition
        patch = Patch(STRATEGIC_PATCH, {"metadata": {"uid": pod.uid}, "status": status})
        path = PODS.path(pod.namespace, pod.name, "status")
        return await self._until_known(_Write(name, pod, "PATCH", path, patch, is_written), is_needed)

    async def _find(self, pod: PodView) -> Object | None:
        """The pod as the API server has it; None if it is gone or has ended, or another one has its name."""
        try:
            found = await self._session.get(PODS.path(pod.namespace, pod.name))
        except NotFound:
            return None
        ended = (found.get("status") or {}).get("phase") in TERMINAL
        return None if ended or found["metadata"]["uid"] != pod.uid else found

    async def _until_known(self, made: _Write, is_needed: Callable[[], bool]) -> bool:
        """Repeat it until its outcome is known; False if the pod is gone or has ended."""

        async def write() -> bool:
            _raise_unless(is_needed)
            timeout = self._settings.timeout_seconds
            await self._session.request(made.method, made.path, body=made.body, timeout_seconds=timeout, attempts=1)
            return True

        async def read_back() -> bool | None:
            found = await self._find(made.pod)
            if found is None:
                return False
            return True if made.is_done(found) else None

        try:
            return await write_until_known(
                write,
                read_back,
                may_write=self._may_write,
                on_failure=self._on_failure,
                name=made.name,
                settings=WriteSettings(give_up_after_seconds=self._settings.give_up_after_seconds),
            )
        except NotFound:
            return False


def _raise_unless(is_needed: Callable[[], bool]) -> None:
    if not is_needed():
        raise NotNeeded("it needs the room no longer, or not there")


def _delete_options(pod: PodView) -> Object:
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}


def _says_nothing(error: ApiError) -> bool:
    """Whether a dry run was refused that says nothing of a deletion that is carried out."""
    is_gone = isinstance(error, NotFound | Conflict) and not _DENIED.search(error.message)
    # A webhook that declares no ``sideEffects: None`` is not asked in a dry run
    return is_gone or "dry run" in error.message


def may_be_due_to(pod_write: KubeError) -> bool:
    """Whether the failure of a write may be due to its pod, and not to the API server's load or to our credentials."""
    failure = pod_write.__cause__ if isinstance(pod_write, NotWritten) else pod_write
    return not isinstance(failure, TooManyRequests | Unauthorized) or bool(_DENIED.search(failure.message))


def _is_nominated(found: Object, node: str) -> bool:
    return bool((found.get("status") or {}).get("nominatedNodeName", "") == node)


def _is_disrupted(found: Object) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "DisruptionTarget" and c.get("reason") == PREEMPTED for c in conditions)


def _is_being_deleted(found: Object) -> bool:
    return "deletionTimestamp" in found["metadata"]
