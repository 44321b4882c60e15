"""Pods that wait to be placed: active, backing off, or parked until something changes. Pure; time is passed in.

Like pods wait together in a group, ordered among themselves, and a group is parked and woken as one: with ten thousand
pods of one Job waiting for capacity, an event costs as much as with one. Order is kube-scheduler's PrioritySort:
priority, then creation, then first come.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from concerto.api.pod import PodView
from concerto.scheduling.cycle import MAX_DECISIONS
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.learned_sizes import kind_of

_Place = tuple[float, int, str]
"""Creation time, order of arrival, UID: a pod's place in its group."""
_GroupKey = tuple[str, int, Hashable]


@dataclass(frozen=True)
class QueueSettings:
    """How long pods wait when nothing tells that waiting is over.

    Attributes:
        initial_backoff_seconds: wait after a pod's first failed binding; doubles with each further one.
        max_backoff_seconds: longest such wait.
        flush_seconds: a parked group is looked at again after that long even if no event has woken it, as telemetry
            grows stale and reservations expire without an event.
    """

    initial_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 10.0
    flush_seconds: float = 30.0


@dataclass
class _Group:
    key: _GroupKey
    places: list[_Place] = field(default_factory=list)
    unschedulable_since: float | None = None
    requeue_on: Change = Change.NOTHING
    always_considered: bool = False


@dataclass
class _Waiting:
    pod: PodView
    place: _Place
    group: _Group
    ready_at: float | None = None


