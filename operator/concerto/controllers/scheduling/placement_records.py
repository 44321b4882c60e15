"""The durable intent: one PodReservation for all decisions of a cycle.

It exists before the first of its bindings is sent and is deleted with its last assignment, so that whoever takes over
knows what may still be in flight. Names are deterministic (instance and cycle), so an unknown outcome is read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from concerto.api.podreservation import Assignment, build_batch
from concerto.kube import (
    ApiError,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    Object,
    Session,
    TooManyRequests,
    Unauthorized,
)
from concerto.kube.resources import POD_RESERVATIONS

_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class StoredBatch:
    """A batch that the API server has confirmed."""

    name: str
    uid: str
    resource_version: str
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class Refused:
    """An assignment that the API server would not store, and its sentence."""

    assignment: Assignment
    message: str


async def store(
    session: Session,
    namespace: str,
    name: str,
    assignments: Sequence[Assignment],
    *,
    owners: Sequence[Object] = (),
    may_write: Callable[[], bool] = lambda: True,
) -> tuple[list[StoredBatch], list[Refused]]:
    """Write the batch; returns once every assignment is either confirmed or refused.

    A refusal of what it says (400, 413, 422) is narrowed down by halves, so that one bad assignment costs only itself.
    One that has nothing to do with what it says (rights, a namespace that is gone) is one of all.

    Args:
        session: the way to the API server.
        namespace: the operator's own; batches count nowhere else.
        name: unique to this cycle of this process.
        assignments: at most 250.
        owners: owner references of the batch.
        may_write: whether this process still leads, asked before each write; once it says no, nothing is sent and
            nothing returned (a process that was stopped for a while wakes up anywhere).
    """
    body = build_batch(namespace, name, assignments)
    if owners:
        body["metadata"]["ownerReferences"] = list(owners)
    try:
        created = await _create(session, namespace, name, body, may_write)
    except ApiError as error:
        if len(assignments) == 1 or isinstance(error, Unauthorized | Forbidden | NotFound):
            return [], [Refused(a, error.message) for a in assignments]
        half = len(assignments) // 2
        stored: list[StoredBatch] = []
        refused: list[Refused] = []
        for suffix, part in (("a", assignments[:half]), ("b", assignments[half:])):
            more, worse = await store(session, namespace, name + suffix, part, owners=owners, may_write=may_write)
            stored += more
            refused += worse
        return stored, refused
    metadata = created["metadata"]
    return [StoredBatch(name, metadata["uid"], metadata["resourceVersion"], tuple(assignments))], []


async def _create(session: Session, namespace: str, name: str, body: Object, may_write: Callable[[], bool]) -> Object:
    """POST until the outcome is known; an object of that name with our very content is ours."""
    while True:
        if not may_write():
            await asyncio.Event().wait()
        conflict: ApiError | None = None
        try:
            return await session.request("POST", POD_RESERVATIONS.path(namespace), body=body, attempts=1)
        except Conflict as error:
            conflict = error
        except TooManyRequests as error:
            await asyncio.sleep(max(_RETRY_SECONDS, error.retry_after or 0.0))
            continue
        except ApiError:
            raise
        except KubeError:
            pass  # outcome unknown, or unreachable
        try:
            found = await session.get(POD_RESERVATIONS.path(namespace, name))
        except KubeError:
            await asyncio.sleep(_RETRY_SECONDS)  # it is not there, or nothing can be learned now
        else:
            if [a["uid"] for a in found["spec"].get("assignments", ())] == [
                a["uid"] for a in body["spec"]["assignments"]
            ]:
                return found
            raise conflict or Conflict(409, "AlreadyExists", f"a PodReservation {name} of other content exists")


async def discard(session: Session, namespace: str, batch: StoredBatch) -> bool:
    """Delete a batch whose last assignment is released; False if that is not known to have worked (ask again)."""
    path = POD_RESERVATIONS.path(namespace, batch.name)
    version = batch.resource_version
    for _ in range(2):
        try:
            await session.delete(path, uid=batch.uid, resource_version=version)
        except NotFound:
            return True
        except Conflict:
            # Somebody touched it (an annotation, say), or another batch has its name
            try:
                found = await session.get(path)
            except NotFound:
                return True
            except KubeError:
                return False
            if found["metadata"]["uid"] != batch.uid:
                return True
            version = found["metadata"]["resourceVersion"]
        except KubeError:
            return False
        else:
            return True
    return False
