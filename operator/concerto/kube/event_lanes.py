"""What waits to be written, by namespace: namespaces have turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class EventLanes(Generic[_T]):
    """Things to write, by namespace and key; those of one namespace in the order in which they came."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, OrderedDict[Hashable, _T]] = OrderedDict()  # whose turn is next first
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, namespace: str, key: Hashable, thing: _T) -> None:
        """A thing that is not there waits from now on."""
        self._lanes.setdefault(namespace, OrderedDict())[key] = thing
        self._length += 1

    def has_turn(self, may: Callable[[str], bool]) -> bool:
        """Whether something waits of a namespace that may have a turn."""
        return any(map(may, self._lanes))

    def take(self, may: Callable[[str], bool]) -> _T | None:
        """The first thing of the namespace whose turn is next, of those that may have one; None if there is none."""
        namespace = next(filter(may, self._lanes), None)
        return None if namespace is None else self._pop(namespace)

    def drop(self) -> _T:
        """The first thing of the namespace of which most wait; there has to be one."""
        return self._pop(max(self._lanes, key=lambda namespace: len(self._lanes[namespace])))

    def _pop(self, namespace: str) -> _T:
        lane = self._lanes[namespace]
        _, thing = lane.popitem(last=False)
        if lane:
            self._lanes.move_to_end(namespace)
        else:
            del self._lanes[namespace]
        self._length -= 1
        return thing
