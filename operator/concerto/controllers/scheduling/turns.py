"""Turns: for whom pods to evict are searched next, among those that wait for a search."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from itertools import count, islice
from typing import Generic, TypeVar

from concerto.api.doubling import doubled_wait
from concerto.controllers.scheduling.due_lanes import Due, DueLanes

logger = logging.getLogger(__name__)

_K = TypeVar("_K", bound=Hashable)
_Lane = tuple[int, str]
"""Priority and namespace."""

_PRUNE_SECONDS = 1.0
"""Between two looks for keys that wait for a search, and need none any more."""
_MAX_PRUNED = 2000
"""Keys of which each such look takes care: 10 ms."""
_MAX_COMPARED = 2000
"""Namespaces that are compared to find out whose turn it is, while keys that need no search are passed over, before
others have the event loop: 10 ms."""


@dataclass(frozen=True)
class TurnSettings:
    """How long keys wait.

    Attributes:
        max_turn_seconds: of keys that have waited for so long, each second turn goes to one, whatever its priority.
        idle_seconds: how long a key rests after a search in vain; doubles with each further one.
        max_idle_seconds: the doubling ends there.
    """

    max_turn_seconds: float = 10.0
    idle_seconds: float = 1.0
    max_idle_seconds: float = 4.0


class Turns(Generic[_K]):
    """Keys that wait for their turn, each since a time, and until when each rests.

    The key of the highest priority is next. Namespaces of one priority take turns, and in a namespace the key is next
    that is due for longest. A turn costs about the same however many keys wait.

    Args:
        settings: how long keys wait.
        clock: seconds since the epoch.
        priority: of a key that waits.
        namespace: of a key.
        still_waits: whether the key still needs a turn, now or later.
    """

    def __init__(
        self,
        settings: TurnSettings,
        clock: Callable[[], float],
        priority: Callable[[_K], int],
        namespace: Callable[[_K], str],
        still_waits: Callable[[_K], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._priority = priority
        self._namespace = namespace
        self._still_waits = still_waits
        self._waiting: DueLanes[_K, _Lane] = DueLanes()
        self._numbers = count(1)
        self._served: dict[tuple[int | None, str], int] = {}  # by priority (None: overdue) and namespace, its last turn
        self._was_overdue = False
        self._not_before: dict[_K, float] = {}
        self._rests: list[tuple[float, int, _K]] = []
        self._idle: OrderedDict[_K, int] = OrderedDict()  # how many searches in a row were in vain
        self._pruned_at = -math.inf
        self._work = asyncio.Event()

    def __contains__(self, key: _K) -> bool:
        """Whether the key waits for its turn."""
        return key in self._waiting

    def __len__(self) -> int:
        """How many keys wait for their turns."""
        return len(self._waiting)

    def add(self, key: _K) -> None:
        """The key waits for its turn, from now on if it did not before."""
        known, priority = self._waiting.get(key), self._priority(key)
        if known is None:
            now = self._clock()
            self._put(key, max(now, self._not_before.get(key, now)), priority)
        else:
            self._put(key, known.due_at, priority)
        self._work.set()

    def rest(self, key: _K, seconds: float) -> None:
        """The key has no turn for so long."""
        until = self._clock() + seconds
        self._not_before[key] = until
        heapq.heappush(self._rests, (until, next(self._numbers), key))
        if (known := self._waiting.get(key)) is not None:
            self._waiting.put(key, known.lane, max(known.due_at, until))

    def seconds_idle(self, key: _K) -> float:
        """How long the key is to rest after one more search in vain."""
        searches = self._idle.get(key, 0)
        self._idle[key] = searches + 1
        return doubled_wait(self._settings.idle_seconds, self._settings.max_idle_seconds, searches)

    def end_idle(self, key: _K) -> None:
        """A search has found something."""
        self._idle.pop(key, None)

    async def serve(self, search: Callable[[_K], Awaitable[None]], tidy: Callable[[], None]) -> None:
        """Give each key its turn until cancelled.

        Args:
            search: what is done in a turn; the key does not wait any more then. Its exceptions are logged.
            tidy: called once a second while keys are due, and each time that none is: forgets what is not needed.
        """
        compared = 0
        while True:
            if self._prune():
                tidy()
            waiting = self._next(self._clock())
            if waiting is None:
                tidy()
                await self._wait()
                continue
            self._waiting.drop(waiting.key)
            if self._still_waits(waiting.key):
                self._note_turn(waiting)
                try:
                    await search(waiting.key)
                except Exception:
                    logger.exception("the search for pods to evict was stopped by an internal error")
            elif (compared := compared + 10 + self._waiting.number_of_lanes) < _MAX_COMPARED:
                continue
            compared = 0
            await asyncio.sleep(0)  # searches that end at once, one after another, would hold up all else

    # --- inside

    def _next(self, now: float) -> Due[_K, _Lane] | None:
        """The key whose turn is next; None if all rest.

        Each second turn goes to a key that has waited for too long, if there is one. Otherwise many keys of a high
        priority for which nothing is found would keep all others from their turn, and the other way round.
        """
        due = [waiting for waiting in self._waiting.firsts() if waiting.due_at <= now]
        overdue = [waiting for waiting in due if now - waiting.due_at >= self._settings.max_turn_seconds]
        if overdue and not self._was_overdue:
            candidates, turns_of = overdue, None
        else:
            turns_of = max((waiting.lane[0] for waiting in due), default=0)
            candidates = [waiting for waiting in due if waiting.lane[0] == turns_of]
        return min(
            candidates,
            key=lambda waiting: (self._served.get((turns_of, waiting.lane[1]), 0), waiting.due_at),
            default=None,
        )

    def _note_turn(self, waiting: Due[_K, _Lane]) -> None:
        waited, (priority, namespace) = self._clock() - waiting.due_at, waiting.lane
        self._was_overdue = not self._was_overdue and waited >= self._settings.max_turn_seconds
        # Turns by priority do not count among those that waited for too long: they may be of a higher priority
        for turn in (priority, None) if self._was_overdue else (priority,):
            self._served.pop((turn, namespace), None)
            self._served[turn, namespace] = next(self._numbers)
            if len(self._served) > _MAX_PRUNED:
                del self._served[next(iter(self._served))]

    def _put(self, key: _K, due_at: float, priority: int) -> None:
        self._waiting.put(key, (priority, self._namespace(key)), due_at)

    def _prune(self) -> bool:
        """Forget some of the keys that need no turn any more; False if it is too early for that."""
        now = self._clock()
        while self._rests and self._rests[0][0] <= now:
            until, _, key = heapq.heappop(self._rests)
            if self._not_before.get(key) == until:
                del self._not_before[key]
        if now - self._pruned_at < _PRUNE_SECONDS:
            return False
        self._pruned_at = now
        for key in self._waiting.longest_not_looked_at(_MAX_PRUNED):
            if not self._still_waits(key):
                self._waiting.drop(key)
        for key in list(islice(self._idle, _MAX_PRUNED)):
            if key in self._waiting or key in self._not_before or self._still_waits(key):
                self._idle.move_to_end(key)
            else:
                del self._idle[key]
        return True

    async def _wait(self) -> None:
        """Return when a key may be due."""
        self._work.clear()
        first = min((waiting.due_at for waiting in self._waiting.firsts()), default=None)
        try:
            async with asyncio.timeout(None if first is None else max(0.0, first - self._clock())):
                await self._work.wait()
        except TimeoutError:
            pass
