"""What has failed is tried again after a wait that doubles with each failure.

`concerto.scheduling.state.doubling_waits` differs on purpose: it forgets by itself what has not waited for long, and
reads no clock. Here a key has failed until it succeeds or is gone, however late that is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from concerto.api.doubling import doubled_wait

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Failed:
    """A key that has failed.

    Attributes:
        times: how often in a row.
        at: when last.
        until: it waits until then.
        at_least_until: it waits until then whatever happens meanwhile.
    """

    times: int
    at: float
    until: float
    at_least_until: float


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
        self._failed: dict[_K, _Failed] = {}

    def __contains__(self, key: object) -> bool:
        """Whether the key has failed, and has not succeeded since."""
        return key in self._failed

    def is_due(self, key: _K) -> bool:
        """Whether the key may be tried now."""
        return key not in self._failed or self._clock() >= self._failed[key].until

    def failed(self, key: _K, *, at_least_seconds: float = 0.0) -> float:
        """The key has failed; returns for how many seconds it is not to be tried: for as many as given at least."""
        times = self._failed[key].times if key in self._failed else 0
        wait = max(doubled_wait(self._first, self._max, times), at_least_seconds)
        now = self._clock()
        self._failed[key] = _Failed(times + 1, now, now + wait, now + at_least_seconds)
        return wait

    def failed_at(self, key: _K) -> float:
        """When the key failed last; minus infinity if it has not, or has succeeded since."""
        return self._failed[key].at if key in self._failed else float("-inf")

    def waits_at_least_until(self, key: _K) -> float:
        """Until when the key waits by what `failed` was given; minus infinity if it has not failed."""
        return self._failed[key].at_least_until if key in self._failed else float("-inf")

    def forget(self, key: _K) -> None:
        """The key has succeeded, or is gone."""
        self._failed.pop(key, None)
