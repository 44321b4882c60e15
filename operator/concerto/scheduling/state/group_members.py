"""The pods of one PodGroup, with the counts by which it is decided whether enough of them are there. Pure.

The counts are kept as pods come, change and go: to count the pods anew costs too much where a PodGroup has 100,000.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import TypeVar

from concerto.api.counters import add_count
from concerto.api.pod import PodView

_T = TypeVar("_T", bound=Hashable)
_Place = tuple[int, int, float, str]
"""CPU, memory (both negative), creation time and UID: the largest pods come first, and of these the oldest."""


class GroupMembers:
    """Pods that name a PodGroup and have not ended.

    Attributes:
        pods: all of them, by UID.
        schedulers: how many of them name each scheduler.
        schedulers_there: the same of those that are there: they wait, or are on nodes. Pods with scheduling gates and
            pods that are deleted before they have a node are not there.
        priorities_there: how many of those have each priority.
        preempting_there: how many of those have ``preemptionPolicy: Never`` (False), and another one (True).
    """

    def __init__(self) -> None:
        self.pods: dict[str, PodView] = {}
        self.schedulers: Counter[str] = Counter()
        self.schedulers_there: Counter[str] = Counter()
        self.priorities_there: Counter[int] = Counter()
        self.preempting_there: Counter[bool] = Counter()
        self._places: list[_Place] = []  # of pods that wait, placed or not
        self._placed: set[str] = set()
        self._placed_places = 0  # how many of the places are those of placed pods
        self._bound: set[str] = set()

    # --- what is asked

    @property
    def placed(self) -> int:
        """How many are on nodes, bound or assumed."""
        return len(self._placed)

    @property
    def bound(self) -> int:
        """How many are bound."""
        return len(self._bound)

    @property
    def number_waiting(self) -> int:
        """How many are to be placed."""
        return len(self._places) - self._placed_places

    def waiting(self) -> Iterator[PodView]:
        """Those that are to be placed, the largest first: small pods find room beside large ones more easily."""
        return (self.pods[uid] for *_, uid in self._places if uid not in self._placed)

    def is_waiting(self, uid: str) -> bool:
        """Whether the pod is to be placed."""
        pod = self.pods.get(uid)
        return pod is not None and pod.waiting and uid not in self._placed

    # --- what is seen and decided

    def set_pod(self, pod: PodView, *, placed: bool, bound: bool) -> None:
        """A pod as the API server has it now; see `set_place`."""
        self._forget(pod.uid)
        self.pods[pod.uid] = pod
        _keep(self._placed, pod.uid, placed)
        _keep(self._bound, pod.uid, bound)
        self._note(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """The pod has ended or is gone."""
        self._forget(uid)
        del self.pods[uid]
        self._placed.discard(uid)
        self._bound.discard(uid)

    def set_place(self, uid: str, *, placed: bool, bound: bool) -> None:
        """The pod is on a node, bound or assumed, or not."""
        _keep(self._bound, uid, bound)
        if placed != (uid in self._placed):
            _keep(self._placed, uid, placed)
            self._placed_changed(self.pods[uid], 1 if placed else -1)

    # --- inside

    def _note(self, uid: str) -> None:
        """Count the pod as it is now."""
        pod, is_placed = self.pods[uid], uid in self._placed
        add_count(self.schedulers, pod.scheduler_name, 1)
        if pod.waiting:
            insort(self._places, place_of(pod))
            self._placed_places += is_placed
        if is_placed or pod.waiting:
            self._count_there(pod, 1)

    def _forget(self, uid: str) -> None:
        """Take the pod off the counts."""
        pod, is_placed = self.pods.get(uid), uid in self._placed
        if pod is None:
            return
        add_count(self.schedulers, pod.scheduler_name, -1)
        if pod.waiting:
            del self._places[bisect_left(self._places, place_of(pod))]
            self._placed_places -= is_placed
        if is_placed or pod.waiting:
            self._count_there(pod, -1)

    def _placed_changed(self, pod: PodView, by: int) -> None:
        if pod.waiting:  # it is there in any case
            self._placed_places += by
        else:
            self._count_there(pod, by)

    def _count_there(self, pod: PodView, by: int) -> None:
        add_count(self.schedulers_there, pod.scheduler_name, by)
        add_count(self.priorities_there, pod.priority, by)
        add_count(self.preempting_there, pod.preempts, by)


NO_MEMBERS = GroupMembers()
"""Of a PodGroup that no pod names."""


def place_of(pod: PodView) -> _Place:
    """The pod's place among those of its PodGroup that wait."""
    shape = pod.shape
    return -shape.nonzero_cpu_millicores, -shape.nonzero_memory_bytes, pod.created, pod.uid


def _keep(found: set[str], uid: str, belongs: bool) -> None:
    if belongs:
        found.add(uid)
    else:
        found.discard(uid)
