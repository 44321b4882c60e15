"""Reports on many objects: which are written next, how many of them, and their writes.

First reports come before others, which have a part of the writes, and namespaces have turns: many reports of one
namespace keep others from theirs neither while they wait nor while the API server does not answer to them.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from concerto.api.counters import add_count
from concerto.controllers.scheduling.due_lanes import Due, DueLanes
from concerto.kube.fair_places import FairPlaces

logger = logging.getLogger(__name__)

_K = TypeVar("_K", bound=Hashable)

_MIN_LEFT_SECONDS = 1.0
"""In which reports are to be made for which the time is over."""
_MAX_COUNTED_SECONDS = 1.0
"""A wait that took longer than it was to take allows no more reports than one of so long."""
_OF_OTHERS = 0.1
"""Part of the reports at a time that are not first ones, if so many are due: else ever new objects would keep them."""


@dataclass(frozen=True)
class ReportPace:
    """How many reports are made.

    Attributes:
        tick_seconds: how often reports that are due are looked for.
        min_per_second: reports however few wait, and while other writes are to come first.
        max_per_second: reports however many wait.
        first_within_seconds: from when an object's first report is due until it is made, as far as ``max_per_second``
            allows: the more objects wait, the more reports are made.
        max_concurrent: writes in flight, for known namespaces; see `FairPlaces`.
        max_started: writes of one namespace that are in flight or wait for their place.
        max_started_in_all: the same of all namespaces; each takes about 3 KiB of memory. One namespace has no more of
            them than are left to others.
    """

    tick_seconds: float = 0.5
    min_per_second: float = 80.0
    max_per_second: float = 500.0
    first_within_seconds: float = 45.0
    max_concurrent: int = 16
    max_started: int = 500
    max_started_in_all: int = 4000


@dataclass(frozen=True)
class ReportLane:
    """Reports that have turns together.

    Attributes:
        namespace: of the objects.
        is_first: whether nothing was reported on them before.
        may_wait: whether they wait for the time that `ReportsInTurn` is given as ``delay``.
    """

    namespace: str
    is_first: bool
    may_wait: bool = False


class ReportsInTurn(Generic[_K]):
    """Objects to report on, by key. An object is put again when there is news of it.

    Args:
        pace: how many reports are made.
        clock: seconds since the epoch.
        holds_back: whether other writes are to come first.
        delay: for how many seconds longer reports wait that may.
        prepare: called before each look for reports that are due.
    """

    def __init__(
        self,
        pace: ReportPace,
        clock: Callable[[], float],
        holds_back: Callable[[], bool] = lambda: False,
        delay: Callable[[], float] = lambda: 0.0,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._pace = pace
        self._clock = clock
        self._holds_back = holds_back
        self._delay = delay
        self._prepare = prepare
        self._lanes: DueLanes[_K, ReportLane] = DueLanes()
        self._served: dict[str, int] = {}  # namespaces in which reports are left, and when each had its last turn
        self._numbers = count(1)
        self._rest = 0.0  # of a report
        self._places = FairPlaces(pace.max_concurrent)
        self._started: Counter[str] = Counter()  # writes, by namespace
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many objects are to be reported on."""
        return len(self._lanes)

    def put(self, key: _K, lane: ReportLane, due_at: float) -> None:
        """Report on the object, from that time on."""
        self._lanes.put(key, lane, due_at)

    def drop(self, key: _K) -> None:
        """There is nothing to report on the object."""
        self._lanes.drop(key)

    async def run(self, write: Callable[[_K], Awaitable[None]]) -> None:
        """Have what is due written until cancelled; what `write` raises is logged."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        try:
            while True:
                await asyncio.sleep(self._pace.tick_seconds)
                now = loop.time()
                for key, lane in self.take(now - before):
                    self._start(key, lane.namespace, write)
                before = now
        finally:
            for task in self._tasks:
                task.cancel()

    def take(self, seconds: float) -> list[tuple[_K, ReportLane]]:
        """What is to be written now, so long after the last time; it is not to be reported on any more."""
        self._prepare()
        now, found = self._clock(), list[tuple[_K, ReportLane]]()
        firsts, others = self._next_of_lanes()
        allowed = self._rest + self._per_second(now, firsts) * min(seconds, _MAX_COUNTED_SECONDS)
        limit = int(allowed)
        self._rest = allowed - limit
        of_firsts = limit - int(limit * _OF_OTHERS)
        self._take(now, firsts, of_firsts, found)
        are_left = len(found) == of_firsts
        self._take(now, others, limit, found)
        if are_left and len(found) < limit:
            self._take(now, self._next_of_lanes()[0], limit, found)
        namespaces = {lane.namespace for lane in self._lanes}
        self._served = {each: turn for each, turn in self._served.items() if each in namespaces}
        return found

    # --- inside

    def _next_of_lanes(self) -> tuple[list[Due[_K, ReportLane]], list[Due[_K, ReportLane]]]:
        """What is due next in each lane: of first reports, and of others."""
        firsts: list[Due[_K, ReportLane]] = []
        others: list[Due[_K, ReportLane]] = []
        for due in self._lanes.firsts():
            (firsts if due.lane.is_first else others).append(due)
        return firsts, others

    def _per_second(self, now: float, firsts: Sequence[Due[_K, ReportLane]]) -> float:
        """So many that what waits for its first report has it in time."""
        pace = self._pace
        if self._holds_back():
            return pace.min_per_second
        waiting = sum(self._lanes.size(due.lane) for due in firsts)
        waited = now - min((due.due_at for due in firsts), default=now)
        needed = waiting / max(pace.first_within_seconds - waited, _MIN_LEFT_SECONDS)
        return min(max(needed, pace.min_per_second), pace.max_per_second)

    def _take(
        self, now: float, lined_up: Sequence[Due[_K, ReportLane]], limit: int, found: list[tuple[_K, ReportLane]]
    ) -> None:
        """Take reports until there are so many; the namespace is next whose last turn was longest ago."""
        if len(found) >= limit:
            return
        pace, delay = self._pace, self._delay()
        started = self._started + Counter(lane.namespace for _, lane in found)
        left = pace.max_started_in_all - started.total()

        def turn(due: Due[_K, ReportLane]) -> tuple[int, float, int, Due[_K, ReportLane]]:
            return self._served.get(due.lane.namespace, 0), due.due_at, next(self._numbers), due

        def is_due(due: Due[_K, ReportLane]) -> bool:
            return due.due_at + (delay if due.lane.may_wait else 0.0) <= now

        turns = [turn(due) for due in lined_up if is_due(due)]
        heapq.heapify(turns)
        while turns and len(found) < limit:
            last_turn, _, _, due = heapq.heappop(turns)
            namespace = due.lane.namespace
            if last_turn != self._served.get(namespace, 0):
                heapq.heappush(turns, turn(due))  # another lane of the namespace has had its turn
            elif started[namespace] < min(pace.max_started, left):
                started[namespace] += 1
                left -= 1
                self._served[namespace] = next(self._numbers)
                self._lanes.drop(due.key)
                found.append((due.key, due.lane))
                if (following := self._lanes.first(due.lane)) is not None and is_due(following):
                    heapq.heappush(turns, turn(following))

    def _start(self, key: _K, namespace: str, write: Callable[[_K], Awaitable[None]]) -> None:
        async def write_in_turn() -> None:
            async with self._places.place(namespace):
                await write(key)

        task = asyncio.create_task(write_in_turn())
        self._tasks.add(task)
        self._started[namespace] += 1
        task.add_done_callback(lambda task: self._on_end(task, namespace))

    def _on_end(self, task: asyncio.Task[None], namespace: str) -> None:
        self._tasks.discard(task)
        add_count(self._started, namespace, -1)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an event or status was not written: internal error", exc_info=error)
