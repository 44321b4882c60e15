"""Wait for what happens by itself, and no longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(so: Callable[[], object], within_seconds: float = 20.0) -> None:
    """Return once it is so.

    Raises:
        TimeoutError: it was not so in time.
    """
    async with asyncio.timeout(within_seconds):
        while not so():  # noqa: ASYNC110 (what is waited for has no event of its own)
            await asyncio.sleep(0.01)
