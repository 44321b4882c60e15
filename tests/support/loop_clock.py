"""Lets time pass for the timers of the event loop, and for nothing else."""

from __future__ import annotations

import asyncio


def pass_time(seconds: float) -> None:
    """The clock of the running loop goes on by so much at once; timers that are due then are called next."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
