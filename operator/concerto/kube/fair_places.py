"""Limits how much is done at a time, so that a namespace whose work never ends costs that namespace, and no other.

The rule is here for all writes that are for a namespace: bindings and what comes before them, preemptions with their
nominations and evictions, conditions of pods and PodGroups, events, and the turns of objects that are reconciled.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from concerto.kube.place_shares import Hold, Lane, PlaceShares, Pool

PlaceOf = Callable[[str], AbstractAsyncContextManager[None]]
"""A place for work that is for the namespace: entering waits for it, leaving gives it back."""
_Waiting = OrderedDict[Lane, deque[asyncio.Future[Hold]]]
"""Who waits, and whose turn is next first."""


class FairPlaces:
    """Places, each of which is held by one piece of work. Those who wait have them in turn by namespace.

    The rule:

    - Work *lasts* once it goes on for `LASTS_AFTER_SECONDS`. Its place is left to others, until half of all are.
    - It is *slow* if it lasts, and for four times as long as work for another namespace took that began later and has
      ended. Where the API server is slow to answer everybody, or is away, nothing is slow.
    - A namespace is *known* once work of it has ended that was not slow; *slow* from when work of it is, until none
      lasts and other work of it ends that is not; else *new*. Each sort has places of its own.
    - A namespace has a first place if one is free. A known one has more while it holds fewer than are free, less a
      quarter of all, and less those that are left to others if work of its own lasts. New and slow ones have one each.

    So one that is alone has three eighths of the places, and a quarter is for first pieces of work, however many busy
    namespaces begin to hang.

    Work for several namespaces is slow if one of them is, and else new if one of them is. Where each of them always has
    other work, they may never have fewer places than they need at one time. So one place at a time goes to such work
    that others were served before as often as there are places, whatever its namespaces hold. If it lasts, that is due
    to those of its namespaces that were slow before; to all of them if none was.

    Attributes:
        max_held: no more places are ever held, those of work that lasts included.

    Args:
        places: for known namespaces.
        beside: for new ones, and as many for slow ones; None: a quarter of the places.
    """

    LASTS_AFTER_SECONDS = 1.5
    """Longer than a request takes that the API server answers with "try again in a second"."""

    def __init__(self, places: int, *, beside: int | None = None) -> None:
        beside = max(1, places // 4) if beside is None else beside
        self._shares = PlaceShares(places, beside, self.LASTS_AFTER_SECONDS)
        self.max_held = self._shares.max_held
        self._waiting: dict[Pool, _Waiting] = {pool: OrderedDict() for pool in self._shares.pools}
        self._overdue_after = places
        self._passed_over: dict[Lane, int] = {}  # how often, of those that wait for several namespaces
        self._beyond: Hold | None = None  # the place that is given whatever its namespaces hold
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def place(self, *namespaces: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the context is open; it counts for each of the namespaces."""
        hold = await self.take(*namespaces)
        is_broken_off = False
        try:
            yield
        except asyncio.CancelledError:
            is_broken_off = True
            raise
        finally:
            self.give_back(hold, is_broken_off=is_broken_off)

    def hangs(self, namespaces: Iterable[str]) -> bool:
        """Whether one of the namespaces is slow, or has work that goes on for so long that it must hang."""
        self._shares.note_lasting(_now())
        return self._shares.hangs(namespaces, _now())

    def take_now(self, *namespaces: str) -> Hold | None:
        """A place without a wait, to be given back; None if these namespaces have to wait."""
        self._shares.note_lasting(_now())
        lane = frozenset(namespaces)
        if lane in self._waiting[self._shares.pool_of(lane)] or not self._shares.may_have(lane):
            return None
        self._pass_over(self._passed_over)
        return self._shares.begin(lane, _now())

    async def take(self, *namespaces: str) -> Hold:
        """Wait for a place, which is to be given back."""
        if (hold := self.take_now(*namespaces)) is not None:
            return hold
        lane = frozenset(namespaces)
        turn: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        self._waiting[self._shares.pool_of(lane)].setdefault(lane, deque()).append(turn)
        if len(lane) > 1:
            self._passed_over.setdefault(lane, 0)
        self._look_again()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has had its turn meanwhile
                self.give_back(turn.result(), is_broken_off=True)
            raise

    def give_back(self, hold: Hold, *, is_broken_off: bool = False) -> None:
        """The work has ended; if it was broken off, it might have lasted for long."""
        changed = self._shares.end(hold, _now(), is_broken_off=is_broken_off)
        if self._beyond is hold:
            self._beyond = None
        self._sort_waiting(changed)
        self._serve()

    def _sort_waiting(self, changed: Iterable[str]) -> None:
        """Have everybody who waits for one of the namespaces wait for a place of the pool that it may be of now."""
        for namespace in changed:
            lanes = [lane for lane in self._passed_over if namespace in lane]
            for lane in (frozenset((namespace,)), *lanes):
                pool = self._shares.pool_of(lane)
                for other, waiting in self._waiting.items():
                    if other is not pool and lane in waiting:
                        self._waiting[pool][lane] = waiting.pop(lane)

    # --- whose turn it is

    def _look_again(self) -> None:
        """Somebody waits: look for places as soon as work lasts and leaves some."""
        if self._timer is None and (when := self._shares.next_lasts_at) is not None:
            self._timer = asyncio.get_running_loop().call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._shares.note_lasting(_now())
        self._serve()

    def _serve(self) -> None:
        for pool, waiting in self._waiting.items():
            while waiting and (following := self._next(pool)) is not None:
                self._give_turn(pool, following)
        if any(self._waiting.values()):
            self._look_again()

    def _next(self, pool: Pool) -> Lane | None:
        if pool.free <= 0:
            return None
        passed_over: list[Lane] = []
        for lane in self._waiting[pool]:
            if self._shares.may_have(lane) or self._is_overdue(lane):
                self._pass_over(passed_over)
                return lane
            if len(lane) > 1:
                passed_over.append(lane)
        return None

    def _is_overdue(self, lane: Lane) -> bool:
        return self._beyond is None and self._passed_over.get(lane, 0) >= self._overdue_after

    def _pass_over(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self._passed_over[lane] += 1

    def _give_turn(self, pool: Pool, lane: Lane) -> None:
        self._passed_over.pop(lane, None)
        waiting = self._waiting[pool]
        turns = waiting[lane]
        turn = turns.popleft()
        if turns:
            waiting.move_to_end(lane)
            if len(lane) > 1:
                self._passed_over[lane] = 0
        else:
            del waiting[lane]
        if not turn.done():  # its caller was not cancelled
            is_beyond = not self._shares.may_have(lane)
            hold = self._shares.begin(lane, _now())
            if is_beyond:
                self._beyond = hold
            turn.set_result(hold)


def _now() -> float:
    return asyncio.get_running_loop().time()
