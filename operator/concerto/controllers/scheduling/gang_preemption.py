"""Room for whole gangs by the eviction of pods of lower priority."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.eviction import NotNeeded
from concerto.controllers.scheduling.making_room import MakingRoom
from concerto.controllers.scheduling.parts import SchedulerParts
from concerto.controllers.scheduling.preemption_writes import Eviction, PreemptionTasks, PreemptionWrites, all_of
from concerto.controllers.scheduling.turns import Turns, TurnSettings
from concerto.kube import KubeError
from concerto.scheduling.gangs.disruption import with_whole_gangs
from concerto.scheduling.gangs.gang import Gang, gang_of
from concerto.scheduling.gangs.preemption import LIMITS, GangPreemption, OutOfTime, RoomForGang
from concerto.scheduling.preemption.eligibility import why_not_eligible
from concerto.scheduling.preemption.preemption import SETTLE_SECONDS, outcome_without_search
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.comparisons import StillCounting

logger = logging.getLogger(__name__)

_NOT_FOUND = "preemption: the eviction of pods of lower priority would not let the PodGroup fit."
_TOO_LONG = "preemption: looking for pods to evict for the whole PodGroup took too long."


@dataclass(frozen=True)
class GangPreemptionSettings(TurnSettings):
    """How pods to evict are searched for.

    Attributes:
        max_search_seconds: CPU time of one search, during which the event loop is blocked. To restore the cluster takes
            as long again.
        limits: how many pods the first search for a gang may remove, how many the next one, and so on.
        rest: how long to wait after a search, as a multiple of its CPU time, so that searches do not block all else.
        settle_seconds: how long after the end of its victims a gang waits for the room that they left, before others
            are evicted for it; doubles with each time that it did not get it.
        max_settle_seconds: the doubling ends there.
        max_idle_seconds: longer than for single pods, as a search for a gang blocks the event loop for longer.
        count_seconds: between two searches while the pods are still being counted that the gang's terms select, beside
            the rest after each.
    """

    max_search_seconds: float = 0.12
    limits: tuple[int, ...] = LIMITS
    rest: float = 10.0
    settle_seconds: float = SETTLE_SECONDS
    max_settle_seconds: float = 300.0
    max_idle_seconds: float = 60.0
    count_seconds: float = 0.1


class GangPreemptionController:
    """Evicts pods of lower priority for gangs that find no nodes. Runs while this process leads."""

    def __init__(self, context: Context, parts: SchedulerParts, settings: GangPreemptionSettings | None = None) -> None:
        """Nothing is searched for before `run`."""
        self._context = context
        self._parts = parts
        self._cluster = parts.cluster
        self._settings = settings or GangPreemptionSettings()
        self._writes = PreemptionWrites(context, parts)
        self._waiting: Turns[GroupKey] = Turns(
            self._settings, context.clock, self._priority, lambda key: key[0], self._is_there
        )
        self._making_room = MakingRoom(self._settings.settle_seconds, self._settings.max_settle_seconds)
        self._tasks = PreemptionTasks(parts.load)
        self._generator = np.random.default_rng()

    def note_failure(self, key: GroupKey, diagnosis: Diagnosis) -> None:
        """A cycle has found no nodes for the gang, or it is not ready."""
        if diagnosis.passing:
            return
        if diagnosis.concerns_pod or diagnosis.error:  # no eviction helps, so the room that was made is given to others
            self._withdraw(self._cluster.nominations.among(self._cluster.pod_groups.members(key)))
            return
        gang = self._gang(key)
        if gang is None:
            return
        outcome = outcome_without_search(self._cluster, gang.members[0], diagnosis)
        if outcome is None or _name(key) in self._making_room:
            self._waiting.add(key)
        else:
            self._report(gang, outcome.message)

    async def run(self) -> None:
        """Search and evict until cancelled."""
        try:
            await self._waiting.serve(self._search, lambda: self._making_room.keep(self._waits))
        finally:
            self._tasks.cancel()

    # --- whose turn it is

    def _priority(self, key: GroupKey) -> int:
        return max(self._cluster.pod_groups.of(key).priorities_there, default=0)

    def _is_there(self, key: GroupKey) -> bool:
        return bool(self._cluster.pod_groups.members(key))

    def _waits(self, name: str) -> bool:
        """Whether a pod of the gang is not bound."""
        namespace, _, group = name.partition("/")
        members = self._cluster.pod_groups.of((namespace, group))
        return members.bound < len(members.pods)

    def _gang(self, key: GroupKey) -> Gang | None:
        """The gang, if it waits for nodes."""
        pods = self._cluster.pod_groups.of(key).waiting()
        first = next((pod for pod in pods if pod.uid in self._parts.pending), None)
        found = None if first is None else gang_of(self._cluster, first)
        return found if isinstance(found, Gang) else None

    # --- the search

    async def _search(self, key: GroupKey) -> None:
        for limit in self._settings.limits:
            gang = self._gang(key)
            profile = None if gang is None else self._parts.profiles.get(gang.members[0].scheduler_name)
            if gang is None or profile is None:
                return
            began = time.thread_time()
            search = GangPreemption(self._cluster, gang, profile, self._context.clock(), self._generator)
            if not self._may_preempt(gang, search):
                return
            found, message, is_counting = None, _NOT_FOUND, False
            try:
                if self._cluster.pod_counts.begin_turn(may_rest=True):  # that has taken the time of a search
                    raise StillCounting
                found = search.find(limit, partial(self._is_out_of_time, began))
            except OutOfTime:
                message = _TOO_LONG
            except StillCounting:
                is_counting = True
            finally:
                self._cluster.pod_counts.end_turn()
            if found is not None:
                self._begin(gang, found)
            spent = time.thread_time() - began
            self._context.metrics.preemption_search_seconds.observe(spent)
            await asyncio.sleep(self._settings.rest * spent)
            if is_counting:  # more pods are counted in the next turn
                self._search_again(key, self._settings.count_seconds)
                return
            if found is not None:
                return
            if message == _TOO_LONG or search.removable <= limit:
                break
        self._give_up(key, message)

    def _is_out_of_time(self, began: float) -> bool:
        return time.thread_time() - began >= self._settings.max_search_seconds

    def _may_preempt(self, gang: Gang, search: GangPreemption) -> bool:
        """Whether pods may be evicted for it now: not while it waits for the room of its last victims."""
        key = gang.key
        if hopeless := search.is_hopeless_where_nominated():
            self._making_room.end(_name(key))  # its victims may never end there, as on a node whose kubelet is away
        left = self._making_room.seconds_left(_name(key), self._context.clock(), self._cluster.is_bound)
        if 0.0 < left < math.inf:  # the end of each victim is a reason to look for nodes again, and to come here
            self._search_again(key, left)
        if left:
            return False
        reasons = (why_not_eligible(self._cluster, pod, nominated_is_hopeless=hopeless) for pod in gang.members)
        reason = next(filter(None, reasons), "")
        if reason:
            self._report(gang, f"preemption: {reason}")
            self._context.metrics.preemption_attempts.labels("not_eligible").inc()
        return not reason

    def _search_again(self, key: GroupKey, seconds: float) -> None:
        self._waiting.rest(key, seconds)
        self._waiting.add(key)

    def _give_up(self, key: GroupKey, message: str) -> None:
        self._waiting.rest(key, self._waiting.seconds_idle(key))
        self._context.metrics.preemption_attempts.labels("not_found").inc()
        if (gang := self._gang(key)) is not None:
            self._report(gang, message)
            self._withdraw(gang.members)

    def _report(self, gang: Gang, message: str) -> None:
        for pod in gang.members:
            self._parts.reporter.note_preemption(pod.uid, message)

    # --- what is carried out

    def _begin(self, gang: Gang, found: RoomForGang) -> None:
        victims = found.victims
        message = f"preemption: found a potential placement for podgroup, preempting {len(victims.pods)} victims."
        self._writes.report_found(gang.members, victims, message)
        self._waiting.end_idle(gang.key)
        self._withdraw([pod for pod in gang.members if pod.uid not in found.nodes])
        for pod in gang.members:
            if pod.uid in found.nodes:
                self._cluster.nominations.nominate(pod, found.nodes[pod.uid])
        evicted = with_whole_gangs(self._cluster, victims.pods, gang.members[0].priority)
        self._making_room.begin(_name(gang.key), (victim.uid for victim in evicted))
        self._tasks.start(self._make_room(gang, found.nodes, evicted), *gang.members, *evicted)

    async def _make_room(self, gang: Gang, nodes: Mapping[str, str], victims: Sequence[PodView]) -> None:
        """Nominate its pods, and evict the victims; stop, and decide afresh, if the API server refuses a write."""
        pods = [pod for pod in gang.members if pod.uid in nodes]
        are_nominated = False
        try:
            # What is withdrawn below must not be stored after that
            are_nominated = all(await all_of(*(self._writes.nominate(pod, nodes[pod.uid]) for pod in pods)))
            if not are_nominated:
                self._making_room.forget(_name(gang.key))
                return
            nominations, priority = self._cluster.nominations, pods[0].priority
            lower = [pod for node in {*nodes.values()} for pod in nominations.lower_than(priority, node)]
            of = {nodes[pod.uid]: pod for pod in reversed(pods)}
            evictions = [
                Eviction(each, each.node_name, of.get(each.node_name, pods[0])) for each in victims if not each.deleting
            ]
            await all_of(
                *(self._writes.withdraw(each) for each in lower),
                self._writes.evict(evictions, lambda: self._are_nominated(nodes)),
            )
        except (KubeError, NotNeeded) as error:
            if isinstance(error, KubeError):
                self._writes.report_refused(gang.members, error)
            self._making_room.stop(_name(gang.key), self._context.clock())
            self._parts.pending.requeue(Change.ENDED)
        finally:
            if not are_nominated:
                self._withdraw(pods)

    def _are_nominated(self, nodes: Mapping[str, str]) -> bool:
        """Whether all of the pods still wait for room on their nodes: with one less, the gang may not fit."""
        needs_node, node_of = self._parts.pending.needs_node, self._cluster.nominations.node_of
        return all(needs_node(uid) and node_of(uid) == node for uid, node in nodes.items())

    def _withdraw(self, pods: Iterable[PodView]) -> None:
        for pod in pods:
            if self._cluster.nominations.node_of(pod.uid):
                self._tasks.start(self._writes.withdraw(pod), pod)


def _name(key: GroupKey) -> str:
    """Namespaces contain no slash."""
    return "/".join(key)
