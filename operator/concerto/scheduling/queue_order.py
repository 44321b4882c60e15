"""Groups of waiting pods in the order in which cycles look at them. Pure.

The order is kept as groups come, change and go. So a cycle that begins costs what it looks at, however many groups
there are: a user can make every pod a group of its own.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from concerto.api.podgroup import GroupKey
from concerto.scheduling.state.changes import Change

Place = tuple[float, int, str]
"""Creation time, order of arrival, UID: a pod's place in its group."""
QueueKey = tuple[str, int, str, Hashable]
"""Scheduler name, priority, namespace, and signature and PodGroup. Without a signature: all pods of the PodGroup."""
_FEW = 32
"""Groups that are put in order one by one; more are sorted together with those that are there."""


@dataclass(eq=False, slots=True)
class Parked:
    """Unschedulable groups of one priority and namespace that the same changes could help, as they failed.

    Attributes:
        groups: the groups.
        is_due: whether there was such a change.
    """

    groups: OrderedDict[PodsAlike, None] = field(default_factory=OrderedDict)
    is_due: bool = False


@dataclass(eq=False)
class PodsAlike:
    """Pods that wait together: they are alike, or of one PodGroup.

    Attributes:
        key: what they have in common.
        pod_group: theirs, if they have one.
        places: of the pods that do not back off, in order.
        unschedulable_since: seconds; None if cycles look at them.
        requeue_on: what could help, once they are unschedulable.
        parked: where they are while they are unschedulable.
        always_considered: whether cycles look at them although they are unschedulable.
        failed_in_cycle: the cycle in which they were found unschedulable last.
        listed: the place under which the order has them; None if cycles do not look at them.
        reported: of the pods beyond those that cycles look at, how many have had their turn.
    """

    key: QueueKey
    pod_group: GroupKey | None = None
    places: list[Place] = field(default_factory=list)
    unschedulable_since: float | None = None
    requeue_on: Change = Change.NOTHING
    parked: Parked | None = None
    always_considered: bool = False
    failed_in_cycle: int = -1
    listed: Place | None = None
    reported: int = 0

    @property
    def namespace(self) -> str:
        """Of the pods."""
        return self.key[2]


