"""How much objects of ours hold: the items of all containers that can be reached from them."""

from __future__ import annotations

import asyncio
import gc
import types
from collections import deque
from typing import Any

_NOT_OURS = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, asyncio.AbstractEventLoop)
_CONTAINERS = (dict, list, set, frozenset, deque, tuple)


def items_held(*roots: object) -> int:
    """The number of items in all dicts, lists, sets, deques and tuples of the roots and of what they refer to."""
    seen: set[int] = set()
    left: list[Any] = list(roots)
    items = 0
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, _NOT_OURS):
            continue
        seen.add(id(each))
        if isinstance(each, _CONTAINERS):
            items += len(each)
        elif not type(each).__module__.startswith("concerto") and not isinstance(each, types.MethodType):
            continue
        left += gc.get_referents(each)
    return items
