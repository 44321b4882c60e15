"""The durable intent: one PodReservation, the placement record, for all decisions of a cycle.

The record exists before the first of its bindings is sent and is deleted after its last assignment has been observed.
So a successor knows what may still be in flight. Names are deterministic (instance and cycle), so an unknown outcome
can be read back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from concerto.api.podreservation import IN_FLIGHT_LABEL, Assignment, build_placement_record
from concerto.api.timestamps import parse_timestamp
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.event_notes import pod_subject
from concerto.kube import ApiError, Conflict, Forbidden, KubeError, NotFound, Object, Session, Unauthorized
from concerto.kube.confirmed_writes import NotWritten, OnFailure, WriteSettings, failure_reason, write_until_known
from concerto.kube.failpoints import point
from concerto.kube.resources import POD_RESERVATIONS
from concerto.scheduling.state.ledger import Ledger

logger = logging.getLogger(__name__)

_MAX_ASSIGNMENTS = 250
"""Of one record (CRD: maxItems)."""
_MAX_CONCURRENT_DELETIONS = 16
"""When many agents report again at once, many records come due together."""
_PART = re.compile(r"(?<=\d{6})(\.\d+)?[ab]*$")
"""What the names of records of one cycle differ by: the number of the part, and the halves that it was stored in."""
_RECORD_AFTER_SECONDS = 10.0
"""Placements that cannot be stored for that long are reported on their pods; the log has it at once."""
_REPORT_AGAIN_SECONDS = 60.0
_RETRY = WriteSettings(first_backoff_seconds=0.5, max_backoff_seconds=0.5)


@dataclass(frozen=True)
class PlacementRecord:
    """A placement record that the API server has confirmed.

    Attributes:
        name: its name.
        uid: its UID.
        resource_version: its version when it was read.
        assignments: what was decided.
        created_at: when it was created, seconds since the epoch; None if that is not known.
    """

    name: str
    uid: str
    resource_version: str
    assignments: tuple[Assignment, ...]
    created_at: float | None = None

    @property
    def cycle(self) -> str:
        """The same for all records of one cycle: that of a large gang takes several, as does one refused in part."""
        return _PART.sub("", self.name)


@dataclass(frozen=True)
class Refused:
    """An assignment that the API server refused to store.

    Attributes:
        assignment: the placement.
        message: the API server's sentence.
        by_content: whether this very assignment was refused, and not all of them (for want of a right, say).
    """

    assignment: Assignment
    message: str
    by_content: bool


class PlacementRecords:
    """All placement records: those that the API server has, and those that the ledger counts."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        instance: str,
        owners: Sequence[Object],
        keeps: Callable[[Assignment], bool] = lambda assignment: False,
    ) -> None:
        """No record is known yet.

        Args:
            context: what the scheduler's parts share.
            ledger: counts the assignments of open records.
            instance: of this process; part of its records' names.
            owners: owner references of the records.
            keeps: whether a record with that assignment is still needed, although the ledger does not wait for it.
        """
        self._context = context
        self._ledger = ledger
        self._instance = instance
        self._owners = owners
        self._keeps = keeps
        self._sequence = count(1)
        self._storing = ""  # name of the record that is being stored
        self._found: dict[str, PlacementRecord] = {}  # as the API server has them
        self._open: dict[str, PlacementRecord] = {}  # as the ledger counts them
        self._by_uid: dict[str, tuple[str, Assignment]] = {}  # record and assignment of each pod in an open record

    def is_record(self, obj: Object) -> bool:
        """Whether a PodReservation is a placement record, and not a reservation that a person made."""
        metadata = obj["metadata"]
        return metadata["namespace"] == self._context.namespace and IN_FLIGHT_LABEL in (metadata.get("labels") or {})

    def assignment_of(self, uid: str) -> Assignment | None:
        """The stored decision on a pod, while its record exists."""
        return self._by_uid[uid][1] if uid in self._by_uid else None

    def cycles_of(self, records: Iterable[PlacementRecord]) -> list[list[Assignment]]:
        """For each cycle that made one of these records, all assignments of its open records."""
        cycles: dict[str, list[Assignment]] = {record.cycle: [] for record in records}
        for record in self._open.values():
            if record.cycle in cycles:
                cycles[record.cycle] += record.assignments
        return list(cycles.values())

    async def store(self, assignments: Sequence[Assignment]) -> tuple[list[PlacementRecord], list[Refused]]:
        """Write the record of a cycle, and count what was stored as open; see `store`. A large gang takes several."""
        stored: list[PlacementRecord] = []
        refused: list[Refused] = []
        cycle = f"cycle-{self._instance}-{next(self._sequence):06d}"
        for number, begin in enumerate(range(0, len(assignments), _MAX_ASSIGNMENTS), start=1):
            name = cycle if number == 1 else f"{cycle}.{number}"
            more, worse = await self._store(name, assignments[begin : begin + _MAX_ASSIGNMENTS])
            stored += more
            refused += worse
        return stored, refused

    async def _store(self, name: str, assignments: Sequence[Assignment]) -> tuple[list[PlacementRecord], list[Refused]]:
        self._storing = name
        context = self._context
        report = _StoreFailures(context, assignments)
        stored, refused = await store(
            context.session,
            context.namespace,
            name,
            assignments,
            owners=self._owners,
            may_write=context.may_write,
            on_failure=report,
        )
        for record in stored:
            self._ledger.open_record(record.name, record.assignments)
            self._add(record)
        self._storing = ""
        return stored, refused

    def on_found(self, record: PlacementRecord) -> None:
        """The API server has this record. What an open one holds never changes; `discard` asks for its version."""
        if record.name not in self._open:
            self._found[record.name] = record

    def adopt_found(self) -> list[PlacementRecord]:
        """Count the records that exist and that this process does not know, and return them.

        They are of an earlier process, whose last write may have been carried out long after its end; or of this one,
        which was refused a write that an earlier attempt had carried out.
        """
        adopted = []
        for record in list(self._found.values()):
            if record.name not in self._open and not (self._storing and record.name.startswith(self._storing)):
                self._ledger.adopt_record(record.name, record.assignments)
                self._add(record)
                adopted.append(record)
        return adopted

    async def delete_closable(self) -> bool:
        """Delete the records whose assignments have all been observed; False if one could not be deleted now."""
        closable = (name for name in self._ledger.closable_records() if name in self._open)
        names = [name for name in closable if not any(map(self._keeps, self._open[name].assignments))]
        limit = asyncio.Semaphore(_MAX_CONCURRENT_DELETIONS)

        async def delete(record: PlacementRecord) -> bool:
            async with limit:
                return await discard(self._context.session, self._context.namespace, record)

        deleted = await asyncio.gather(*(delete(self._open[name]) for name in names))
        for name, done in zip(names, deleted):
            if done:
                self.forget(name)
        self._context.metrics.placement_records.set(len(self._open))
        return all(deleted)

    def forget(self, name: str) -> None:
        """The record is gone."""
        self._found.pop(name, None)
        record = self._open.pop(name, None)
        if record is None:
            return
        self._ledger.close_record(name)
        for assignment in record.assignments:
            if self._by_uid.get(assignment.uid, ("",))[0] == name:
                del self._by_uid[assignment.uid]
        self._context.metrics.placement_records.set(len(self._open))

    def _add(self, record: PlacementRecord) -> None:
        self._open[record.name] = record
        for assignment in record.assignments:
            self._by_uid[assignment.uid] = (record.name, assignment)
        self._context.metrics.placement_records.set(len(self._open))


