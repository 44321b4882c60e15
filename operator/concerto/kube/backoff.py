"""What has failed is tried again after a wait that doubles with each failure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


class Backoff(Generic[_K]):
    """The keys that have failed, and from when on each of them may be tried again.

    Args:
        clock: seconds.
        first_seconds: the wait after the first failure.
        max_seconds: the doubling ends there.
    """

    def __init__(self, clock: Callable[[], float], *, first_seconds: float = 0.5, max_seconds: float = 60.0) -> None:
        self._clock = clock
        self._first = first_seconds
        self._max = max_seconds
        self._failed: dict[_K, tuple[int, float, float]] = {}  # how often in a row, when last, and until when it waits

    def __contains__(self, key: object) -> bool:
        """Whether the key has failed, and has not succeeded since."""
        return key in self._failed

    def is_due(self, key: _K) -> bool:
        """Whether the key may be tried now."""
        return key not in self._failed or self._clock() >= self._failed[key][2]

    def failed(self, key: _K, *, at_least_seconds: float = 0.0) -> float:
        """The key has failed; returns for how many seconds it is not to be tried: for as many as given at least."""
        times, *_ = self._failed.get(key, (0, 0.0, 0.0))
        wait = max(min(self._first * 2.0 ** min(times, 32), self._max), at_least_seconds)
        now = self._clock()
        self._failed[key] = times + 1, now, now + wait
        return wait

    def failed_at(self, key: _K) -> float:
        """When the key failed last; minus infinity if it has not, or has succeeded since."""
        return self._failed[key][1] if key in self._failed else float("-inf")

    def forget(self, key: _K) -> None:
        """The key has succeeded, or is gone."""
        self._failed.pop(key, None)
