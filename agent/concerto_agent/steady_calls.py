"""Calls at a fixed rate on the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


async def call_steadily(
    call: Callable[[], None], period_seconds: float, clock: Callable[[], float], on_missed: Callable[[int], None]
) -> None:
    """Make a call, and again each time a period is over, until cancelled. A late call replaces those missed.

    A timer of the loop makes the calls: a task that sleeps takes a second turn of the loop for each.

    Args:
        call: what is called.
        period_seconds: from one call to the next, on a grid that begins with the first.
        clock: monotonic seconds.
        on_missed: called with how many calls were not made in time, if any.

    Raises:
        Exception: what ``call`` raised; there are no further calls.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    deadline = clock()
    timer: asyncio.Handle

    def turn() -> None:
        nonlocal deadline, timer
        try:
            call()
        except Exception as error:
            if not failed.done():
                failed.set_exception(error)
            return
        deadline += period_seconds
        late = clock() - deadline
        if late > 0:
            missed = math.ceil(late / period_seconds)
            on_missed(missed)
            deadline += missed * period_seconds
        timer = loop.call_later(deadline - clock(), turn)

    timer = loop.call_soon(turn)
    try:
        await failed
    finally:
        timer.cancel()
