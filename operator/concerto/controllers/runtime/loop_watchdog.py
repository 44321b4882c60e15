"""Measures for how long callbacks hold the event loop: nothing else on it runs meanwhile."""

from __future__ import annotations

import asyncio
import time

from concerto.controllers.runtime.metrics import Metrics

MAX_HELD_SECONDS = 0.25
"""No callback should hold the loop for longer; end-to-end tests and benchmarks check it."""
_BEAT_SECONDS = 0.02
_STUCK_SECONDS = 30.0
"""A loop that was held for that long will not come free: the kubelet restarts the process."""


class LoopWatchdog:
    """Measures the loop on which it runs.

    A beat that comes late shows that something held the loop, or that the machine gave the process no CPU. So both the
    delay and the CPU time that the loop's thread used meanwhile are measured: the lesser of the two is what callbacks
    held the loop for.
    """

    def __init__(self, metrics: Metrics) -> None:
        """Nothing is measured before `run`."""
        self._metrics = metrics
        self._max_held = 0.0
        self._beat_at = time.monotonic()

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due, cpu = time.monotonic() + _BEAT_SECONDS, time.thread_time()
            await asyncio.sleep(_BEAT_SECONDS)
            self._beat_at = time.monotonic()
            self._record(min(self._beat_at - due, time.thread_time() - cpu))

    def _record(self, held: float) -> None:
        self._metrics.loop_held_seconds.observe(max(held, 0.0))
        if held > self._max_held:
            self._max_held = held
            self._metrics.max_loop_held_seconds.set(held)

    def problem(self) -> str | None:
        """For the liveness probe, from another thread: whether the loop has been held for long."""
        held = time.monotonic() - self._beat_at
        return f"the event loop has been held for {held:.0f} s" if held > _STUCK_SECONDS else None
