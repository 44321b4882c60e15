"""Turns: for whom pods to evict are searched next, among those that wait for a search."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

_K = TypeVar("_K", bound=Hashable)

_PRUNE_SECONDS = 1.0
"""Between two looks for keys that wait for a search, and need none any more."""


@dataclass(frozen=True)
class TurnSettings:
    """How long keys wait.

    Attributes:
        max_turn_seconds: keys that have waited for so long go before those of a higher priority.
        idle_seconds: how long a key rests after a search in vain; doubles with each further one.
        max_idle_seconds: the doubling ends there.
    """

    max_turn_seconds: float = 10.0
    idle_seconds: float = 1.0
    max_idle_seconds: float = 4.0


class Turns(Generic[_K]):
    """Keys that wait for their turn, each since a time, and until when each rests.

    Args:
        settings: how long keys wait.
        clock: seconds since the epoch.
        priority: of a key that waits.
        still_waits: whether the key still needs a turn, now or later.
    """

    def __init__(
        self,
        settings: TurnSettings,
        clock: Callable[[], float],
        priority: Callable[[_K], int],
        still_waits: Callable[[_K], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._priority = priority
        self._still_waits = still_waits
        self._since: dict[_K, float] = {}
        self._not_before: dict[_K, float] = {}
        self._idle: dict[_K, float] = {}  # the last wait after a search in vain
        self._pruned_at = -math.inf
        self._work = asyncio.Event()

    def __contains__(self, key: _K) -> bool:
        """Whether the key waits for its turn."""
        return key in self._since

    def __len__(self) -> int:
        """How many keys wait for their turns."""
        return len(self._since)

    def add(self, key: _K) -> None:
        """The key waits for its turn, from now on if it did not before."""
        self._since.setdefault(key, self._clock())
        self._work.set()

    def rest(self, key: _K, seconds: float) -> None:
        """The key has no turn for so long."""
        self._not_before[key] = self._clock() + seconds

    def seconds_idle(self, key: _K) -> float:
        """How long the key is to rest after one more search in vain."""
        settings = self._settings
        self._idle[key] = wait = min(2 * self._idle.get(key, settings.idle_seconds / 2), settings.max_idle_seconds)
        return wait

    def end_idle(self, key: _K) -> None:
        """A search has found something."""
        self._idle.pop(key, None)

    def next_due(self) -> _K | None:
        """The key that has waited for too long, or else that of the highest priority; of those the longest due.

        Otherwise many keys of a high priority for which nothing is found would keep all others from their turn.
        """
        now = self._clock()
        since = {key: max(at, self._not_before.get(key, at)) for key, at in self._since.items()}
        due = sorted((key for key in since if since[key] <= now), key=since.__getitem__)
        if due and now - since[due[0]] >= self._settings.max_turn_seconds:
            return due[0]
        return max(due, key=self._priority, default=None)

    async def serve(self, search: Callable[[_K], Awaitable[None]], before_wait: Callable[[], None]) -> None:
        """Give each key its turn until cancelled.

        Args:
            search: what is done in a turn; the key does not wait any more then. Its exceptions are logged.
            before_wait: called each time that no key is due.
        """
        while True:
            self._prune()
            key = self.next_due()
            if key is None:
                before_wait()
                await self._wait()
                continue
            del self._since[key]
            try:
                await search(key)
            except Exception:
                logger.exception("the search for pods to evict has failed: this is a fault of Concerto")
            await asyncio.sleep(0)  # searches that end at once, one after another, would hold up all else

    def _prune(self) -> None:
        """A turn for each key that needs none any more would keep the others from theirs."""
        now = self._clock()
        if now - self._pruned_at >= _PRUNE_SECONDS:
            self._pruned_at = now
            self._since = {key: at for key, at in self._since.items() if self._still_waits(key)}

    async def _wait(self) -> None:
        """Return when a key may be due."""
        self._work.clear()
        now = self._clock()
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        kept = self._not_before.keys() | self._since.keys()
        self._idle = {key: wait for key, wait in self._idle.items() if key in kept or self._still_waits(key)}
        times = [self._not_before.get(key, now) for key in self._since]
        try:
            async with asyncio.timeout(min(times) - now if times else None):
                await self._work.wait()
        except TimeoutError:
            pass
