"""Keys that wait in lanes, each until a time: of each lane the key is found that is due first. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_L = TypeVar("_L", bound=Hashable)

_MAX_LEFT = 100
"""Entries of a lane that may be left of keys which wait there no more, beyond as many as wait."""


@dataclass(eq=False, slots=True)
class Due(Generic[_K, _L]):
    """A key that waits.

    Attributes:
        key: the key.
        lane: where it waits.
        due_at: until when, or since when, in seconds.
    """

    key: _K
    lane: _L
    due_at: float


@dataclass(eq=False, slots=True)
class _Lane(Generic[_K, _L]):
    """Keys of one lane; those that do not wait as they did are left out when they come up."""

    heap: list[tuple[float, int, Due[_K, _L]]] = field(default_factory=list)
    size: int = 0


class DueLanes(Generic[_K, _L]):
    """Keys in lanes. A change of one key costs about the same however many wait."""

    def __init__(self) -> None:
        self._due: OrderedDict[_K, Due[_K, _L]] = OrderedDict()  # the longest not put or looked at first
        self._lanes: dict[_L, _Lane[_K, _L]] = {}
        self._numbers = count()

    def __contains__(self, key: object) -> bool:
        """Whether the key waits."""
        return key in self._due

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._due)

    def __iter__(self) -> Iterator[_L]:
        """The lanes in which keys wait."""
        return iter(self._lanes)

    @property
    def number_of_lanes(self) -> int:
        """In how many lanes keys wait."""
        return len(self._lanes)

    def get(self, key: _K) -> Due[_K, _L] | None:
        """Where and until when the key waits; None if it does not."""
        return self._due.get(key)

    def size(self, lane: _L) -> int:
        """How many keys wait in the lane."""
        found = self._lanes.get(lane)
        return 0 if found is None else found.size

    def first(self, lane: _L) -> Due[_K, _L] | None:
        """The key of the lane that is due first, of several that which was put first; None if the lane is empty."""
        found = self._lanes.get(lane)
        if found is None:
            return None
        while self._due.get(found.heap[0][2].key) is not found.heap[0][2]:
            heapq.heappop(found.heap)
        return found.heap[0][2]

    def firsts(self) -> Iterator[Due[_K, _L]]:
        """The first key of each lane."""
        for lane in list(self._lanes):
            if (first := self.first(lane)) is not None:
                yield first

    def put(self, key: _K, lane: _L, due_at: float) -> None:
        """The key waits there until then, and nowhere else."""
        known = self._due.get(key)
        if known is not None:
            if known.lane == lane and known.due_at == due_at:
                return
            self.drop(key)
        due = self._due[key] = Due(key, lane, due_at)
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = _Lane()
        heapq.heappush(found.heap, (due_at, next(self._numbers), due))
        found.size += 1
        if len(found.heap) > 2 * found.size + _MAX_LEFT:
            found.heap = [entry for entry in found.heap if self._due.get(entry[2].key) is entry[2]]
            heapq.heapify(found.heap)

    def drop(self, key: _K) -> None:
        """The key does not wait any more."""
        due = self._due.pop(key, None)
        if due is None:
            return
        found = self._lanes[due.lane]
        found.size -= 1
        if not found.size:
            del self._lanes[due.lane]

    def longest_not_looked_at(self, limit: int) -> list[_K]:
        """So many keys at most, others each time."""
        keys = list(islice(self._due, limit))
        for key in keys:
            self._due.move_to_end(key)
        return keys
