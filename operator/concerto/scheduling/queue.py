"""Pods that wait to be placed: active, backing off, or unschedulable until something changes. Pure; time is passed in.

Alike pods wait together in a group, ordered among themselves, and a group is marked and requeued as one: with ten
thousand pods of one Job waiting for capacity, an event costs as much as with one. The pods of a PodGroup wait together,
too, whether they are alike or not, because they are decided on together; only those for which no node was found one by
one wait with their like. Order is kube-scheduler's PrioritySort within a namespace (priority, then creation, then
arrival); namespaces of the same priority take turns.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

from concerto.api.doubling import doubled_wait
from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey
from concerto.api.volumes import ClaimKey
from concerto.scheduling.cycle import MAX_DECISIONS
from concerto.scheduling.queue_index import QueueIndex
from concerto.scheduling.queue_order import Place, PodsAlike, QueueKey, QueueOrder
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.signatures import PodSignatures

HeldBack = Callable[[str], bool]
"""Whether cycles look at no pods of a namespace for now."""
MAX_REGROUPED = 2000
"""Pods whose group is computed again with one cycle: 40 ms."""
MAX_FLUSHED = 2000
"""Groups that have waited for long enough, of which as many are looked at again with one cycle."""
MAX_OF_POD_GROUP = 500
"""Groups of a PodGroup's pods that are marked or requeued at a time: there are more only where its pods were looked at
one by one, and these wait for what may help each of them."""


def _nobody(namespace: str) -> bool:
    return False


@dataclass(frozen=True)
class QueueSettings:
    """How long pods wait when no event ends their waiting.

    Attributes:
        initial_backoff_seconds: wait after a pod's first failed binding; doubles with each further one.
        max_backoff_seconds: longest such wait.
        flush_seconds: an unschedulable group is looked at again after that long even if no event has requeued it, as
            telemetry grows stale and reservations expire without an event.
    """

    initial_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 10.0
    flush_seconds: float = 30.0


@dataclass
class _Waiting:
    pod: PodView
    place: Place
    group: PodsAlike
    version: int  # of the signatures
    ready_at: float | None = None
    claims: frozenset[ClaimKey] = frozenset()


class Queue:
    """Pending pods of all profiles.

    Args:
        settings: waiting times.
        signatures: which pods are alike; the cluster state's.
    """

    def __init__(self, settings: QueueSettings | None = None, signatures: PodSignatures | None = None) -> None:
        self._settings = settings or QueueSettings()
        self._signatures = signatures if signatures is not None else PodSignatures()
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()  # by UID, the oldest versions of signatures first
        self._groups: dict[QueueKey, PodsAlike] = {}  # those that have places
        self._order = QueueOrder(lambda uid: self._waiting[uid].group)
        self._unschedulable: OrderedDict[PodsAlike, None] = OrderedDict()  # longest first
        self._index = QueueIndex()
        self._backoff: list[tuple[float, str]] = []
        self._failures: dict[str, int] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        """Pods in the queue, whatever they wait for."""
        return len(self._waiting)

    def __contains__(self, uid: str) -> bool:
        """Whether the pod is in the queue."""
        return uid in self._waiting

    def is_ready(self, uid: str) -> bool:
        """Whether the pod is in the queue, and does not back off after a failed binding."""
        waiting = self._waiting.get(uid)
        return waiting is not None and waiting.ready_at is None

    # --- pods come and go

    def set(self, pod: PodView) -> None:
        """A pod that waits to be placed, new or changed; one with scheduling gates is left out until they are gone."""
        if not pod.waiting:
            self.remove(pod.uid)
            return
        known = self._waiting.get(pod.uid)
        key = self._key(pod, known)
        if known is not None and known.group.key == key:
            known.pod, known.version = pod, self._signatures.version
            self._waiting.move_to_end(pod.uid)
            return
        arrival, ready_at = self._arrivals, None
        if known is not None:
            arrival, ready_at = known.place[1], known.ready_at
            del self._waiting[pod.uid]
            self._leave(known)
        self._arrivals += 1
        place, version = (pod.created, arrival, pod.uid), self._signatures.version
        self._waiting[pod.uid] = waiting = _Waiting(pod, place, PodsAlike(key), version, ready_at)
        if ready_at is None:
            self._join(waiting)

    def remove(self, uid: str) -> None:
        """The pod is bound, gone, or no longer ours to place."""
        self._failures.pop(uid, None)
        self.take(uid)

    def take(self, uid: str) -> None:
        """The pod is decided on. Should its binding fail, it waits the longer the more often that happens (`retry`)."""
        if (waiting := self._waiting.pop(uid, None)) is not None:
            self._leave(waiting)

    # --- cycles

    def heads(
        self, now: float, limit: int = MAX_DECISIONS, *, resume: bool = False, held_back: HeldBack = _nobody
    ) -> Iterator[PodView]:
        """Pods to be looked at now, in order: from each active group as many as one cycle can place.

        They are found one by one as they are asked for, and stay in the queue: report what became of them with
        ``remove``, ``mark_all`` or ``retry``, once no more are asked for.

        Args:
            now: seconds.
            limit: pods of one group at most.
            resume: whether the cycle before ran out of time. Groups that have failed since the first such cycle began
                come last then, those that failed last after all others, so that each has its turn.
            held_back: whether no pods of the namespace are to be looked at now, those included that drain nodes.
        """
        self._regroup()
        self._ripen(now)
        self._activate(self._index.take_due())
        is_idle = all(map(held_back, self._index.active_namespaces()))
        self._order.begin_cycle(resume=resume and not is_idle)
        if is_idle:
            return iter(())
        places = self._order.places(limit, lambda namespace: not held_back(namespace))
        return (self._waiting[uid].pod for _, _, uid in places)

    def parked(self, change: Change, held_back: HeldBack = _nobody) -> Iterator[PodView]:
        """Pods that wait for such a change, or are held back, and are not among the heads: of each group as many."""
        for group in self._index.helped_by(change):
            if not group.always_considered:
                yield from (self._waiting[uid].pod for _, _, uid in group.places[:MAX_DECISIONS])
        yield from (self._waiting[uid].pod for _, _, uid in self._order.places(MAX_DECISIONS, held_back))

    def note_turns(self, turns: Mapping[int, str]) -> None:
        """A cycle is over: by priority, the namespace of the last pod that it looked at. The turn is the next one's.

        Pods that were asked for and not looked at have not had theirs.
        """
        self._order.note_turns(turns)

    def mark_all(self, failures: Iterable[tuple[str, Change, bool]], now: float) -> None:
        """No nodes for these pods: they and their like wait until a change that could help, or ``flush_seconds``.

        Nothing changes for a pod that backs off after a failed binding: it is looked at once that wait is over.

        Args:
            failures: of each pod the UID, what could help, and whether nodes are drained for it: such a pod is always
                considered, that is, among the heads whenever any other pod is.
            now: seconds.
        """
        groups: dict[PodsAlike, None] = {}
        for uid, requeue_on, always_considered in failures:
            waiting = self._waiting.get(uid)
            if waiting is None or waiting.ready_at is not None:  # it is in no group until its wait is over
                continue
            if (kind := self._kind(waiting.pod)) != waiting.group.key:  # it was looked at beside others of its PodGroup
                self._leave(waiting)
                waiting.group = PodsAlike(kind)
                self._join(waiting)
            self._mark(waiting.group, requeue_on, now, always_considered)
            groups[waiting.group] = None
        self._order.note_failures([*groups])

    def mark_pod_group(self, key: GroupKey, requeue_on: Change, now: float, *, always_considered: bool = False) -> None:
        """No nodes for the pods of this PodGroup: as `mark_all`, for all of them."""
        groups = list(islice(self._index.all_of(key), MAX_OF_POD_GROUP))
        for group in groups:
            self._mark(group, requeue_on, now, always_considered)
        self._order.note_failures(groups)

    def firsts_of_pod_group(self, key: GroupKey) -> list[PodView]:
        """Of the pods of a PodGroup, the first of each group: it stands for the others."""
        groups = islice(self._index.all_of(key), MAX_OF_POD_GROUP)
        return [self._waiting[group.places[0][2]].pod for group in groups]

    def number_beyond(self, uid: str, heads: int) -> int:
        """How many pods like this one no cycle looks at, as so many heads are before them; 0 if it is not the first."""
        waiting = self._waiting.get(uid)
        if waiting is None or waiting.group.places[:1] != [waiting.place]:
            return 0
        return max(0, len(waiting.group.places) - heads)

    def next_beyond(self, uid: str, limit: int, heads: int = MAX_DECISIONS) -> list[PodView]:
        """Some of the pods that `number_beyond` counts, in turn. What holds for the first of a group holds for them.

        Args:
            uid: the first of its like, which stands for them.
            limit: pods at most.
            heads: how many of the group are before them.
        """
        if not (number := self.number_beyond(uid, heads)):
            return []
        group = self._waiting[uid].group
        begin = group.reported if group.reported < number else 0
        group.reported = begin + limit
        places = islice(group.places, heads + begin, heads + begin + limit)
        return [self._waiting[uid].pod for _, _, uid in places]

    def retry(self, uid: str, now: float) -> float:
        """The pod's binding has failed: it waits 1 s, 2 s, ... 10 s by how often that has happened.

        Returns:
            When it will be looked at again.
        """
        failures = self._failures.get(uid, 0)
        settings = self._settings
        ready_at = now + doubled_wait(settings.initial_backoff_seconds, settings.max_backoff_seconds, failures)
        waiting = self._waiting.get(uid)
        if waiting is not None:
            self._failures[uid] = failures + 1
            if waiting.ready_at is None:
                self._leave(waiting)
            waiting.ready_at = ready_at
            heapq.heappush(self._backoff, (ready_at, uid))
        return ready_at

    def requeue(self, change: Change) -> None:
        """Something has changed: unschedulable pods that it could help are active again."""
        self._activate(self._index.requeue(change))

    def requeue_users(self, claim: ClaimKey) -> None:
        """A claim has changed: that helps pods that use it, and no others, however many claims a namespace makes."""
        self._activate(self._index.requeue_users(claim))

    def requeue_pod_group(self, key: GroupKey) -> None:
        """A PodGroup or its pods have changed: that helps those pods, and no others, however many groups there are."""
        self._activate(list(islice(self._index.unschedulable_of(key), MAX_OF_POD_GROUP)))

    def get(self, uid: str) -> PodView | None:
        """The pod; None if it is not in the queue."""
        waiting = self._waiting.get(uid)
        return None if waiting is None else waiting.pod

    def requeue_all(self) -> None:
        """Everything may have changed (a profile was edited): all unschedulable pods are active again."""
        self._activate(self._index.requeue_all())

    def next_ready(self) -> float | None:
        """When a pod or group becomes active by the mere passing of time; None if none does, or -inf if it may be now.

        Pods that are to be regrouped wait with others for which no node was found, although there may be one for them.
        """
        if self._index.has_due or any(_to_regroup(self._waiting, self._signatures.version)):
            return -math.inf
        times = [g.unschedulable_since + self._settings.flush_seconds for g in islice(self._unschedulable, 1)
                 if g.unschedulable_since is not None]  # fmt: skip
        while self._backoff and not _is_backing_off(self._waiting.get(self._backoff[0][1]), self._backoff[0][0]):
            heapq.heappop(self._backoff)  # its pod has gone: it must not hide those behind it
        times += [at for at, _ in self._backoff[:1]]
        return min(times, default=None)

    # --- inside

    def _key(self, pod: PodView, known: _Waiting | None) -> QueueKey:
        """What the pod has in common with those that it waits with."""
        if not pod.group:
            return self._kind(pod)
        of_pod_group = (pod.scheduler_name, pod.priority, pod.namespace, (None, pod.group))
        if known is None or known.group.key == of_pod_group:
            return of_pod_group
        kind = self._kind(pod)
        return kind if known.group.key == kind else of_pod_group

    def _kind(self, pod: PodView) -> QueueKey:
        """What the pod has in common with its like."""
        return (pod.scheduler_name, pod.priority, pod.namespace, (self._signatures.of(pod), pod.group))

    def _mark(self, group: PodsAlike, requeue_on: Change, now: float, always_considered: bool) -> None:
        if self._index.mark(group, requeue_on, now, always_considered):
            self._unschedulable[group] = None

    def _activate(self, groups: Iterable[PodsAlike]) -> None:
        """Cycles look at these groups, which were unschedulable."""
        for group in groups:
            del self._unschedulable[group]
            self._index.activated(group)
        self._order.add(groups)

    def _regroup(self) -> None:
        """Alike pods have become different: each goes to the group that it belongs to now, so many with each cycle.

        A user who makes ever new terms would hold up every cycle otherwise. Those whose turn has not come wait with
        their former group for some cycles more.
        """
        for waiting in list(islice(_to_regroup(self._waiting, self._signatures.version), MAX_REGROUPED)):
            self.set(waiting.pod)

    def _ripen(self, now: float) -> None:
        while self._backoff and self._backoff[0][0] <= now:
            at, uid = heapq.heappop(self._backoff)
            if _is_backing_off(self._waiting.get(uid), at):
                waiting = self._waiting[uid]
                waiting.ready_at = None
                group = self._join(waiting)
                # Its gang may have waited for this pod
                self._activate([group] if group.pod_group and group.unschedulable_since is not None else ())
        latest = now - self._settings.flush_seconds
        due = takewhile(lambda group: (group.unschedulable_since or 0.0) <= latest, self._unschedulable)
        self._activate(list(islice(due, MAX_FLUSHED)))

    def _join(self, waiting: _Waiting) -> PodsAlike:
        """The pod, which does not back off, waits with its like, which are returned."""
        key, pod = waiting.group.key, waiting.pod
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = PodsAlike(key, (pod.namespace, pod.group) if pod.group else None)
            self._index.joined(group)
        waiting.group = group
        if pod.volumes.claims:
            waiting.claims = _claims_of(pod)
            self._index.uses(group, waiting.claims)
        insort(group.places, waiting.place)
        self._order.update(group)
        return group

    def _leave(self, waiting: _Waiting) -> None:
        """The pod no longer waits with its like."""
        if waiting.ready_at is not None:
            return  # it waits by itself
        group = waiting.group
        self._index.uses_no_more(group, waiting.claims)
        waiting.claims = frozenset()
        del group.places[bisect_left(group.places, waiting.place)]
        self._order.update(group)
        if not group.places:
            del self._groups[group.key]
            if group.unschedulable_since is not None:
                self._activate([group])
            self._index.left(group)


def _to_regroup(waiting: Mapping[str, _Waiting], version: int) -> Iterator[_Waiting]:
    """Pods whose group was computed with other signatures than those of this version: the first ones."""
    return takewhile(lambda each: each.version != version, waiting.values())


def _is_backing_off(waiting: _Waiting | None, ready_at: float) -> bool:
    return waiting is not None and waiting.ready_at == ready_at


def _claims_of(pod: PodView) -> frozenset[ClaimKey]:
    return frozenset(ClaimKey(pod.namespace, claim.name) for claim in pod.volumes.claims)