class _StoreFailures:
    """Reports that a record cannot be written: placement stops as long as that lasts, and somebody must see why."""

    def __init__(self, context: Context, assignments: Sequence[Assignment]) -> None:
        self._context = context
        self._assignments = assignments
        self._log_at = 0.0
        self._record_at = _RECORD_AFTER_SECONDS

    def __call__(self, failure: KubeError, seconds: float) -> None:
        """An attempt failed; the first one began so many seconds ago."""
        self._context.metrics.write_failures.labels("PlacementRecord", failure_reason(failure)).inc()
        if seconds >= self._log_at:
            self._log_at = seconds + _REPORT_AGAIN_SECONDS
            logger.warning("no pod can be placed: the placement record cannot be written: %s", failure)
        if seconds >= self._record_at:
            self._record_at = seconds + _REPORT_AGAIN_SECONDS
            for assignment in self._assignments:
                self._context.recorder.record(
                    pod_subject(assignment),
                    type="Warning",
                    reason="FailedScheduling",
                    action="Binding",
                    note=f"The placement cannot be stored, and is tried again: {failure}",
                )


def read_record(obj: Object) -> PlacementRecord:
    """A placement record as the API server has it."""
    metadata = obj["metadata"]
    assignments = tuple(Assignment.from_raw(a) for a in obj["spec"].get("assignments") or ())
    created = metadata.get("creationTimestamp")
    created_at = parse_timestamp(created) if created else None
    return PlacementRecord(metadata["name"], metadata["uid"], metadata["resourceVersion"], assignments, created_at)


