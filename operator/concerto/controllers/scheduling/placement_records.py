"""The durable intent: one PodReservation, the placement record, for all decisions of a cycle.

The record exists before the first of its bindings is sent and is deleted after its last assignment has been observed.
So a successor knows what may still be in flight. Names are deterministic (instance and cycle), so an unknown outcome
can be read back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from concerto.api.podreservation import Assignment, build_placement_record
from concerto.kube import ApiError, Conflict, Forbidden, KubeError, NotFound, Object, Session, Unauthorized
from concerto.kube.confirmed_writes import WriteSettings, write_until_known
from concerto.kube.resources import POD_RESERVATIONS

_RETRY = WriteSettings(first_backoff_seconds=0.5, max_backoff_seconds=0.5)


@dataclass(frozen=True)
class PlacementRecord:
    """A placement record that the API server has confirmed."""

    name: str
    uid: str
    resource_version: str
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class Refused:
    """An assignment that the API server refused to store, and its sentence."""

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
) -> tuple[list[PlacementRecord], list[Refused]]:
    """Write the record; returns once every assignment is either confirmed or refused.

    A refusal of the content (400, 413, 422) is narrowed down by halves, so that one bad assignment costs only itself.
    Any other refusal (rights, a namespace that is gone) concerns all assignments.

    Args:
        session: the way to the API server.
        namespace: the operator's own; records count nowhere else.
        name: unique to this cycle of this process.
        assignments: at most 250.
        owners: owner references of the record.
        may_write: whether this process still leads; see `write_until_known`.
    """
    body = build_placement_record(namespace, name, assignments)
    if owners:
        body["metadata"]["ownerReferences"] = list(owners)
    try:
        created = await _create(session, namespace, name, body, may_write)
    except ApiError as error:
        if len(assignments) == 1 or isinstance(error, Unauthorized | Forbidden | NotFound):
            return [], [Refused(a, error.message) for a in assignments]
        half = len(assignments) // 2
        stored: list[PlacementRecord] = []
        refused: list[Refused] = []
        for suffix, part in (("a", assignments[:half]), ("b", assignments[half:])):
            more, worse = await store(session, namespace, name + suffix, part, owners=owners, may_write=may_write)
            stored += more
            refused += worse
        return stored, refused
    metadata = created["metadata"]
    return [PlacementRecord(name, metadata["uid"], metadata["resourceVersion"], tuple(assignments))], []


async def _create(session: Session, namespace: str, name: str, body: Object, may_write: Callable[[], bool]) -> Object:
    """POST until the outcome is known; an object of that name with exactly our assignments is ours."""

    async def write() -> Object:
        return await session.request("POST", POD_RESERVATIONS.path(namespace), body=body, attempts=1)

    async def read_back() -> Object | None:
        try:
            return await session.get(POD_RESERVATIONS.path(namespace, name))
        except NotFound:
            return None

    found = await write_until_known(write, read_back, may_write=may_write, settings=_RETRY)
    if _uids(found) != _uids(body):
        raise Conflict(409, "AlreadyExists", f"a PodReservation {name} of other content exists")
    return found


def _uids(record: Object) -> list[str]:
    return [str(assignment["uid"]) for assignment in record["spec"].get("assignments", ())]


async def discard(session: Session, namespace: str, record: PlacementRecord) -> bool:
    """Delete a record whose last assignment is released; False if that is not known to have worked (repeat later)."""
    path = POD_RESERVATIONS.path(namespace, record.name)
    version = record.resource_version
    for _ in range(2):
        try:
            await session.delete(path, uid=record.uid, resource_version=version)
        except NotFound:
            return True
        except Conflict:
            # Somebody changed it (an annotation, say), or another record has its name
            try:
                found = await session.get(path)
            except NotFound:
                return True
            except KubeError:
                return False
            if found["metadata"]["uid"] != record.uid:
                return True
            version = found["metadata"]["resourceVersion"]
        except KubeError:
            return False
        else:
            return True
    return False
