"""Python's collector of cyclic garbage, in a process that holds millions of objects.

Reference counting frees what is in no cycle. To find the other garbage, the collector searches objects, and holds the
event loop meanwhile: for more than a second where there are 100,000 pods. No part of a pod is in a cycle, and nothing
that a placement makes is. An exception that ends a request or a watch makes cycles, which are garbage soon after.

So the collector looks at each object once, some time after it was made. What is in use then is not searched again, and
reference counting frees it. What is in use then and in a cycle later is left, for example a request that fails: some
2,000 objects at a search while 50 requests find no API server. So when the process holds many more objects than it did,
all of them are searched.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

NEW_OBJECTS = 50_000
"""Objects beyond those that were freed, after which there is a search among them: some 5,000 pods. With fewer of them
there would be more searches, in each of which something may be in use that is in a cycle later."""
_GROWTH = 1.25
"""Of the blocks of memory that are in use, after which all objects are searched."""
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


class FullSearches:
    """Searches all objects when a quarter more blocks of memory are in use than after the last such search.

    A cluster that grows causes some of them, too; one that stays as it is causes none, however many pods come and go.

    Args:
        blocks: that are in use. Of the bytes that a process holds, many are free: they would grow with each search.
    """

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._blocks = blocks
        self._base: int | None = None

    async def run(self) -> None:
        """Look every 10 minutes whether a search is due, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            self.search_if_due()

    def search_if_due(self) -> None:
        """The first call only notes how many blocks are in use: all that a process holds at its start is new."""
        blocks = self._blocks()
        if self._base is None:
            self._base = blocks
        elif blocks > _GROWTH * self._base:
            began = time.thread_time()
            gc.unfreeze()
            found = gc.collect()
            gc.freeze()
            self._base = self._blocks()
            seconds = time.thread_time() - began
            logger.info("searched all objects in %.2f s: %d of them were garbage", seconds, found)
