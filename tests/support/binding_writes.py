"""Writes that place pods and do not end before a test lets them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from concerto.controllers.scheduling.binding_load import BindingLoad


@dataclass
class Writes:
    """Writes of namespaces.

    Attributes:
        in_flight: how many hold a place, by namespace.
    """

    load: BindingLoad
    in_flight: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)

    async def begin(self, namespace: str, number: int = 1) -> None:
        async def write() -> None:
            async with self.load.place_of_preparation(namespace):
                self.in_flight[namespace] += 1
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass  # the write has ended
                finally:
                    self.in_flight[namespace] -= 1

        self.tasks.setdefault(namespace, []).extend(asyncio.create_task(write()) for _ in range(number))
        await settle()

    async def end(self, namespace: str, number: int = 1) -> None:
        """The oldest ones end."""
        for _ in range(number):
            self.tasks[namespace].pop(0).cancel()
        await settle()


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@asynccontextmanager
async def writing(load: BindingLoad, **namespaces: int) -> AsyncIterator[Writes]:
    """So many writes of each namespace, in flight or waiting, that end with the context."""
    writes = Writes(load)
    try:
        for namespace, number in namespaces.items():
            await writes.begin(namespace, number)
        yield writes
    finally:
        left = [task for tasks in writes.tasks.values() for task in tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
