"""Writes to the API server: a bounded number at a time, and of several to one object only the last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable

from concerto.kube import ApiError, Conflict, KubeError, NotFound, ServerError, TooManyRequests

logger = logging.getLogger(__name__)

Write = Callable[[], Awaitable[object]]


class WriteQueue:
    """Keeps what is to be written, by object, as a kubelet's status manager does.

    Attributes:
        sent: writes that the API server has taken.
    """

    RETRY_SECONDS = 1.0

    def __init__(self, in_flight: int) -> None:
        self.sent = 0
        self._in_flight = in_flight
        self._wanted: dict[Hashable, Write] = {}
        self._busy: set[Hashable] = set()
        self._due: asyncio.Queue[Hashable] = asyncio.Queue()

    def put(self, key: Hashable, write: Write) -> None:
        """Has ``write`` carried out; it takes the place of one for the same key that has not been begun."""
        waiting = key in self._wanted
        self._wanted[key] = write
        if not waiting and key not in self._busy:
            self._due.put_nowait(key)

    @property
    def idle(self) -> bool:
        """Whether everything has been written."""
        return not self._wanted and not self._busy

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._in_flight):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._due.get()
            write = self._wanted.pop(key)
            self._busy.add(key)
            try:
                await write()
                self.sent += 1
            except (NotFound, Conflict):
                pass  # gone, or another object of the same name: not ours to write any more
            except (ServerError, TooManyRequests) as error:
                await self._again(key, write, error)
            except ApiError as error:
                logger.error("%s: %s", key, error)
            except KubeError as error:
                await self._again(key, write, error)
            finally:
                self._busy.discard(key)
            if key in self._wanted:
                self._due.put_nowait(key)

    async def _again(self, key: Hashable, write: Write, error: KubeError) -> None:
        """A failure that will pass: the same again a little later, unless there is something newer by then."""
        logger.warning("%s: %s", key, error)
        await asyncio.sleep(self.RETRY_SECONDS)
        self._wanted.setdefault(key, write)
