"""How many of the pods on each row match selectors that pending pods ask about (affinity, topology spread).

A count is made from the pods of its namespaces when it is first asked for, and kept up to date from then on. A count
that takes long is made in turns, as each cycle is one, so that nothing else has to wait: one pod's counts after
another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NoReturn

from concerto.api.pod import PodView
from concerto.scheduling.state.columns import Ints
from concerto.scheduling.state.comparisons import StillCounting, TooManyComparisons
from concerto.scheduling.state.pod_counting import PodCount, comparisons_at_least, comparisons_at_most
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.pod_selection import PodSelection

MAX_COUNTS = 256
"""Questions whose counts are kept; the one that was not asked for longest goes first."""
MAX_PARTS = 2_000
"""Requirements and values of the selections that are kept, with all of which a pod that comes or goes may have to be
compared: 2 ms. Most of them are about other namespaces, or require a label that it lacks."""
MAX_COMPARISONS = 3_000_000
"""For the required or preferred terms of one pod, or its spread constraints: 0.5 s."""
MAX_A_TURN = 250_000
"""Comparisons with which a turn begins, for the pod whose counts take longer: 0.1 s."""
MAX_AT_ONCE = 100_000
"""Comparisons for one pod's terms that are made beside those: 20 ms."""
_MAX_FOR_ONE = 5 * MAX_PARTS
"""Requirements and values of the selections of one pod, whose counts are compared with each pod while it waits."""
MAX_OF_ONE = 1024
"""Different selections of one pod, of which 64 KiB hold about 400, and counts that are kept for it."""
_MAX_IDLE, _MAX_WAITED_FOR = 3, 30
"""Turns in which the pod does not ask that counts were made for, after which they make room for another pod's, and are
no longer compared with each pod that comes or goes."""

_Place = tuple[str | None, tuple[str, str] | None]
"""A namespace, None for several, and a label that is required, None where no single one is."""

_NOBODY: Mapping[str, tuple[PodView, int]] = {}
_NO_COUNTS: Mapping[PodSelection, PodCount] = {}
_TOO_MANY = (
    f"selectors of the pod take more than {MAX_COMPARISONS} comparisons with pods: use fewer selectors, or select "
    "fewer namespaces"
)
_TOO_MANY_SELECTIONS = (
    f"selectors of the pod are more than {MAX_OF_ONE} different ones, or have more than {_MAX_FOR_ONE} requirements "
    "and values: use fewer selectors, or shorter ones"
)


