"""Limits what is asked at a time, of one namespace and in all, so that no namespace keeps others from their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class NamespaceTurns:
    """Turns to ask: a namespace whose questions stay without an answer holds up its own, and not those of others.

    Questions about kinds take turns by kind instead: of one that hangs, they hang in all namespaces.
    """

    def __init__(self, at_a_time: int, of_one_namespace: int) -> None:
        self._limit = asyncio.Semaphore(at_a_time)
        self._of_one_namespace = of_one_namespace
        self._limits: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it while the context is open."""
        own = self._limits.get(namespace)
        if own is None:
            own = self._limits[namespace] = asyncio.Semaphore(self._of_one_namespace)
        async with own, self._limit:
            yield
