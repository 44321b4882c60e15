"""What waits, by namespace: namespaces have turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class NamespaceLanes(Generic[_T]):
    """Things that wait, by namespace and key; those of one namespace in the order in which they came.

    Each method takes the same time however much waits, and of however many namespaces.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, OrderedDict[Hashable, _T]] = {}
        self._turns: OrderedDict[str, None] = OrderedDict()  # namespaces that may have one, whose turn is next first
        self._paused: set[str] = set()
        self._by_length: dict[int, dict[str, None]] = {}  # the namespaces that have so many
        self._longest = 0
        self._length = 0

    def __len__(self) -> int:
        """How many things wait."""
        return self._length

    def holds(self, namespace: str, key: Hashable) -> bool:
        """Whether a thing with the key waits in the namespace."""
        return key in self._lanes.get(namespace, ())

    def put(self, namespace: str, key: Hashable, thing: _T) -> None:
        """The thing waits from now on; one that waits with its key gives it its place."""
        lane = self._lanes.setdefault(namespace, OrderedDict())
        before = len(lane)
        lane[key] = thing
        self._note_length(namespace, before)

    def discard(self, namespace: str, key: Hashable) -> None:
        """Nothing waits with the key any more."""
        if self.holds(namespace, key):
            lane = self._lanes[namespace]
            del lane[key]
            self._note_length(namespace, len(lane) + 1)

    def pause(self, namespace: str) -> None:
        """The namespace has no turn until `resume`."""
        self._paused.add(namespace)
        self._turns.pop(namespace, None)

    def resume(self, namespace: str) -> None:
        """The namespace may have turns again, after all others."""
        self._paused.discard(namespace)
        if namespace in self._lanes:
            self._turns.setdefault(namespace, None)

    @property
    def has_turn(self) -> bool:
        """Whether something waits of a namespace that may have a turn."""
        return bool(self._turns)

    def take(self) -> _T | None:
        """The first thing of the namespace whose turn is next; None without any."""
        return self._pop(next(iter(self._turns))) if self._turns else None

    def take_of_most(self) -> _T:
        """The first thing of a namespace of which most wait; something has to wait."""
        return self._pop(next(iter(self._by_length[self._longest])))

    def _pop(self, namespace: str) -> _T:
        lane = self._lanes[namespace]
        _, thing = lane.popitem(last=False)
        if namespace in self._turns:
            self._turns.move_to_end(namespace)
        self._note_length(namespace, len(lane) + 1)
        return thing

    def _note_length(self, namespace: str, before: int) -> None:
        """One thing more, or less, or as many of the namespace wait as before."""
        now = len(self._lanes[namespace])
        if now == before:
            return
        self._length += now - before
        if before:
            del self._by_length[before][namespace]
        if now:
            self._by_length.setdefault(now, {})[namespace] = None
            if namespace not in self._paused:
                self._turns.setdefault(namespace, None)
        else:
            del self._lanes[namespace]
            self._turns.pop(namespace, None)
        if before and not self._by_length[before]:
            del self._by_length[before]
            if self._longest == before:
                self._longest = now
        self._longest = max(self._longest, now)
