"""Events: deduplicated, written at a limited rate by a task of their own, and never a reason to wait."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from concerto.api.timestamps import format_micro_timestamp
from concerto.kube.errors import ApiError, KubeError, NotFound, OutcomeUnknown
from concerto.kube.fair_places import FairPlaces
from concerto.kube.namespace_lanes import NamespaceLanes
from concerto.kube.place_shares import Hold
from concerto.kube.request_bodies import Object
from concerto.kube.resources import EVENTS
from concerto.kube.session import Session

logger = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
_MAX_NOTE_BYTES = 1024
"""Of UTF-8. The API server refuses more (its message says characters), and the event would be lost."""


@dataclass(frozen=True)
class EventSettings:
    """How events are written.

    Attributes:
        rate_per_second: maximal rate of writes.
        busy_rate_per_second: maximal rate while the component has more important writes to send.
        burst_seconds: writes of so much time are sent together, because waking up for each costs as much as writing it.
        concurrency: writes in flight, for known namespaces; see `FairPlaces`.
        queue_length: maximal number of events that wait to be written. Beyond it, a namespace loses one of which most
            wait.
        max_series: maximal number of series that a repetition can still join; about 2 KiB each.
        series_window_seconds: the same event recorded again within this time of the last joins its series.
        series_interval_seconds: between two writes of one series' count.
    """

    rate_per_second: float = 400.0
    busy_rate_per_second: float = 40.0
    burst_seconds: float = 0.1
    concurrency: int = 16
    queue_length: int = 10_000
    max_series: int = 4096
    series_window_seconds: float = 360.0
    series_interval_seconds: float = 30.0


@dataclass(slots=True)
class _Series:
    """One event that was recorded once or many times."""

    key: tuple[str, ...]
    event: Object
    path: str
    count: int = 1
    written_count: int = 0  # 0: the event has not been created yet
    recorded_at: float = 0.0  # monotonic
    written_at: float = field(default=float("-inf"))
    last_observed: float = 0.0  # epoch
    pending: bool = False  # in the queue or in flight; both at once would create it twice

    @property
    def namespace(self) -> str:
        """Where the event lives."""
        return str(self.event["metadata"]["namespace"])


class EventRecorder:
    """Writes events of ``events.k8s.io/v1`` as kube-scheduler does.

    The same (object, type, reason, action, note, related) within the window is one Event with a series, whose count is
    written at once the first time and then at most every interval.

    Attributes:
        written: writes that the API server took.
        dropped: events that were not written: the queue was full, or the API server refused them or did not answer.
    """

    def __init__(
        self,
        session: Session,
        component: str,
        instance: str,
        *,
        settings: EventSettings | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing is written unless `run` runs.

        Args:
            session: the way to the API server.
            component: written as ``reportingController``, such as ``concerto-scheduler``.
            instance: written as ``reportingInstance``.
            settings: rates and bounds.
            busy: whether the lower rate applies now.
        """
        self.written = 0
        self.dropped = 0
        self._session = session
        self._reporter = Reporter(component, instance)
        self._settings = settings or EventSettings()
        self._busy = busy
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()  # least recently recorded first
        self._creations: NamespaceLanes[_Series] = NamespaceLanes()
        self._counts: NamespaceLanes[_Series] = NamespaceLanes()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._places = FairPlaces(self._settings.concurrency)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def record(
        self,
        regarding: Mapping[str, Any],
        *,
        type: EventType = "Normal",
        reason: str,
        note: str,
        action: str,
        related: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an event about an object. Returns at once; may drop the event, and never raises for that.

        Args:
            regarding: the object, with apiVersion, kind and metadata (name, uid).
            type: Normal or Warning.
            reason: why, CamelCase.
            note: a sentence for a person; cut at 1,024 bytes.
            action: what was done or tried, CamelCase.
            related: another object that is concerned.
        """
        now, moment = time.monotonic(), time.time()
        about, other = build_reference(regarding), build_reference(related) if related else None
        note = _cut(note)
        key = (
            about.get("uid") or f"{about['kind']}/{about.get('namespace')}/{about['name']}",
            type, reason, action, note, (other or {}).get("uid") or (other or {}).get("name", ""),
        )  # fmt: skip
        series = self._series.get(key)
        if series is not None and now - series.recorded_at <= self._settings.series_window_seconds:
            series.count += 1
        else:
            occurrence = Occurrence(about, type, reason, note, action, other)
            event = build_event(occurrence, self._reporter, now=moment, suffix=f"{random.getrandbits(24):06x}")
            metadata = event["metadata"]
            series = _Series(key, event, EVENTS.path(metadata["namespace"], metadata["name"]))
            self._series[key] = series
        self._series.move_to_end(key)
        series.recorded_at, series.last_observed = now, moment
        if self._is_due(series, now):
            self._enqueue(series)
        if len(self._series) > self._settings.max_series:
            self._series.popitem(last=False)  # one that waits to be written is still in the queue

    async def run(self) -> None:
        """Write what is recorded, until cancelled."""
        next_write = 0.0
        sweep_at = 0.0
        is_busy, ask_at = False, 0.0
        try:
            while True:
                if not self._has_turn:
                    self._work.clear()
                    try:
                        async with asyncio.timeout(self._settings.series_interval_seconds):
                            await self._work.wait()
                    except TimeoutError:
                        pass
                now = time.monotonic()
                if now >= sweep_at:
                    self._sweep(now)
                    sweep_at = now + self._settings.series_interval_seconds
                if not self._has_turn:
                    continue
                now = time.monotonic()
                if now >= ask_at:  # to answer may take as long as there are namespaces
                    is_busy, ask_at = self._busy(), now + self._settings.burst_seconds
                is_slower = is_busy and not self._draining
                rate = self._settings.busy_rate_per_second if is_slower else self._settings.rate_per_second
                next_write = max(next_write, now) + 1.0 / rate
                if next_write - now > self._settings.burst_seconds:
                    await asyncio.sleep(next_write - now)
                series = self._creations.take() or self._counts.take()
                if series is not None:  # it was not dropped meanwhile
                    self._begin(series)
        finally:
            for task in self._in_flight:
                task.cancel()

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait until everything recorded so far is written, counts of series included (`run` has to be running).

        Returns:
            whether it was, in time.
        """
        self._draining = True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
                # Only now, so that no count pushes an event out of the queue
                for series in list(self._series.values()):
                    if series.count != series.written_count:
                        self._enqueue(series)
                await self._idle.wait()
        except TimeoutError:
            return False
        finally:
            self._draining = False
        return True

    @property
    def _has_turn(self) -> bool:
        return self._creations.has_turn or self._counts.has_turn

    def _begin(self, series: _Series) -> None:
        place = self._places.take_now(series.namespace)
        if place is None:  # the others of the namespace wait in the queue, so that it stays as short as it is to be
            self._creations.pause(series.namespace)
            self._counts.pause(series.namespace)
        task = asyncio.create_task(self._write_in_turn(series, place))
        self._in_flight.add(task)
        task.add_done_callback(self._written)

    async def _write_in_turn(self, series: _Series, place: Hold | None) -> None:
        if place is None:
            place = await self._places.take(series.namespace)
            self._creations.resume(series.namespace)
            self._counts.resume(series.namespace)
            self._work.set()
        try:
            await self._write(series)
        finally:
            self._places.give_back(place)

    def _is_due(self, series: _Series, now: float) -> bool:
        if series.written_count <= 1:  # not created yet, or the first repetition
            return series.count != series.written_count
        return series.count != series.written_count and (
            now - series.written_at >= self._settings.series_interval_seconds
        )

    def _enqueue(self, series: _Series) -> None:
        if series.pending:
            return
        if len(self._creations) + len(self._counts) >= self._settings.queue_length:
            # A count says less than an event that is not there yet, and the next sweep brings it up to date
            if self._counts:
                self._counts.take_of_most().pending = False
            elif series.written_count:
                return
            else:
                lost = self._creations.take_of_most()
                lost.pending = False
                self._series.pop(lost.key, None)  # or the next sweep would push out another for it
                self.dropped += 1
        (self._counts if series.written_count else self._creations).put(series.namespace, series.key, series)
        series.pending = True
        self._idle.clear()
        self._work.set()

    def _sweep(self, now: float) -> None:
        """Queue the counts that have not been written for an interval, and drop series that are over."""
        for series in list(self._series.values()):
            if self._is_due(series, now):
                self._enqueue(series)
            elif not series.pending and now - series.recorded_at > self._settings.series_window_seconds:
                del self._series[series.key]

    async def _write(self, series: _Series) -> None:
        count = series.count
        series_fields = {"count": count, "lastObservedTime": format_micro_timestamp(series.last_observed)}
        try:
            if series.written_count:
                try:
                    await self._session.patch(series.path, {"series": series_fields})
                except NotFound:  # its time to live was over
                    series.written_count = 0
            if not series.written_count:
                await self._create({**series.event, "series": series_fields} if count > 1 else series.event)
            self.written += 1
        except KubeError as error:
            # A namespace that is being deleted takes no events, and nobody can do anything about that
            is_over = isinstance(error, ApiError) and (error.status == 404 or "being terminated" in str(error))
            self.dropped += not is_over
            level = logging.DEBUG if isinstance(error, ApiError) and error.status in (403, 404) else logging.WARNING
            logger.log(level, "event %s not written: %s", series.path, error)
        finally:
            series.pending = False
            series.written_count = count
            series.written_at = time.monotonic()
            if self._is_due(series, series.written_at):
                self._enqueue(series)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if not self._creations and not self._counts and not self._in_flight:
            self._idle.set()

    async def _create(self, event: Object) -> None:
        path = EVENTS.path(event["metadata"]["namespace"])
        try:
            await self._session.create(path, event)
        except OutcomeUnknown:
            try:
                await self._session.create(path, event)
            except ApiError as error:
                if error.reason != "AlreadyExists":  # which is what the first attempt was for
                    raise


def build_reference(target: Mapping[str, Any]) -> Object:
    """The ObjectReference to an object."""
    metadata = target["metadata"]
    reference = {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "name": metadata["name"],
        "namespace": metadata.get("namespace"),
        "uid": metadata.get("uid"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {key: value for key, value in reference.items() if value}


def _cut(note: str) -> str:
    encoded = note.encode(errors="replace")
    if len(encoded) <= _MAX_NOTE_BYTES:
        return note
    return encoded[: _MAX_NOTE_BYTES - len("…".encode())].decode(errors="ignore") + "…"


@dataclass(frozen=True)
class Reporter:
    """Who reports an event: ``reportingController`` and ``reportingInstance``."""

    component: str
    instance: str


@dataclass(frozen=True)
class Occurrence:
    """What an event reports.

    Attributes:
        regarding: reference to what it is about; events about cluster scoped objects live in ``default``.
        type: Normal or Warning.
        reason: why, CamelCase.
        note: a sentence for a person.
        action: what was done or tried, CamelCase.
        related: reference to another object; None without one.
    """

    regarding: Object
    type: EventType
    reason: str
    note: str
    action: str
    related: Object | None = None


def build_event(occurrence: Occurrence, reporter: Reporter, *, now: float, suffix: str) -> Object:
    """An Event about one occurrence.

    Args:
        occurrence: what has happened.
        reporter: who reports it.
        now: seconds since the epoch.
        suffix: makes the name differ from others of the same microsecond.
    """
    regarding = occurrence.regarding
    event: Object = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {
            # At most 253 characters, of which the time takes 14 and the suffix 6; no dot follows on a dash or a dot
            "name": f"{regarding['name'][:230].rstrip('-.')}.{int(now * 1e6):x}{suffix}",
            "namespace": regarding.get("namespace") or "default",
        },
        "eventTime": format_micro_timestamp(now),
        "reportingController": reporter.component,
        "reportingInstance": reporter.instance[:128],
        "action": occurrence.action,
        "reason": occurrence.reason,
        "regarding": regarding,
        "note": occurrence.note,
        "type": occurrence.type,
    }
    if occurrence.related:
        event["related"] = occurrence.related
    return event
