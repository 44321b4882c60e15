"""Which namespaces may hold places, and whose work keeps them from others. Decides only: the time is passed in."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from concerto.api.counters import add_count

Lane = frozenset[str]
"""The namespaces that work is done for."""
_TIMES_AS_LONG = 4
"""As what other work took: work that goes on for so long is slow, and not the API server."""
_HANGS_SECONDS = 5.0
"""Longer than a request's time limit: work that goes on for so long hangs, whatever the cause."""
_MAX_SLOW = 1000
"""Slow namespaces that are remembered beside those whose work lasts."""
_MAX_KNOWN = 4000
"""Namespaces of which it is remembered that they are known."""


@dataclass(eq=False, slots=True)
class Pool:
    """Places of one sort of namespaces.

    Attributes:
        size: places.
        free: places that somebody may have.
        left: places that others may have although work that lasts holds them; half of all at most.
        lasting: places of other work that lasts, those that have lasted longest first.
    """

    size: int
    free: int = field(init=False)
    left: int = 0
    lasting: dict[Hold, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = self.size

    @property
    def max_left(self) -> int:
        """So many places may be left to others at a time."""
        return self.size // 2

    def add_lasting(self, hold: Hold) -> None:
        """Leave the place to others, if not too many are left already."""
        if self.left == self.max_left:
            self.lasting[hold] = None
            return
        hold.is_left = True
        self.left += 1
        self.free += 1

    def remove(self, hold: Hold) -> None:
        """The place is not held any more."""
        if not hold.is_left:
            self.lasting.pop(hold, None)
            self.free += 1
            return
        self.left -= 1
        if self.lasting:
            longest = next(iter(self.lasting))
            del self.lasting[longest]
            self.add_lasting(longest)


@dataclass(eq=False, slots=True)
class Hold:
    """A place that is held.

    Attributes:
        lane: for whom.
        pool: that the place is of.
        since: seconds.
        is_left: whether others may have the place, because the work lasts.
        is_slow: whether other work began later and has ended long before.
        blamed: namespaces that the work lasts because of.
    """

    lane: Lane
    pool: Pool
    since: float
    is_left: bool = False
    is_slow: bool = False
    blamed: Lane = frozenset()


class PlaceShares:
    """What is held, and who may have more; see `FairPlaces` for the rule.

    Attributes:
        known, new, slow: the places of each sort of namespaces.

    Args:
        places: of known namespaces.
        beside: of new ones, and of slow ones.
        lasts_after_seconds: from when on work lasts.
    """

    def __init__(self, places: int, beside: int, lasts_after_seconds: float) -> None:
        self.known, self.new, self.slow = Pool(places), Pool(beside), Pool(beside)
        self._lasts_after_seconds = lasts_after_seconds
        self._held: Counter[str] = Counter()  # places, by namespace
        self._lasting: Counter[str] = Counter()  # pieces of work that last, by namespace that is to blame
        self._young: dict[Hold, None] = {}  # work that does not last yet, the longest one first
        self._old: dict[Hold, None] = {}  # work that lasts and is not slow so far, the longest one first
        self._known: OrderedDict[str, None] = OrderedDict()  # whose work has not ended for longest first
        self._slow: dict[str, None] = {}

    @property
    def pools(self) -> tuple[Pool, Pool, Pool]:
        """All of them."""
        return self.known, self.new, self.slow

    @property
    def max_held(self) -> int:
        """No more places are ever held, those that are left to others included."""
        return sum(pool.size + pool.max_left for pool in self.pools)

    @property
    def next_lasts_at(self) -> float | None:
        """When work begins to last, unless it has ended by then; None if none would."""
        return next(iter(self._young)).since + self._lasts_after_seconds if self._young else None

    def pool_of(self, lane: Lane) -> Pool:
        """Where work for these namespaces has its places now."""
        if not self._slow.keys().isdisjoint(lane):
            return self.slow
        return self.known if self._known.keys() >= lane else self.new

    def may_have(self, lane: Lane) -> bool:
        """Whether there is a place for work for these namespaces now."""
        pool = self.pool_of(lane)
        return pool.free > 0 and all(ns not in self._held or self._may_have_more(ns, pool) for ns in lane)

    def _may_have_more(self, namespace: str, pool: Pool) -> bool:
        if namespace not in self._known:
            return False
        free = pool.free - pool.left if namespace in self._lasting else pool.free
        return pool is not self.known or self._held[namespace] < free - pool.size // 4

    def hangs(self, namespaces: Iterable[str], now: float) -> bool:
        """Whether one of the namespaces is slow, or has work that goes on for so long that it must hang."""
        named = frozenset(namespaces)
        if not self._slow.keys().isdisjoint(named):
            return True
        hanging = takewhile(lambda hold: hold.since <= now - _HANGS_SECONDS, self._old)
        return any(not hold.blamed.isdisjoint(named) for hold in hanging)

    def begin(self, lane: Lane, now: float) -> Hold:
        """Work for these namespaces begins and holds a place."""
        hold = Hold(lane, self.pool_of(lane), now)
        hold.pool.free -= 1
        self._held.update(lane)
        self._young[hold] = None
        return hold

    def note_lasting(self, now: float) -> None:
        """Work that lasts by now leaves its place to others."""
        while (lasts_at := self.next_lasts_at) is not None and lasts_at <= now:
            hold = next(iter(self._young))
            del self._young[hold]
            self._old[hold] = None
            hold.blamed = hold.lane & self._slow.keys() or hold.lane
            self._lasting.update(hold.blamed)
            hold.pool.add_lasting(hold)

    def end(self, hold: Hold, now: float, *, is_broken_off: bool = False) -> list[str]:
        """The work has ended; returns namespaces that are of another sort from now on.

        Work that was broken off might have lasted for any time: it says nothing of any namespace.
        """
        self.note_lasting(now)
        hold.pool.remove(hold)
        for namespace in hold.lane:
            add_count(self._held, namespace, -1)
        for namespace in hold.blamed:
            add_count(self._lasting, namespace, -1)
        self._young.pop(hold, None)
        self._old.pop(hold, None)
        if is_broken_off:
            return []
        changed = [] if hold.is_slow else self._note_good(hold.lane)
        return changed + self._note_overtaken(hold, now)

    def _note_good(self, lane: Lane) -> list[str]:
        """Work for these has ended, and was not slow."""
        changed = []
        for namespace in lane:
            if namespace in self._slow and namespace not in self._lasting:
                del self._slow[namespace]
            if namespace not in self._slow:
                if namespace not in self._known:
                    changed.append(namespace)
                self._known[namespace] = None
                self._known.move_to_end(namespace)
        while len(self._known) > _MAX_KNOWN:
            changed.append(self._known.popitem(last=False)[0])
        return changed

    def _note_overtaken(self, ended: Hold, now: float) -> list[str]:
        """Work for others that lasts, and several times as long as this took, is slow."""
        changed = list[str]()
        before = now - _TIMES_AS_LONG * (now - ended.since)
        for hold in list(takewhile(lambda hold: hold.since <= before, self._old)):
            if hold.lane.isdisjoint(ended.lane):
                del self._old[hold]
                hold.is_slow = True
                changed += hold.blamed - self._slow.keys()
                for namespace in hold.blamed:
                    self._slow[namespace] = None
                    self._known.pop(namespace, None)
        if len(self._slow) > _MAX_SLOW:
            changed += self._slow.keys() - self._lasting.keys()
            self._slow = {namespace: None for namespace in self._slow if namespace in self._lasting}
        return changed
