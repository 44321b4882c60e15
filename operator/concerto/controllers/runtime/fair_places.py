"""Limits how much is done at a time, so that no namespace keeps others from their places."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

PlaceOf = Callable[[str], AbstractAsyncContextManager[None]]
"""A place for work that is for the namespace: entering waits for it, leaving gives it back."""
_Lane = frozenset[str]
"""The namespaces that work is done for."""


class FairPlaces:
    """Places, each of which is held by one piece of work. Those who wait have them in turn by namespace.

    A namespace gets a place only while it has fewer than are free. So it has half of all places if it is the only one,
    and if its work never ends, others have half of the rest. Several such namespaces leave some places, too: of 32, the
    first one has 16, the next one 8, then 4, 2 and 1.

    For work that is for several namespaces, all of them have to have fewer. Where each of them always has other work,
    that may never be so at one time. So one place at a time goes to such work that others were served before as often
    as there are places, whatever its namespaces hold.

    Args:
        places: held at a time.
    """

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        self._held: Counter[str] = Counter()  # by namespace
        self._waiting: OrderedDict[_Lane, deque[asyncio.Future[None]]] = OrderedDict()  # whose turn is next first
        self._passed_over: Counter[_Lane] = Counter()  # how often, of those for several namespaces
        self._beyond: _Lane | None = None  # who has the place that is given whatever its namespaces hold

    @asynccontextmanager
    async def place(self, *namespaces: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the context is open; it counts for each of the namespaces."""
        lane = frozenset(namespaces)
        await self._take(lane)
        try:
            yield
        finally:
            self._give_back(lane)

    async def _take(self, lane: _Lane) -> None:
        if lane not in self._waiting and self._may_have(lane):
            self._passed_over.update(each for each in self._waiting if len(each) > 1)
            self._hold(lane)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lane, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has had its turn meanwhile
                self._give_back(lane)
            raise

    def _may_have(self, lane: _Lane) -> bool:
        return all(self._held[namespace] < self._free for namespace in lane)

    def _hold(self, lane: _Lane) -> None:
        self._free -= 1
        self._held.update(lane)

    def _is_overdue(self, lane: _Lane) -> bool:
        return self._beyond is None and self._free > 0 and self._passed_over[lane] >= self._places

    def _give_back(self, lane: _Lane) -> None:
        self._free += 1
        if lane == self._beyond:
            self._beyond = None
        for namespace in lane:
            self._held[namespace] -= 1
            if not self._held[namespace]:
                del self._held[namespace]
        while (following := self._next()) is not None:
            self._serve(following)

    def _next(self) -> _Lane | None:
        if not self._free:
            return None
        passed_over: list[_Lane] = []
        for lane in self._waiting:
            if self._may_have(lane) or self._is_overdue(lane):
                self._passed_over.update(passed_over)
                return lane
            if len(lane) > 1:
                passed_over.append(lane)
        return None

    def _serve(self, lane: _Lane) -> None:
        self._passed_over.pop(lane, None)
        turns = self._waiting[lane]
        turn = turns.popleft()
        if turns:
            self._waiting.move_to_end(lane)
        else:
            del self._waiting[lane]
        if not turn.done():  # its caller was not cancelled
            if not self._may_have(lane):
                self._beyond = lane
            self._hold(lane)
            turn.set_result(None)
