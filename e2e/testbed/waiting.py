"""Looking until something is so: what has to happen sooner or later is waited for here, and nowhere else."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

What = str | Callable[[], object]
PATIENCE_SECONDS = float(os.environ.get("CONCERTO_PATIENCE_SECONDS", "180"))
"""After it, what has not come is taken never to come; what comes costs no more for it.

It is far from anything that a slow or busy machine does: a controller manager alone, as every client of its kind, waits
up to a minute before it looks again after several outages. Only a promise in seconds has a limit of its own. In an
emulated machine a pod's start can take minutes beside other work, so `make e2e-guest` waits longer.
"""


def eventually(what: What, look: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true value that ``look`` gives.

    Args:
        what: is to be so, for the message; or a function that makes it when patience has ended.
        look: whether it is so; what it raises is raised.
        seconds: patience.

    Raises:
        AssertionError: none in time.
    """
    began = time.monotonic()
    while not (found := look()):
        time.sleep(_pause(time.monotonic() - began, seconds, what))
    return found


async def eventually_async(what: What, look: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """The same, for the loop to go on meanwhile: ``look`` may block, or give what is to be awaited."""
    began = time.monotonic()
    while True:
        found = await asyncio.to_thread(look)
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(_pause(time.monotonic() - began, seconds, what))


def _pause(waited_seconds: float, seconds: float, what: What) -> float:
    """Seconds until the next look: the longer it takes, the less often, as looks themselves keep the machine busy."""
    if waited_seconds > seconds:
        raise AssertionError(f"not within {seconds:.0f} s: {what() if callable(what) else what}")
    return min(max(0.05, waited_seconds / 10), 0.5)
