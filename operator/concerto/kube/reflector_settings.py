"""How a reflector watches, and how long it waits after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.doubling import doubled_wait


@dataclass(frozen=True)
class ReflectorSettings:
    """How a reflector watches.

    Attributes:
        watch_seconds: how long the server is asked to keep one watch open; up to twice as long, drawn anew each time,
            so that the watches of many clients do not end together.
        inactivity_seconds: a watch is given up when nothing came for so long. The server sends a bookmark about once
            a minute.
        first_backoff_seconds: mean wait after a first failure; doubles with each further one. A wait is anything
            between nothing and twice its mean.
        max_backoff_seconds: the mean never gets longer.
        page_size: objects asked for at a time when listing; None: as the session's settings have it.
        streams: a list comes as the first events of a watch, and in pages only where the server refuses that. It takes
            less time, as a page is not waited for before the next is asked for; the server does a little more.
    """

    watch_seconds: float = 300.0
    inactivity_seconds: float = 90.0
    first_backoff_seconds: float = 0.5
    max_backoff_seconds: float = 30.0
    page_size: int | None = None
    streams: bool = False

    def backoff_seconds(
        self, failures: int, retry_after_seconds: float | None, uniform: Callable[[float, float], float]
    ) -> float:
        """How long to wait after a failure: never less than the server asked for, and not all until that moment.

        Args:
            failures: in a row before this one.
            retry_after_seconds: what the server asked for, if it did.
            uniform: draws a number between two.
        """
        mean = doubled_wait(self.first_backoff_seconds, self.max_backoff_seconds, failures)
        asked = (retry_after_seconds or 0.0) * uniform(1.0, 1.5)
        return max(mean * uniform(0.0, 2.0), asked)


ONE_OF_MANY = ReflectorSettings(first_backoff_seconds=5.0)
"""For a client of which there may be thousands: they lose their watches in one moment when an API server restarts, and
would all list in the next."""
