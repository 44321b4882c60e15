"""Limits how much is done at a time, so that no namespace keeps others from their places."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import takewhile

PlaceOf = Callable[[str], AbstractAsyncContextManager[None]]
"""A place for work that is for the namespace: entering waits for it, leaving gives it back."""
_Lane = frozenset[str]
"""The namespaces that work is done for."""
_MAX_REMEMBERED = 1000
"""Slow namespaces that are remembered beside those whose work goes on."""


@dataclass(eq=False, slots=True)
class _Pool:
    """Places that are given by one rule.

    Attributes:
        free: places that nobody holds; negative where more are held than there are.
        held: places by namespace.
        waiting: who waits for one, and whose turn is next first.
    """

    free: int
    held: Counter[str] = field(default_factory=Counter)
    waiting: OrderedDict[_Lane, deque[asyncio.Future[_Hold]]] = field(default_factory=OrderedDict)

    def add(self, lane: _Lane) -> None:
        """One more place is held."""
        self.free -= 1
        self.held.update(lane)

    def remove(self, lane: _Lane) -> None:
        """One place less is held."""
        self.free += 1
        for namespace in lane:
            self.held[namespace] -= 1
            if not self.held[namespace]:
                del self.held[namespace]


@dataclass(eq=False, slots=True)
class _Hold:
    """A place that is held.

    Attributes:
        lane: for whom.
        pool: that the place is of.
        since: seconds.
        blamed: namespaces that are slow because of it.
    """

    lane: _Lane
    pool: _Pool
    since: float
    blamed: _Lane = frozenset()


class FairPlaces:
    """Places, each of which is held by one piece of work. Those who wait have them in turn by namespace.

    A namespace gets a place only while it has fewer than are free. So it has half of all places if it is the only one,
    and if its work never ends, others have half of the rest. Several such namespaces leave some places, too: of 32, the
    first one has 16, the next one 8, then 4, 2 and 1.

    However many they are, they hold up others only for a while: a namespace with work that has lasted for
    ``slow_seconds`` is slow, until none of it does and other work of it ends sooner. Places for slow namespaces are
    others, half as many, which they have by the same rule. The places that they held before are free for other
    namespaces, as far as never more than half as many again are held in all. Those places are for namespaces whose work
    has lasted for less than half of the time.

    For work that is for several namespaces, all of them have to have fewer. Where each of them always has other work,
    that may never be so at one time. So one place at a time goes to such work that others were served before as often
    as there are places, whatever its namespaces hold. If it is slow, that is due to those of its namespaces that were
    slow before; to all of them if none was.

    Args:
        places: held at a time.
        slow_seconds: longer than most work takes where the API server is slow to answer everybody.
    """

    def __init__(self, places: int, *, slow_seconds: float = 5.0) -> None:
        self._places = places
        self._slow_seconds = slow_seconds
        self._usual, self._of_slow = _Pool(places), _Pool(max(1, places // 2))
        self._holds: dict[_Hold, None] = {}
        self._recent: dict[_Hold, None] = {}  # of these, those that have not lasted for long; the longest ones first
        self._slow: dict[str, int] = {}  # slow namespaces, and how much of their work lasts
        self._passed_over: dict[_Lane, int] = {}  # how often, of those that wait for several namespaces
        self._beyond: _Hold | None = None  # the place that is given whatever its namespaces hold
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def place(self, *namespaces: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the context is open; it counts for each of the namespaces."""
        hold = await self._take(frozenset(namespaces))
        try:
            yield
        finally:
            self._give_back(hold)

    def is_slow(self, namespaces: Iterable[str]) -> bool:
        """Whether one of the namespaces has work that has lasted for long, and none since that has ended sooner."""
        self._note_slow()
        return self._are_slow(namespaces)

    def _are_slow(self, namespaces: Iterable[str]) -> bool:
        return not self._slow.keys().isdisjoint(namespaces)

    async def _take(self, lane: _Lane) -> _Hold:
        self._note_slow()
        waiting = self._pool_of(lane).waiting
        if lane not in waiting and self._may_have(lane):
            self._pass_over(self._passed_over)
            return self._hold(lane)
        turn: asyncio.Future[_Hold] = asyncio.get_running_loop().create_future()
        waiting.setdefault(lane, deque()).append(turn)
        if len(lane) > 1:
            self._passed_over.setdefault(lane, 0)
        self._look_again()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has had its turn meanwhile
                self._give_back(turn.result())
            raise

    # --- who may have a place

    def _pool_of(self, lane: _Lane) -> _Pool:
        return self._of_slow if self._are_slow(lane) else self._usual

    def _free_in(self, pool: _Pool) -> int:
        """Places of the pool that are free, as far as not too many are held in all."""
        return pool.free + min(0, self._of_slow.free) if pool is self._usual else pool.free

    def _may_have(self, lane: _Lane) -> bool:
        pool = self._pool_of(lane)
        free = self._free_in(pool)
        if any(pool.held[namespace] >= free for namespace in lane):
            return False
        return pool is self._of_slow or len(self._holds) < self._places or not self._is_suspect(lane)

    def _is_suspect(self, lane: _Lane) -> bool:
        """Whether its work lasts, and may be slow before long."""
        until = asyncio.get_running_loop().time() - self._slow_seconds / 2
        lasting = takewhile(lambda hold: hold.since <= until, self._recent)
        return not all(lane.isdisjoint(hold.lane) for hold in lasting)

    def _is_overdue(self, lane: _Lane) -> bool:
        is_free = self._free_in(self._pool_of(lane)) > 0
        return self._beyond is None and is_free and self._passed_over.get(lane, 0) >= self._places

    # --- places that are held

    def _hold(self, lane: _Lane) -> _Hold:
        hold = _Hold(lane, self._pool_of(lane), asyncio.get_running_loop().time())
        hold.pool.add(lane)
        self._holds[hold] = self._recent[hold] = None
        return hold

    def _give_back(self, hold: _Hold) -> None:
        self._note_slow()
        hold.pool.remove(hold.lane)
        del self._holds[hold]
        if self._beyond is hold:
            self._beyond = None
        for namespace in hold.blamed:
            self._slow[namespace] -= 1
        if hold in self._recent:
            del self._recent[hold]
            recovered = [namespace for namespace in hold.lane if self._slow.get(namespace) == 0]
            for namespace in recovered:
                del self._slow[namespace]
            if recovered:
                self._sort_waiting()
        self._serve()

    def _note_slow(self) -> None:
        """Take note of the work that has lasted for long by now."""
        now = asyncio.get_running_loop().time()
        while self._recent and now - (hold := next(iter(self._recent))).since >= self._slow_seconds:
            del self._recent[hold]
            hold.blamed = hold.lane & self._slow.keys() or hold.lane
            self._blame(hold.blamed)

    def _blame(self, namespaces: _Lane) -> None:
        news = namespaces - self._slow.keys()
        for namespace in namespaces:
            self._slow[namespace] = self._slow.get(namespace, 0) + 1
        for hold in self._holds if news else ():
            if hold.pool is self._usual and not news.isdisjoint(hold.lane):
                hold.pool.remove(hold.lane)
                hold.pool = self._of_slow
                hold.pool.add(hold.lane)
        is_full = len(self._slow) > _MAX_REMEMBERED
        if is_full:
            self._slow = {namespace: number for namespace, number in self._slow.items() if number}
        if news or is_full:
            self._sort_waiting()

    def _sort_waiting(self) -> None:
        """Have everybody wait for a place of the pool that it may be of now."""
        for pool, other in ((self._usual, self._of_slow), (self._of_slow, self._usual)):
            for lane in [lane for lane in pool.waiting if self._pool_of(lane) is other]:
                other.waiting[lane] = pool.waiting.pop(lane)

    # --- whose turn it is

    def _look_again(self) -> None:
        """Somebody waits: see whether work has become slow as soon as that may be."""
        if self._timer is None and self._recent:
            when = next(iter(self._recent)).since + self._slow_seconds
            self._timer = asyncio.get_running_loop().call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._note_slow()
        self._serve()

    def _serve(self) -> None:
        for pool in (self._usual, self._of_slow):
            while (following := self._next(pool)) is not None:
                self._give_turn(pool, following)
        if self._usual.waiting or self._of_slow.waiting:
            self._look_again()

    def _next(self, pool: _Pool) -> _Lane | None:
        if self._free_in(pool) <= 0:
            return None
        passed_over: list[_Lane] = []
        for lane in pool.waiting:
            if self._may_have(lane) or self._is_overdue(lane):
                self._pass_over(passed_over)
                return lane
            if len(lane) > 1:
                passed_over.append(lane)
        return None

    def _pass_over(self, lanes: Iterable[_Lane]) -> None:
        for lane in lanes:
            self._passed_over[lane] += 1

    def _give_turn(self, pool: _Pool, lane: _Lane) -> None:
        self._passed_over.pop(lane, None)
        turns = pool.waiting[lane]
        turn = turns.popleft()
        if turns:
            pool.waiting.move_to_end(lane)
            if len(lane) > 1:
                self._passed_over[lane] = 0
        else:
            del pool.waiting[lane]
        if not turn.done():  # its caller was not cancelled
            is_beyond = not self._may_have(lane)
            hold = self._hold(lane)
            if is_beyond:
                self._beyond = hold
            turn.set_result(hold)
