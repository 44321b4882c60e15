"""Preemption for the pods that a cycle has found no node for: searched for in slices, carried out beside the loop."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.eviction import NotNeeded
from concerto.controllers.scheduling.making_room import MakingRoom
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.controllers.scheduling.preemption_writes import Eviction, PreemptionTasks, PreemptionWrites, all_of
from concerto.controllers.scheduling.turns import Turns, TurnSettings
from concerto.kube import KubeError
from concerto.scheduling.gangs.disruption import with_whole_gangs
from concerto.scheduling.preemption.candidates import Candidate
from concerto.scheduling.preemption.preemption import SETTLE_SECONDS, Outcome, Preemption, outcome_without_search
from concerto.scheduling.preemption.search import Remainder
from concerto.scheduling.profile import Profile
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.comparisons import StillCounting

logger = logging.getLogger(__name__)

MAX_PLACES = 2000
"""Kinds of pods for which it is remembered where the last search ended."""

_Key = tuple[str, int, str, Hashable]
"""Scheduler name, priority, namespace and signature of pods that are alike."""


@dataclass(frozen=True)
class PreemptionSettings(TurnSettings):
    """How pods to evict are searched for.

    Attributes:
        slice_seconds: CPU time after which the event loop is left to others for as long.
        max_search_seconds: CPU time of one search, after which it makes do with what it has found. Alike pods that
            have not had their turn after twice as long come again later.
        repeat_seconds: between two searches for alike pods.
        settle_seconds: how long after the end of its victims a pod waits for the room that they left, before others
            are evicted for it; doubles with each time that it did not get it.
        max_settle_seconds: the doubling ends there.
        remember_seconds: for how long searches for alike pods begin with the candidates that an earlier one found and
            gave to no pod. They go on where that one ended.
    """

    slice_seconds: float = 0.03
    max_search_seconds: float = 1.0
    repeat_seconds: float = 0.1
    settle_seconds: float = SETTLE_SECONDS
    max_settle_seconds: float = 300.0
    remember_seconds: float = 5.0


class PreemptionController:
    """Evicts pods of lower priority for pods without a node. Runs while this process leads."""

    def __init__(self, context: Context, parts: SchedulerParts, settings: PreemptionSettings | None = None) -> None:
        """Nothing is searched for before `run`."""
        self._context = context
        self._parts = parts
        self._cluster = parts.cluster
        self._settings = settings or PreemptionSettings()
        self._writes = PreemptionWrites(context, parts)
        self._waiting: dict[_Key, dict[str, PodView]] = {}  # alike pods, by UID
        self._making_room = MakingRoom(self._settings.settle_seconds, self._settings.max_settle_seconds)
        self._woken: set[str] = set()  # pods that are noted again when their wait is over
        self._remainders = _Remainders(self._settings.remember_seconds)
        self._tasks = PreemptionTasks(parts.load)
        self._turns: Turns[_Key] = Turns(
            self._settings, context.clock, lambda key: key[1], lambda key: key[2], self._still_waits
        )

    def note_failure(self, pod: PodView, diagnosis: Diagnosis) -> None:
        """A cycle has found no node for the pod."""
        outcome = outcome_without_search(self._cluster, pod, diagnosis)
        if outcome is None or pod.uid in self._making_room:
            self.note(pod)
        else:
            self._take(pod, outcome)

    def note(self, pod: PodView) -> None:
        """Pods to evict are to be searched for."""
        key = (pod.scheduler_name, pod.priority, pod.namespace, self._cluster.signatures.of(pod))
        self._waiting.setdefault(key, {})[pod.uid] = pod
        self._turns.add(key)

    async def run(self) -> None:
        """Search and evict until cancelled."""
        try:
            await self._turns.serve(self._search, lambda: self._making_room.keep(self._parts.pending.__contains__))
        finally:
            self._tasks.cancel()

    # --- whose turn it is

    def _still_waits(self, key: _Key) -> bool:
        """Whether pods of the key have no node; forgets those that have one, or are gone."""
        pods = {uid: pod for uid, pod in self._waiting.pop(key, {}).items() if self._parts.pending.needs_node(uid)}
        if pods:
            self._waiting[key] = pods
        return bool(pods)

    # --- the search

    async def _search(self, key: _Key) -> None:
        """Find pods to evict for alike pods, one after another."""
        pods = [pod for pod in self._waiting.pop(key).values() if self._parts.pending.needs_node(pod.uid)]
        profile = self._parts.profiles.get(pods[0].scheduler_name) if pods else None
        if profile is None:
            return
        now, spent, found = self._context.clock(), _CpuTime(), False
        try:
            search = await self._begin_search(pods[0], profile, self._remainders.of(key, now))
            for turn, pod in enumerate(pods):
                if turn and spent.total >= 2 * self._settings.max_search_seconds:
                    self._put_back(key, pods[turn:])
                    break
                if self._needs_room(pod, search):
                    found |= await self._search_for(pod, search, spent)
                await self._share_the_loop(spent)
            self._remainders.keep(key, search.remainder, self._context.clock())
        finally:
            self._turns.rest(key, max(self._rest(key, found), 2 * spent.total))
            self._context.metrics.preemption_search_seconds.observe(spent.total)

    async def _begin_search(self, pod: PodView, profile: Profile, earlier: Remainder) -> Preemption:
        """The search, once what the pod's terms select is counted."""
        counts, offset = self._cluster.pod_counts, random.randrange(2**31)
        while True:
            counts.begin_turn()
            try:
                return Preemption(self._cluster, profile, pod, self._context.clock(), offset, earlier)
            except StillCounting:
                pass
            finally:
                counts.end_turn()
            await asyncio.sleep(self._settings.slice_seconds)

    async def _search_for(self, pod: PodView, search: Preemption, spent: _CpuTime) -> bool:
        """Find pods to evict for one pod; returns whether some were found."""
        outcome = search.begin(pod)
        while outcome is None:
            while (in_time := spent.total < self._settings.max_search_seconds) and search.look_at_next(pod):
                await self._share_the_loop(spent)
            if not self._parts.pending.needs_node(pod.uid):
                return False
            outcome = search.take_if_enough(pod) if in_time else search.take(pod)
        self._take(pod, outcome)
        return outcome.candidate is not None

    def _put_back(self, key: _Key, pods: Sequence[PodView]) -> None:
        """These have not had their turn; what was noted of them meanwhile is newer."""
        self._waiting[key] = {pod.uid: pod for pod in pods} | self._waiting.get(key, {})
        self._turns.add(key)

    def _rest(self, key: _Key, found: bool) -> float:
        """How long alike pods are not searched for again."""
        if found:
            self._turns.end_idle(key)
            return self._settings.repeat_seconds
        return self._turns.seconds_idle(key)

    def _needs_room(self, pod: PodView, search: Preemption) -> bool:
        """Whether others may be evicted for the pod: it does not wait for the room that its victims leave."""
        if search.is_hopeless_where_nominated(pod):
            self._making_room.end(pod.uid)  # its victims may never end there, as on a node whose kubelet is away
        left = self._making_room.seconds_left(pod.uid, self._context.clock(), self._cluster.is_bound)
        # The end of each victim is a reason to look for a node again, and to come here if no node fits
        if 0.0 < left < math.inf and pod.uid not in self._woken:
            self._woken.add(pod.uid)
            asyncio.get_running_loop().call_later(left, self._wake, pod)
        return left == 0.0

    def _wake(self, pod: PodView) -> None:
        self._woken.discard(pod.uid)
        if self._parts.pending.needs_node(pod.uid):
            self.note(pod)

    async def _share_the_loop(self, spent: _CpuTime) -> None:
        if spent.of_slice >= self._settings.slice_seconds:
            spent.end_slice()
            await asyncio.sleep(self._settings.slice_seconds)
            spent.begin_slice()

    def _take(self, pod: PodView, outcome: Outcome) -> None:
        if outcome.candidate is not None:
            self._writes.report_found([pod], outcome.candidate.victims, outcome.message)
            self._begin(pod, outcome.candidate)
        else:
            self._parts.reporter.note_preemption(pod.uid, outcome.message)
            result = "not_found" if outcome.withdraws else "not_eligible"
            self._context.metrics.preemption_attempts.labels(result).inc()
            if outcome.withdraws and self._cluster.nominations.node_of(pod.uid):
                self._tasks.start(self._writes.withdraw(pod), pod)

    # --- what is carried out

    def _begin(self, pod: PodView, candidate: Candidate) -> None:
        self._cluster.nominations.nominate(pod, candidate.node)
        victims = with_whole_gangs(self._cluster, candidate.victims.pods, pod.priority)
        self._making_room.begin(pod.uid, (victim.uid for victim in victims))
        self._tasks.start(self._make_room(pod, candidate, victims), pod, *victims)

    async def _make_room(self, pod: PodView, candidate: Candidate, victims: Sequence[PodView]) -> None:
        """Nominate the pod, and evict its victims; stop, and decide afresh, if the API server does not take it."""
        is_nominated = False
        try:
            is_nominated = await self._writes.nominate(pod, candidate.node)
            if not is_nominated:
                self._making_room.forget(pod.uid)
                return
            lower = self._cluster.nominations.lower_than(pod.priority, candidate.node)
            evictions = [Eviction(each, candidate.node, pod) for each in victims if not each.deleting]
            await all_of(
                *(self._writes.withdraw(each) for each in lower),
                self._writes.evict(evictions, lambda: self._is_nominated(pod, candidate.node)),
            )
        except (KubeError, NotNeeded) as error:
            if isinstance(error, KubeError):
                self._writes.report_refused([pod], error)
            self._making_room.stop(pod.uid, self._context.clock())
            self._parts.pending.requeue(Change.ENDED)
        finally:
            if not is_nominated:
                self._parts.pending.requeue(self._cluster.nominations.withdraw(pod.uid))

    def _is_nominated(self, pod: PodView, node: str) -> bool:
        """Whether the pod still waits for room on the node."""
        return self._parts.pending.needs_node(pod.uid) and self._cluster.nominations.node_of(pod.uid) == node


