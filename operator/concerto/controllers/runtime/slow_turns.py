"""Turns one after the other, of which those that take long go on beside the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class SlowTurns:
    """Turns of namespaces. Where one takes long, as the API server does not answer, only its namespace waits for it.

    Args:
        on_end: called when a slow turn has ended, so that its namespace may have others.
        slow_seconds: how long a turn holds up all others.
        max_slow: so many slow turns at a time; with as many, all others wait.
    """

    def __init__(
        self, on_end: Callable[[], None] = lambda: None, *, slow_seconds: float = 1.0, max_slow: int = 32
    ) -> None:
        self._on_end = on_end
        self._slow_seconds = slow_seconds
        self._max_slow = max_slow
        self._slow: dict[str, asyncio.Task[Any]] = {}  # by namespace

    def __contains__(self, namespace: str) -> bool:
        """Whether a slow turn of the namespace has not ended, so that it has no other."""
        return namespace in self._slow

    async def run(self, namespace: str, turn: Coroutine[Any, Any, None]) -> None:
        """Give a namespace that has no slow turn its turn; returns when that has ended, or is slow.

        Raises what a turn that is not slow raises. What a slow one raises is lost: it has to take care of it.
        """
        while len(self._slow) >= self._max_slow:
            await asyncio.wait(self._slow.values(), return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(turn)
        try:
            done, _ = await asyncio.wait([task], timeout=self._slow_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
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
