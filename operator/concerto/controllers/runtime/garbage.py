"""Python's collector of cyclic garbage, in a process that holds millions of objects.

Reference counting frees what is in no cycle. To find the other garbage, the collector searches objects, and holds the
event loop meanwhile: for more than a second where there are 100,000 pods. No part of a pod is in a cycle, and nothing
that a placement makes is. An exception that ends a request or a watch makes cycles, which are garbage soon after.

So the collector looks at each object once, some time after it was made. What is in use then is not searched again, and
reference counting frees it. What is in use then and in a cycle later is not freed, for example a watch that breaks off.
There are few of these objects at a time, and many new ones come between two searches.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

NEW_OBJECTS = 50_000
"""Objects beyond those that were freed, after which there is a search among them: some 5,000 pods. With fewer of them
there would be more searches, in each of which something may be in use that is in a cycle later."""
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
