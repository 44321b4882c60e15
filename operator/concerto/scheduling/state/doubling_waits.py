"""Waits that take twice as long each time, by what waits. Pure; time is passed in.

`concerto.kube.backoff` differs on purpose: what has failed there counts as failed until it succeeds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from concerto.api.doubling import doubled_wait

_K = TypeVar("_K", bound=Hashable)


class DoublingWaits(Generic[_K]):
    """How often each key has had to wait, and until when it waits.

    Args:
        first_seconds: the first wait; each further one takes twice as long.
        max_seconds: the doubling ends there. As long after the end of a wait, the key's next wait is the first again.
    """

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._waits: dict[_K, tuple[int, float]] = {}  # how many, and the end of the last one

    def __bool__(self) -> bool:
        """Whether anything has waited lately."""
        return bool(self._waits)

    def __contains__(self, key: _K) -> bool:
        """Whether the key has waited lately."""
        return key in self._waits

    def begin(self, key: _K, now: float) -> float:
        """The key waits from now on; returns until when, in seconds since the epoch."""
        self._waits = {each: wait for each, wait in self._waits.items() if now < wait[1] + self._max_seconds}
        times = self.times(key) + 1
        until = now + doubled_wait(self._first_seconds, self._max_seconds, times - 1)
        self._waits[key] = times, until
        return until

    def forget(self, key: _K) -> None:
        """The key's next wait is the first again."""
        self._waits.pop(key, None)

    def waits(self, key: _K, now: float) -> bool:
        """Whether the key waits now."""
        return key in self._waits and now < self._waits[key][1]

    def times(self, key: _K) -> int:
        """How often the key has had to wait lately."""
        return self._waits.get(key, (0, 0.0))[0]