async def store(
    session: Session,
    namespace: str,
    name: str,
    assignments: Sequence[Assignment],
    *,
    owners: Sequence[Object] = (),
    may_write: Callable[[], bool] = lambda: True,
    on_failure: OnFailure = lambda failure, seconds: None,
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
        on_failure: given each failed attempt that is repeated.
    """
    body = build_placement_record(namespace, name, assignments)
    if owners:
        body["metadata"]["ownerReferences"] = list(owners)
    try:
        created = await _create(session, namespace, name, body, may_write, on_failure)
    except NotWritten as error:
        return [], [Refused(a, str(error), by_content=False) for a in assignments]
    except ApiError as error:
        concerns_all = isinstance(error, Unauthorized | Forbidden | NotFound)
        if len(assignments) == 1 or concerns_all:
            return [], [Refused(a, error.message, by_content=not concerns_all) for a in assignments]
        half = len(assignments) // 2
        stored: list[PlacementRecord] = []
        refused: list[Refused] = []
        for suffix, part in (("a", assignments[:half]), ("b", assignments[half:])):
            more, worse = await store(
                session, namespace, name + suffix, part, owners=owners, may_write=may_write, on_failure=on_failure
            )
            stored += more
            refused += worse
        return stored, refused
    metadata = created["metadata"]
    return [PlacementRecord(name, metadata["uid"], metadata["resourceVersion"], tuple(assignments))], []


async def _create(
    session: Session,
    namespace: str,
    name: str,
    body: Object,
    may_write: Callable[[], bool],
    on_failure: OnFailure,
) -> Object:
    """POST until the outcome is known; an object of that name with exactly our assignments is ours."""

    async def write() -> Object:
        return await session.request("POST", POD_RESERVATIONS.path(namespace), body=body, attempts=1)

    async def read_back() -> Object | None:
        try:
            return await session.get(POD_RESERVATIONS.path(namespace, name))
        except NotFound:
            return None

    found = await write_until_known(
        write, read_back, may_write=may_write, settings=_RETRY, on_failure=on_failure, name="placement-record"
    )
    if _uids(found) != _uids(body):
        raise Conflict(409, "AlreadyExists", f"a PodReservation {name} with other content exists")
    return found


def _uids(record: Object) -> list[str]:
    return [str(assignment["uid"]) for assignment in record["spec"].get("assignments", ())]


async def discard(session: Session, namespace: str, record: PlacementRecord) -> bool:
    """Delete a record whose last assignment is released; False if that is not known to have worked (repeat later)."""
    path = POD_RESERVATIONS.path(namespace, record.name)
    version = record.resource_version
    for _ in range(2):
        point("before-discard")
        try:
            await session.delete(path, uid=record.uid, resource_version=version)
            point("after-discard")
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