class QueueOrder:
    """Groups in order: by priority, namespaces in turn, and in a namespace by the place of the group's first pod.

    Groups that have failed in a pass come after all others until the next pass begins: those first that have failed in
    an earlier cycle. Otherwise, where events requeue more groups than a cycle can look at, the last ones would never be
    looked at again.

    Args:
        group_of: the group of a pod that waits, by its UID.
    """

    def __init__(self, group_of: Callable[[str], PodsAlike]) -> None:
        self._group_of = group_of
        self._cycle = 0
        self._first_of_pass = 0
        self._lanes: dict[tuple[int, int], dict[str, list[Place]]] = {}  # turn, -priority; namespace; first places
        self._last_namespace: dict[int, str] = {}  # by priority

    def begin_cycle(self, *, resume: bool) -> None:
        """A cycle begins. Unless it resumes the pass, groups that have failed are among the others again."""
        self._cycle += 1
        if resume:
            return
        self._first_of_pass = self._cycle
        for turn, priority in [lane for lane in self._lanes if lane[0]]:
            others = self._lanes.setdefault((0, priority), {})
            for namespace, places in self._lanes.pop((turn, priority)).items():
                if namespace in others:
                    _merge(others[namespace], places)
                else:
                    others[namespace] = places

    def note_turns(self, turns: Mapping[int, str]) -> None:
        """By priority, the namespace of the last pod that a cycle has looked at. The turn is the next one's."""
        self._last_namespace.update(turns)

    def note_failures(self, groups: Sequence[PodsAlike]) -> None:
        """A cycle has found no nodes for these groups."""
        if len(groups) <= _FEW:
            for group in groups:
                self._take_out(group)
        else:
            self._take_all_out(groups)
        for group in groups:
            group.failed_in_cycle = self._cycle
        self.add(groups)

    def update(self, group: PodsAlike) -> None:
        """Whether cycles look at the group may have changed, or its first pod."""
        place = _place_of(group)
        if place == group.listed:
            return
        self._take_out(group)
        if place is not None:
            group.listed = place
            insort(self._lane(group), place)

    def add(self, groups: Iterable[PodsAlike]) -> None:
        """Cycles look at these groups again."""
        new: dict[int, tuple[list[Place], list[Place]]] = {}
        for group in groups:
            place = _place_of(group)
            if group.listed is None and place is not None:
                group.listed = place
                lane = self._lane(group)
                new.setdefault(id(lane), (lane, []))[1].append(place)
        for lane, places in new.values():
            _merge(lane, places)

    def places(self, limit: int, has_turn: Callable[[str], bool]) -> Iterator[Place]:
        """Of each group so many pods at most; one of each namespace in turn, beginning after the last one served.

        Args:
            limit: pods of one group at most.
            has_turn: which namespaces have turns.
        """
        for (_, priority), lanes in sorted(self._lanes.items(), key=lambda item: item[0]):
            names = _rotated(sorted(filter(has_turn, lanes)), self._last_namespace.get(-priority, ""))
            turns = [self._of_lane(lanes[name], limit) for name in names]
            while turns:
                remaining = []
                for places in turns:
                    if (place := next(places, None)) is not None:
                        yield place
                        remaining.append(places)
                turns = remaining

    def _of_lane(self, lane: list[Place], limit: int) -> Iterator[Place]:
        """The groups' pods, merged. A group is opened when its first pod's turn comes."""
        opened: list[tuple[Place, Iterator[Place]]] = []
        last: Place | None = None  # first place of the group that was opened last
        while True:
            at = 0 if last is None else bisect_right(lane, last)
            if at < len(lane) and (not opened or lane[at] < opened[0][0]):
                last = lane[at]
                heapq.heappush(opened, (last, islice(self._group_of(last[2]).places, 1, limit)))
            if not opened:
                return
            place, others = opened[0]
            yield place
            if (following := next(others, None)) is None:
                heapq.heappop(opened)
            else:
                heapq.heapreplace(opened, (following, others))

    def _lane(self, group: PodsAlike) -> list[Place]:
        lanes = self._lanes.setdefault((self._turn(group), -group.key[1]), {})
        return lanes.setdefault(group.key[2], [])

    def _turn(self, group: PodsAlike) -> int:
        """0 of a group that has not failed in this pass; the later it has failed, the higher."""
        return max(0, group.failed_in_cycle - self._first_of_pass + 1)

    def _take_out(self, group: PodsAlike) -> None:
        if group.listed is not None:
            lane = self._lane(group)
            del lane[bisect_left(lane, group.listed)]
            group.listed = None
            self._forget_if_empty(group, lane)

    def _take_all_out(self, groups: Sequence[PodsAlike]) -> None:
        lanes: dict[int, tuple[PodsAlike, list[Place], set[Place]]] = {}
        for group in groups:
            if group.listed is not None:
                lane = self._lane(group)
                lanes.setdefault(id(lane), (group, lane, set()))[2].add(group.listed)
                group.listed = None
        for group, lane, places in lanes.values():
            lane[:] = [place for place in lane if place not in places]
            self._forget_if_empty(group, lane)

    def _forget_if_empty(self, group: PodsAlike, lane: list[Place]) -> None:
        if lane:
            return
        _, priority, namespace, _ = group.key
        key = (self._turn(group), -priority)
        del self._lanes[key][namespace]
        if not self._lanes[key]:
            del self._lanes[key]


def _place_of(group: PodsAlike) -> Place | None:
    if group.places and (group.unschedulable_since is None or group.always_considered):
        return group.places[0]
    return None


def _merge(lane: list[Place], places: list[Place]) -> None:
    if len(places) <= _FEW:
        for place in places:
            insort(lane, place)
    else:
        lane += places
        lane.sort()


def _rotated(names: list[str], last: str) -> list[str]:
    """Sorted names, beginning after the last one."""
    at = bisect_right(names, last)
    return names[at:] + names[:at]
