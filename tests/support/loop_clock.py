"""Lets time pass for the event loop, and for nothing else."""

from __future__ import annotations

import asyncio


def pass_time(seconds: float) -> None:
    """The clock of the running loop goes on by so much at once; timers that are due then are called next."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on to the next timer as soon as nothing else is to be done.

    For what does no I/O: ``asyncio.Runner(loop_factory=VirtualTimeLoop)``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()