@dataclass(slots=True)
class _InParts:
    """Counts that are made in parts, all for one pod. Others' begin once none is left to be made.

    They go on by themselves, and end in so many turns as `MAX_COMPARISONS` take: a pod whose turn seldom comes finds
    them made. They are kept for it in any case as long as `_MAX_IDLE` says, and as others are after that.

    Attributes:
        asking: UID of the pod.
        counts: those that have begun, of which the last one may not be finished.
        to_come: selections whose counts have not begun.
        left: comparisons that all of them may still take.
        idle: turns since the pod has asked.
        is_waited_for: whether the pod has asked, and not got them yet.
    """

    asking: str = ""
    counts: dict[PodSelection, PodCount] = field(default_factory=dict)
    to_come: list[PodSelection] = field(default_factory=list)
    left: int = 0
    idle: int = 0
    is_waited_for: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to be counted, or it would take too long."""
        return self.left < 0 or (not self.to_come and all(count.is_finished for count in self.counts.values()))


class PodCounts(PodIndex):
    """The pods on the rows, and counts of those that somebody asks about."""

    def __init__(self) -> None:
        self._in_parts = _InParts()
        self._given_up: dict[str, None] = {}  # UIDs of pods whose counts took too long, which they do not know yet
        self._in_turn = self._rests = False
        self._number = 0  # of all pods
        self._width = 0
        self._pods: dict[str, dict[str, tuple[PodView, int]]] = {}  # by namespace and UID
        self._counts: OrderedDict[PodSelection, PodCount] = OrderedDict()
        self._parts = 0  # of all of them
        self._at: dict[_Place, dict[PodSelection, PodCount]] = {}  # the same by the pods that they may select

    def __bool__(self) -> bool:
        """Whether anybody has asked, so that a placement may change an answer."""
        return bool(self._counts or self._in_parts.counts)

    def in_namespace(self, namespace: str) -> Iterator[PodView]:
        """The pods of the namespace that are on nodes, those that came last first."""
        return (pod for pod, _ in reversed(self._pods.get(namespace, {}).values()))

    def begin_turn(self, *, may_rest: bool = False) -> bool:
        """Go on with counts that a pod waits for (``MAX_A_TURN``). Until `end_turn`, no long one is begun.

        Args:
            may_rest: whether somebody needs the time of the whole turn: nothing is counted, unless the turn before has
                rested, too.

        Returns:
            Whether anything was counted.
        """
        self._in_turn, self._rests = True, may_rest and not self._rests
        if self._rests:
            return False
        made = self._in_parts
        made.idle += 1
        if made.is_finished and made.idle > (_MAX_WAITED_FOR if made.is_waited_for else _MAX_IDLE):
            self._hand_over()
        return self._go_on()

    def end_turn(self) -> None:
        """Whoever asks from now on has an answer at once."""
        self._in_turn = False

    def by_row(self, selections: Iterable[PodSelection], asking: str = "") -> list[Ints]:
        """How many such pods are on each row, for each selection of one pod.

        Args:
            selections: the selections.
            asking: UID of the pod.

        Raises:
            TooManyComparisons: to count all of them would take too long, whether or not some are counted already, or
                more than `MAX_OF_ONE` differ.
            StillCounting: in a turn (`begin_turn`): ask again in the next one.
        """
        made, selections = self._in_parts, list(selections)
        parts = {selection: selection.parts for selection in selections}
        if any(each > MAX_PARTS for each in parts.values()):
            raise TooManyComparisons(_TOO_MANY)
        if len(parts) > MAX_OF_ONE or sum(parts.values()) > _MAX_FOR_ONE:
            raise TooManyComparisons(_TOO_MANY_SELECTIONS)
        if self._in_turn and self._took_too_long(asking):
            raise TooManyComparisons(_TOO_MANY)
        left, columns = MAX_COMPARISONS, []
        at_once = MAX_AT_ONCE
        for index, selection in enumerate(selections):
            if (count := self._known(selection)) is None:
                pods, namespaces = self._number_of_pods(selection)
                if comparisons_at_least(pods, namespaces) > left:
                    raise TooManyComparisons(_TOO_MANY)
                if not self._in_turn or comparisons_at_most(pods, namespaces, selection.parts) <= at_once:
                    count = self._begin(selection)
                    count.go_on(left)
                    at_once -= count.comparisons
                    if not count.is_finished or count.comparisons > left:
                        raise TooManyComparisons(_TOO_MANY)
                    self._keep(selection, count)
                else:
                    self._count_in_parts(selections[index:], asking, left)
            left -= count.comparisons
            if left < 0:
                raise TooManyComparisons(_TOO_MANY)
            columns.append(count.column)
        if made.asking == asking:
            made.is_waited_for = False
        return columns

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self._width = width
        for count in chain(self._counts.values(), self._in_parts.counts.values()):
            count.grow(width)

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on the row."""
        counts = [*self._that_may_count(pod)]  # raises TypeError for labels that are not text, before any change
        self._pods.setdefault(pod.namespace, {})[pod.uid] = (pod, row)
        self._number += 1
        for count in counts:
            count.add(pod, row)

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """Other selections may match the pod now."""
        if (before.labels, before.deleting) != (after.labels, after.deleting):
            hash(frozenset(after.labels.items()))  # raises TypeError for labels that are not text, before any change
            self.pod_removed(before, row)
            self.pod_added(after, row)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod is not on the row any more."""
        in_namespace = self._pods[pod.namespace]
        del in_namespace[pod.uid]
        self._number -= 1
        if not in_namespace:
            del self._pods[pod.namespace]
        for count in self._that_may_count(pod):
            count.remove(pod, row)

    # --- inside

    def _that_may_count(self, pod: PodView) -> Iterator[PodCount]:
        for label in chain((None,), pod.labels.items()):
            for namespace in (pod.namespace, None):
                yield from self._at.get((namespace, label), _NO_COUNTS).values()
        yield from self._in_parts.counts.values()

    def _known(self, selection: PodSelection) -> PodCount | None:
        """The count, if it is finished."""
        if (count := self._counts.get(selection)) is not None:
            self._counts.move_to_end(selection)
            return count
        count = self._in_parts.counts.get(selection)
        return count if count is not None and count.is_finished else None

    def _number_of_pods(self, selection: PodSelection) -> tuple[int, int]:
        """How many pods the selection has to be compared with, and of how many namespaces."""
        if selection.namespaces is None:
            return self._number, len(self._pods)
        pods = self._pods_of(selection)
        return sum(map(len, pods)), len(pods)

    def _pods_of(self, selection: PodSelection) -> list[Mapping[str, tuple[PodView, int]]]:
        """Pods that the selection has to be compared with, by namespace."""
        if selection.namespaces is None:
            return [*self._pods.values()]
        return [self._pods.get(namespace, _NOBODY) for namespace in selection.namespaces]

    def _begin(self, selection: PodSelection) -> PodCount:
        pods, together = self._pods_of(selection), dict[str, tuple[PodView, int]]()
        for each in pods:
            together.update(each)
        return PodCount(selection, self._width, together, len(pods))

    def _keep(self, selection: PodSelection, count: PodCount) -> None:
        while self._counts and (len(self._counts) >= MAX_COUNTS or self._parts + count.parts > MAX_PARTS):
            dropped, of_dropped = self._counts.popitem(last=False)
            self._parts -= of_dropped.parts
            del self._at[place := _place_of(dropped)][dropped]
            if not self._at[place]:
                del self._at[place]
        self._parts += count.parts
        self._counts[selection] = count
        self._at.setdefault(_place_of(selection), {})[selection] = count

    def _count_in_parts(self, selections: Sequence[PodSelection], asking: str, left: int) -> NoReturn:
        """Have these counted for the pod from the next turn on, unless other pods' counts are being made.

        Raises:
            StillCounting: always.
        """
        made = self._in_parts
        if made.asking != asking:
            if not made.is_finished or (made.is_waited_for and made.idle <= _MAX_IDLE):
                raise StillCounting
            self._hand_over()
            made = self._in_parts = _InParts(asking)
        made.idle, made.left, made.is_waited_for = 0, left, True
        named, others_too = {*selections}, len(made.counts) < MAX_OF_ONE
        for each in [*made.counts]:  # if namespaces have changed, it asks about others now
            if each not in named and not (others_too and made.counts[each].is_finished):
                del made.counts[each]
        new = (each for each in selections if each not in self._counts and each not in made.counts)
        made.to_come = [*dict.fromkeys(new)]
        made.left -= sum(made.counts[each].comparisons for each in selections if each in made.counts)
        raise StillCounting

    def _hand_over(self) -> None:
        """Keep those that are made in parts as all others, as far as they are finished, and have none any more."""
        made, self._in_parts = self._in_parts, _InParts()
        if made.left < 0:
            if len(self._given_up) >= MAX_COUNTS:
                del self._given_up[next(iter(self._given_up))]
            self._given_up[made.asking] = None
        for selection, count in made.counts.items():
            if count.is_finished and selection not in self._counts:
                self._keep(selection, count)

    def _took_too_long(self, asking: str) -> bool:
        """Whether the pod's counts took too long; the next time that it asks they begin anew."""
        if self._in_parts.asking == asking and self._in_parts.left < 0:
            self._in_parts = _InParts()
            return True
        if asking not in self._given_up:
            return False
        del self._given_up[asking]
        return True

    def _go_on(self) -> bool:
        """Make counts in parts; returns whether there was anything to count."""
        made, left = self._in_parts, MAX_A_TURN
        while left > 0 and not made.is_finished:
            count, spent = next((each for each in made.counts.values() if not each.is_finished), None), 0
            if count is None:
                selection = made.to_come.pop(0)
                count = made.counts[selection] = self._begin(selection)
                spent = count.comparisons
            spent += count.go_on(min(left, made.left + 1))
            left -= spent
            made.left -= spent
        return left < MAX_A_TURN


def _place_of(selection: PodSelection) -> _Place:
    namespaces = selection.namespaces
    one = next(iter(namespaces)) if namespaces is not None and len(namespaces) == 1 else None
    return one, selection.required_label
