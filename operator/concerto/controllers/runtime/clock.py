"""The operator's clock: seconds since the epoch that never jump."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SteadyClock:
    """Wall time at the start, and monotonic time from there: setting the machine's clock changes no age."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return time.monotonic() + self._offset


def wall_timestamp() -> str:
    """The wall clock's time as a ``metav1.Time``, for what people read."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
