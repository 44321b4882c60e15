"""Turns one after the other, of which those that take long go on beside the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

SLOW_SECONDS = 0.5
MAX_SLOW = 32


class SlowTurns:
    """Turns of namespaces. Where one takes long, as the API server does not answer, only its namespace waits for it.

    Args:
        on_end: called when a slow turn has ended, so that its namespace may have others.
        slow_seconds: how long a turn holds up all others.
        max_slow: so many slow turns at a time; with as many, the next one that takes long holds up all others.
    """

    def __init__(
        self, on_end: Callable[[], None], *, slow_seconds: float = SLOW_SECONDS, max_slow: int = MAX_SLOW
    ) -> None:
        self._on_end = on_end
        self._slow_seconds = slow_seconds
        self._max_slow = max_slow
        self._slow: dict[str, asyncio.Task[None]] = {}  # by namespace

    def may_have(self, namespace: str) -> bool:
        """Whether the namespace may have a turn: no slow one of its own goes on."""
        return namespace not in self._slow

    async def run(self, namespace: str, turn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Give a namespace that may have one its turn; returns when that has ended, or is slow.

        Raises what a turn that is not slow raises. A slow one has to take care of its errors.
        """
        task = asyncio.create_task(turn())
        try:
            await asyncio.wait([task], timeout=self._slow_seconds)
            while not task.done() and len(self._slow) >= self._max_slow:
                await asyncio.wait([task, *self._slow.values()], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            task.result()
            return
        self._slow[namespace] = task
        task.add_done_callback(lambda task: self._end(namespace))

    def cancel(self) -> None:
        """Cancel all slow turns."""
        for task in self._slow.values():
            task.cancel()

    def _end(self, namespace: str) -> None:
        del self._slow[namespace]
        self._on_end()
