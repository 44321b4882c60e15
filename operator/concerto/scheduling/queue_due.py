"""Groups of waiting pods for which something has changed, while they are too many to be active at once. Pure.

Users can make any number of groups wait for the same change. To activate all of them at once would hold up everything
else, so each cycle begins with some.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from concerto.api.volumes import ClaimKey
from concerto.scheduling.queue_order import Parked, PodsAlike

Lane = tuple[int, str]
"""Priority and namespace."""


class DueGroups:
    """Unschedulable groups that are to be active again.

    Those of the highest priority come first. Namespaces take turns, and in a namespace the group comes first that has
    failed first.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[str, deque[Parked]]] = {}  # by priority and namespace

    def __bool__(self) -> bool:
        """Whether there are any."""
        return any(parked.groups for parked in self._parked())

    def __iter__(self) -> Iterator[PodsAlike]:
        """Each of them."""
        return chain.from_iterable(parked.groups for parked in self._parked())

    def add(self, lanes: Iterable[tuple[Lane, Parked]]) -> None:
        """Something has changed for these; it takes as long for any number of groups in a lane."""
        for (priority, namespace), parked in lanes:
            parked.is_due = True
            self._lanes.setdefault(priority, OrderedDict()).setdefault(namespace, deque()).append(parked)

    def take(self, limit: int) -> list[PodsAlike]:
        """So many of them, which are parked nowhere from now on."""
        taken: list[PodsAlike] = []
        for priority in sorted(self._lanes, reverse=True):
            namespaces = self._lanes[priority]
            while namespaces and len(taken) < limit:
                namespace, lane = namespaces.popitem(last=False)
                if lane[0].groups:
                    group, _ = lane[0].groups.popitem(last=False)
                    group.parked = None
                    taken.append(group)
                if not lane[0].groups:
                    lane.popleft()
                if lane:
                    namespaces[namespace] = lane  # the turn is the others'
            if not namespaces:
                del self._lanes[priority]
        return taken

    def _parked(self) -> Iterator[Parked]:
        lanes = (lane for namespaces in self._lanes.values() for lane in namespaces.values())
        return chain.from_iterable(lanes)


class UsersOfClaims:
    """Groups with pods that use claims that have changed. All of those of one claim have a turn before any has another.

    A claim that changes again and again would otherwise only ever help those that come first.
    """

    def __init__(self) -> None:
        self._left: dict[ClaimKey, Iterator[PodsAlike]] = {}
        self._again: set[ClaimKey] = set()  # claims that have changed once more meanwhile

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._left)

    def add(self, claim: ClaimKey, users: Iterable[PodsAlike]) -> None:
        """The claim has changed, and these use it."""
        if claim in self._left:
            self._again.add(claim)
        else:
            self._left[claim] = iter([*users])

    def take(self, limit: int) -> tuple[list[PodsAlike], list[ClaimKey]]:
        """So many of them, of which some may have left the queue; and claims whose users are to be added anew."""
        taken: list[PodsAlike] = []
        anew: list[ClaimKey] = []
        for claim, users in list(self._left.items()):
            taken += islice(users, limit - len(taken))
            if len(taken) >= limit:
                break
            del self._left[claim]
            if claim in self._again:
                self._again.remove(claim)
                anew.append(claim)
        return taken, anew
