"""Limits how much is done at a time, so that a namespace whose work never ends costs that namespace, and no other.

The rule is here for all writes that are for a namespace: bindings and what comes before them, preemptions with their
nominations and evictions, conditions of pods and PodGroups, events, and the turns of objects that are reconciled.
"""

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
_MAX_SLOW = 1000
"""Slow namespaces that are remembered beside those whose work goes on."""
_MAX_KNOWN = 4000
"""Namespaces of which it is remembered that their work ended soon."""


@dataclass(eq=False, slots=True)
class _Pool:
    """Places that are given by one rule.

    Attributes:
        free: places that nobody holds.
        excuses: so many places more may be held, by work that lasts; what is left of them.
        lasting: places of work that lasts and has no excuse, those that have lasted longest first.
        waiting: who waits for one, and whose turn is next first.
    """

    free: int
    excuses: int
    lasting: dict[Hold, None] = field(default_factory=dict)
    waiting: OrderedDict[_Lane, deque[asyncio.Future[Hold]]] = field(default_factory=OrderedDict)

    def remove(self, hold: Hold) -> None:
        """The place is not held any more."""
        if not hold.is_excused:
            self.lasting.pop(hold, None)
            self.free += 1
            return
        self.excuses += 1
        if self.lasting:
            excused = next(iter(self.lasting))
            del self.lasting[excused]
            self.note_lasting(excused)

    def note_lasting(self, hold: Hold) -> None:
        """The work lasts: somebody else may have its place, if there is an excuse left."""
        if not self.excuses:
            self.lasting[hold] = None
            return
        hold.is_excused = True
        self.excuses -= 1
        self.free += 1


@dataclass(eq=False, slots=True)
class Hold:
    """A place that is held.

    Attributes:
        lane: for whom.
        pool: that the place is of.
        since: seconds.
        is_excused: whether somebody else may have the place, because the work lasts.
        blamed: namespaces that are slow because of it.
    """

    lane: _Lane
    pool: _Pool
    since: float
    is_excused: bool = False
    blamed: _Lane = frozenset()


