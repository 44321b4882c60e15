"""The operator's clock: seconds since the epoch that never jump."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from concerto.kube.lease import time_since_boot


class SteadyClock:
    """Wall time at the start, and time since boot from there: setting the machine's clock changes no age."""

    def __init__(self) -> None:
        self._offset = time.time() - time_since_boot()

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return time_since_boot() + self._offset


def wall_timestamp() -> str:
    """The wall clock's time as a ``metav1.Time``, for what people read."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