class _Remainders:
    """What searches have left to the next ones, by key.

    Pods of a large group find no node a few at a time. Otherwise for each few as many nodes would be looked at as for
    all of them. A candidate is looked at again before it is given to a pod.

    Args:
        seconds: for how long candidates are remembered after the search that has found the first of them.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._candidates: dict[_Key, tuple[float, Sequence[Candidate]]] = {}  # and when the first of them was found
        self._places: dict[_Key, str] = {}  # the node at which the next search begins, the latest last

    def of(self, key: _Key, now: float) -> Remainder:
        """Of the last search for the key; of an old one just the place where it ended."""
        self._candidates = {each: found for each, found in self._candidates.items() if now - found[0] < self._seconds}
        _, candidates = self._candidates.get(key, (now, ()))
        return Remainder(candidates, self._places.get(key, ""))

    def keep(self, key: _Key, remainder: Remainder, now: float) -> None:
        """A search has ended, and has left this."""
        since, _ = self._candidates.get(key, (now, ()))
        self._candidates[key] = since, remainder.candidates
        self._places.pop(key, None)
        if remainder.next_node:
            self._places[key] = remainder.next_node
            if len(self._places) > MAX_PLACES:
                del self._places[next(iter(self._places))]


class _CpuTime:
    """CPU time of a search: in all, and since its slice began."""

    def __init__(self) -> None:
        self._before = 0.0
        self._began = time.thread_time()

    @property
    def total(self) -> float:
        """Seconds of all slices."""
        return self._before + self.of_slice

    @property
    def of_slice(self) -> float:
        """Seconds of this slice."""
        return time.thread_time() - self._began

    def end_slice(self) -> None:
        """Others have the event loop from now on: their time is not the search's."""
        self._before += self.of_slice

    def begin_slice(self) -> None:
        """The search goes on."""
        self._began = time.thread_time()