class FairPlaces:
    """Places, each of which is held by one piece of work. Those who wait have them in turn by namespace.

    A namespace is *known* once work of it has ended within ``slow_seconds``. It is *slow* from when its work has lasted
    for so long, until none of it does and other work of it ends sooner. Else it is *new*. Each sort has places of its
    own, which the others never take:

    - Known namespaces have ``places``. One begins with few at a time, and has one more with each work of it that ends
      soon, until it holds as many as are free; an eighth of all is left to namespaces that hold none. So one that is
      alone has almost half of them.
    - New ones have ``beside``, each one at a time, and so have slow ones. So a slow one is tried again with one piece
      of work, and not before all that lasts has ended.

    Work that lasts leaves its place to others, until so much does: half of the places of known namespaces, and all of
    those of new ones. Namespaces whose work lasts for half as long already get none of these. So namespaces whose work
    hangs keep others from places only if very many of them begin to hang at one time, while they are busy.

    Work for several namespaces is slow if one of them is, and else new if one of them is. Where each of them always has
    other work, they may never have fewer places than they need at one time. So one place at a time goes to such work
    that others were served before as often as there are places, whatever its namespaces hold. If it lasts, that is due
    to those of its namespaces that were slow before; to all of them if none was.

    Attributes:
        max_held: no more places are ever held, those of work that lasts included.

    Args:
        places: for known namespaces.
        beside: for new ones, and as many for slow ones; None: a quarter of the places.
        slow_seconds: longer than most work takes where the API server is slow to answer everybody.
    """

    def __init__(self, places: int, *, beside: int | None = None, slow_seconds: float = 5.0) -> None:
        beside = max(1, places // 4) if beside is None else beside
        self.max_held = places + places // 2 + 3 * beside
        self._places = places
        self._first = max(1, places // 32)
        self._left_to_others = places // 8
        self._slow_seconds = slow_seconds
        self._of_known, self._of_new, self._of_slow = (
            _Pool(places, places // 2),
            _Pool(beside, beside),
            _Pool(beside, 0),
        )
        self._held: Counter[str] = Counter()  # places, by namespace
        self._recent: dict[Hold, None] = {}  # places of work that has not lasted for long, the longest one first
        self._known: OrderedDict[str, None] = OrderedDict()  # whose work has not ended for longest first
        self._grown: Counter[str] = Counter()  # of known namespaces that hold places: work that ended soon meanwhile
        self._slow: dict[str, int] = {}  # slow namespaces, and how much of their work lasts
        self._passed_over: dict[_Lane, int] = {}  # how often, of those that wait for several namespaces
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

    def is_slow(self, namespaces: Iterable[str]) -> bool:
        """Whether one of the namespaces has work that has lasted for long, and none since that has ended sooner."""
        self._note_slow()
        return self._are_slow(namespaces)

    def _are_slow(self, namespaces: Iterable[str]) -> bool:
        return not self._slow.keys().isdisjoint(namespaces)

    def take_now(self, *namespaces: str) -> Hold | None:
        """A place without a wait, to be given back; None if these namespaces have to wait."""
        self._note_slow()
        lane = frozenset(namespaces)
        if lane in self._pool_of(lane).waiting or not self._may_have(lane):
            return None
        self._pass_over(self._passed_over)
        return self._hold(lane)

    async def take(self, *namespaces: str) -> Hold:
        """Wait for a place, which is to be given back."""
        if (hold := self.take_now(*namespaces)) is not None:
            return hold
        lane = frozenset(namespaces)
        turn: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        self._pool_of(lane).waiting.setdefault(lane, deque()).append(turn)
        if len(lane) > 1:
            self._passed_over.setdefault(lane, 0)
        self._look_again()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it has had its turn meanwhile
                self.give_back(turn.result(), is_broken_off=True)
            raise

    # --- who may have a place

    def _pool_of(self, lane: _Lane) -> _Pool:
        if self._are_slow(lane):
            return self._of_slow
        return self._of_known if self._known.keys() >= lane else self._of_new

    def _may_have(self, lane: _Lane) -> bool:
        pool = self._pool_of(lane)
        return pool.free > 0 and all(self._may_have_another(namespace, pool) for namespace in lane)

    def _may_have_another(self, namespace: str, pool: _Pool) -> bool:
        held = self._held.get(namespace, 0)
        if not held:
            return True
        if namespace not in self._known or held >= self._first + self._grown[namespace]:
            return False
        if pool is not self._of_known:
            return True
        if held >= pool.free - self._left_to_others:
            return False
        return pool.excuses == self._places // 2 or not self._is_suspect(namespace)

    def _is_suspect(self, namespace: str) -> bool:
        """Whether its work lasts, and may be slow before long: what others have left is not for that."""
        until = asyncio.get_running_loop().time() - self._slow_seconds / 2
        lasting = takewhile(lambda hold: hold.since <= until, self._recent)
        return any(namespace in hold.lane for hold in lasting)

    def _is_overdue(self, lane: _Lane, pool: _Pool) -> bool:
        return self._beyond is None and pool.free > 0 and self._passed_over.get(lane, 0) >= self._places

    # --- places that are held

    def _hold(self, lane: _Lane) -> Hold:
        hold = Hold(lane, self._pool_of(lane), asyncio.get_running_loop().time())
        hold.pool.free -= 1
        self._held.update(lane)
        self._recent[hold] = None
        return hold

    def give_back(self, hold: Hold, *, is_broken_off: bool = False) -> None:
        """The work has ended; if it was broken off, it might have lasted for long."""
        self._note_slow()
        hold.pool.remove(hold)
        if self._beyond is hold:
            self._beyond = None
        for namespace in hold.lane:
            self._held[namespace] -= 1
            if not self._held[namespace]:
                del self._held[namespace]
        for namespace in hold.blamed:
            self._slow[namespace] -= 1
        if hold in self._recent:
            del self._recent[hold]
            if not is_broken_off:
                self._note_soon(hold.lane)
        self._serve()
        for namespace in hold.lane:
            if namespace not in self._held:
                del self._grown[namespace]  # no effect where nothing has ended

    def _note_soon(self, lane: _Lane) -> None:
        """Work for these has ended soon."""
        changed = []
        for namespace in lane:
            if self._slow.get(namespace) == 0:
                del self._slow[namespace]
            if namespace not in self._slow:
                self._grown[namespace] += 1
                if namespace not in self._known:
                    changed.append(namespace)
                self._known[namespace] = None
                self._known.move_to_end(namespace)
        while len(self._known) > _MAX_KNOWN:
            changed.append(self._known.popitem(last=False)[0])
        self._sort_waiting(changed)

    def _note_slow(self) -> None:
        """Take note of the work that has lasted for long by now."""
        now = asyncio.get_running_loop().time()
        while self._recent and now - (hold := next(iter(self._recent))).since >= self._slow_seconds:
            del self._recent[hold]
            hold.pool.note_lasting(hold)
            hold.blamed = hold.lane & self._slow.keys() or hold.lane
            self._blame(hold.blamed)

    def _blame(self, namespaces: _Lane) -> None:
        changed = list(namespaces - self._slow.keys())
        for namespace in namespaces:
            self._slow[namespace] = self._slow.get(namespace, 0) + 1
            self._known.pop(namespace, None)
            del self._grown[namespace]
        if len(self._slow) > _MAX_SLOW:
            changed += [namespace for namespace, lasts in self._slow.items() if not lasts]
            self._slow = {namespace: lasts for namespace, lasts in self._slow.items() if lasts}
        self._sort_waiting(changed)

    def _sort_waiting(self, changed: Iterable[str]) -> None:
        """Have everybody who waits for one of the namespaces wait for a place of the pool that it may be of now."""
        for namespace in changed:
            lanes = [lane for lane in self._passed_over if namespace in lane]
            for lane in (frozenset((namespace,)), *lanes):
                pool = self._pool_of(lane)
                for other in (self._of_known, self._of_new, self._of_slow):
                    if other is not pool and lane in other.waiting:
                        pool.waiting[lane] = other.waiting.pop(lane)

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
        is_left = False
        for pool in (self._of_known, self._of_new, self._of_slow):
            while pool.waiting and (following := self._next(pool)) is not None:
                self._give_turn(pool, following)
            is_left = is_left or bool(pool.waiting)
        if is_left:
            self._look_again()

    def _next(self, pool: _Pool) -> _Lane | None:
        if pool.free <= 0:
            return None
        passed_over: list[_Lane] = []
        for lane in pool.waiting:
            if self._may_have(lane) or self._is_overdue(lane, pool):
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
