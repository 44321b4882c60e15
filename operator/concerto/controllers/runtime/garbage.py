"""Python's collector of cyclic garbage, in a process that holds millions of objects.

Reference counting frees what is in no cycle. To find the other garbage, the collector searches objects, and holds the
event loop meanwhile: for more than a second where there are 100,000 pods. No part of a pod is in a cycle, and nothing
that a placement makes is. An exception that ends a request or a watch makes cycles, which are garbage soon after.

So the collector looks at each object once, some time after it was made. What is in use then is not searched again, and
reference counting frees it. What is in use then and in a cycle later is left, for example a request that fails: some
2,000 objects at a search while 50 requests find no API server. So when the process holds much more memory than it did,
all objects are searched.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

NEW_OBJECTS = 50_000
"""Objects beyond those that were freed, after which there is a search among them: some 5,000 pods. With fewer of them
there would be more searches, in each of which something may be in use that is in a cycle later."""
_GROWTH = 1.25
"""Of the memory that the process holds, after which all objects are searched."""
_CHECK_SECONDS = 600.0
_SEARCHES = 10
"""Searches before one among what they left. They leave nothing, so that this may be any number."""


def search_new_objects_only() -> None:
    """From now on, search among new objects alone, once; what there is already is not searched."""
    gc.set_threshold(NEW_OBJECTS, _SEARCHES, _SEARCHES)
    if _leave_alone not in gc.callbacks:
        gc.callbacks.append(_leave_alone)
    gc.freeze()


def _leave_alone(phase: str, _: Mapping[str, int]) -> None:
    if phase == "stop":
        gc.freeze()


def held_bytes() -> int:
    """Memory that this process holds. Source: proc_pid_statm(5)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class FullSearches:
    """Searches all objects when the process holds a quarter more memory than after the last such search.

    A cluster that grows causes some of them, too; one that stays as it is causes none, however many pods come and go.

    Args:
        held: bytes that the process holds.
    """

    def __init__(self, held: Callable[[], int] = held_bytes) -> None:
        self._held = held
        self._base: int | None = None

    async def run(self) -> None:
        """Look every 10 minutes whether a search is due, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            self.search_if_due()

    def search_if_due(self) -> None:
        """The first call only notes how much memory is held: all that a process holds at its start is new."""
        held = self._held()
        if self._base is None:
            self._base = held
        elif held > _GROWTH * self._base:
            began = time.thread_time()
            gc.unfreeze()
            found = gc.collect()
            gc.freeze()
            self._base = self._held()
            seconds = time.thread_time() - began
            logger.info("searched all objects in %.2f s: %d were garbage; %d bytes held", seconds, found, self._base)