class Queue:
    """Pending pods of all profiles.

    Args:
        settings: waiting times.
    """

    def __init__(self, settings: QueueSettings | None = None) -> None:
        self._settings = settings or QueueSettings()
        self._waiting: dict[str, _Waiting] = {}
        self._groups: dict[_GroupKey, _Group] = {}
        self._backoff: list[tuple[float, str]] = []
        self._failures: dict[str, int] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        """Pods in the queue, whatever they wait for."""
        return len(self._waiting)

    def __contains__(self, uid: str) -> bool:
        """Whether the pod is in the queue."""
        return uid in self._waiting

    def set(self, pod: PodView) -> None:
        """A pod that waits to be placed, new or changed; one with scheduling gates is left out until they are gone."""
        if not pod.waiting:
            self.remove(pod.uid)
            return
        known = self._waiting.get(pod.uid)
        key = _group_key(pod)
        if known is not None and known.group.key == key:
            known.pod = pod
            return
        arrival, ready_at = self._arrivals, None
        if known is not None:
            arrival, ready_at = known.place[1], known.ready_at
            self._leave(known)
        self._arrivals += 1
        group = self._group(key)
        self._waiting[pod.uid] = waiting = _Waiting(pod, (pod.created, arrival, pod.uid), group, ready_at)
        if ready_at is None:
            insort(group.places, waiting.place)

    def remove(self, uid: str) -> None:
        """The pod is bound, gone, or no longer ours to place."""
        self._failures.pop(uid, None)
        self.take(uid)

    def take(self, uid: str) -> None:
        """The pod is decided on; should that come to nothing, it waits the longer the more often it has (`retry`)."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            self._leave(waiting)

    def heads(self, now: float, limit: int = MAX_DECISIONS) -> list[PodView]:
        """Pods to be looked at now, in order: from each active group as many as one cycle can place.

        They stay in the queue: tell it with ``remove``, ``mark_unschedulable`` or ``retry`` what became of them.
        """
        self._ripen(now)
        active = [g for g in self._groups.values() if g.unschedulable_since is None and g.places]
        if active:
            active += [
                g
                for g in self._groups.values()
                if g.unschedulable_since is not None and g.always_considered and g.places
            ]
        ordered = heapq.merge(*(self._in_order(group, limit) for group in active))
        return [self._waiting[uid].pod for _, _, _, uid in ordered]

    def mark_unschedulable(self, uid: str, requeue_on: Change, now: float, *, always_considered: bool = False) -> None:
        """No node for this pod: it and its like wait until a change that could help, or ``flush_seconds``.

        Args:
            uid: the pod.
            requeue_on: what could help.
            now: seconds.
            always_considered: whether it is among the heads whenever any other pod is: nodes are kept for it.
        """
        waiting = self._waiting.get(uid)
        if waiting is None:
            return
        if waiting.group.unschedulable_since is None:
            waiting.group.unschedulable_since = now
            waiting.group.requeue_on = requeue_on
            waiting.group.always_considered = False
        waiting.group.always_considered |= always_considered

    def not_among_heads(self, uid: str) -> list[PodView]:
        """Pods like this one that no cycle looks at because so many are before them; only for the first of its group.

        What holds for the first of a group holds for all of them.
        """
        waiting = self._waiting.get(uid)
        if waiting is None or not waiting.group.places or waiting.group.places[0] != waiting.place:
            return []
        return [self._waiting[uid].pod for _, _, uid in waiting.group.places[MAX_DECISIONS:]]

    def retry(self, uid: str, now: float) -> float:
        """The pod's binding has failed: it waits 1 s, 2 s, ... 10 s by how often that has happened.

        Returns:
            When it will be looked at again.
        """
        failures = self._failures.get(uid, 0)
        seconds = self._settings.initial_backoff_seconds * 2.0 ** min(failures, 32)
        ready_at = now + min(seconds, self._settings.max_backoff_seconds)
        waiting = self._waiting.get(uid)
        if waiting is not None:
            self._failures[uid] = failures + 1
            if waiting.ready_at is None:
                self._leave(waiting)
            waiting.ready_at = ready_at
            heapq.heappush(self._backoff, (ready_at, uid))
        return ready_at

    def requeue(self, change: Change) -> None:
        """Something has changed: parked pods that it could help are active again."""
        if not change:
            return
        for group in self._groups.values():
            if group.unschedulable_since is not None and group.requeue_on & change:
                group.unschedulable_since = None

    def requeue_all(self) -> None:
        """Everything may have changed (a profile was edited): all parked pods are active again."""
        for group in self._groups.values():
            group.unschedulable_since = None

    def next_ready(self) -> float | None:
        """When a pod or group becomes active by the mere passing of time; None if none does."""
        times = [
            g.unschedulable_since + self._settings.flush_seconds
            for g in self._groups.values()
            if g.unschedulable_since is not None
        ]
        while self._backoff and not self._is_backing_off(*self._backoff[0]):
            heapq.heappop(self._backoff)  # its pod has gone: it must not hide those behind it
        times += [at for at, _ in self._backoff[:1]]
        return min(times, default=None)

    def _group(self, key: _GroupKey) -> _Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key)
        return group

    def _in_order(self, group: _Group, limit: int) -> Iterator[tuple[int, float, int, str]]:
        return ((-group.key[1], *place) for place in islice(group.places, limit))

    def _ripen(self, now: float) -> None:
        while self._backoff and self._backoff[0][0] <= now:
            at, uid = heapq.heappop(self._backoff)
            if self._is_backing_off(at, uid):
                waiting = self._waiting[uid]
                waiting.ready_at = None
                waiting.group = self._group(waiting.group.key)
                insort(waiting.group.places, waiting.place)
        for group in self._groups.values():
            if (
                group.unschedulable_since is not None
                and group.unschedulable_since + self._settings.flush_seconds <= now
            ):
                group.unschedulable_since = None

    def _is_backing_off(self, ready_at: float, uid: str) -> bool:
        waiting = self._waiting.get(uid)
        return waiting is not None and waiting.ready_at == ready_at

    def _leave(self, waiting: _Waiting) -> None:
        group = waiting.group
        if waiting.ready_at is None:
            del group.places[bisect_left(group.places, waiting.place)]
        if not group.places and self._groups.get(group.key) is group:
            del self._groups[group.key]


def _group_key(pod: PodView) -> _GroupKey:
    # Numbered pods wait together: should one have a better chance than its elders by its number, it waits its turn
    return (pod.scheduler_name, pod.priority, kind_of(pod))
