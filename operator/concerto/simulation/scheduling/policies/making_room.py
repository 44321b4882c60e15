"""Evictions for pods of higher priority: the production searches, called and not copied, one after another.

What is modelled here is only what lies between them: victims end some time after they are evicted, and meanwhile no
other search is made for the same pod or gang.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from concerto.api.pod import PodView
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.gangs.gang import Gang, gang_of
from concerto.scheduling.gangs.preemption import LIMITS, GangPreemption
from concerto.scheduling.preemption.preemption import SETTLE_SECONDS, Preemption, outcome_without_search
from concerto.scheduling.profile import Profile
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.cluster import ClusterState
from concerto.simulation.scheduling.cluster import World


class MakesRoom:
    """Evicts pods for those that a cycle has found no node for.

    Args:
        world: the simulated cluster.
        state: the operator's view of it.
        profile: of all pods.
    """

    def __init__(self, world: World, state: ClusterState, profile: Profile) -> None:
        self._world, self._state, self._profile = world, state, profile
        self._leaving: dict[str, set[str]] = {}
        self._not_before: dict[str, float] = {}

    def pod_ended(self, uid: str, now: float) -> None:
        """A pod is over, maybe a victim."""
        for key, victims in self._leaving.items():
            if uid in victims:
                victims.remove(uid)
                self._not_before[key] = now + SETTLE_SECONDS

    def after(self, result: CycleResult, now: float) -> None:
        """A cycle is over: search for room for what it has not placed."""
        for failure in result.unschedulable:
            pod, diagnosis = failure.pod, failure.diagnosis
            if diagnosis.gang is None and self._may(pod.uid, pod, diagnosis, now):
                self._for_pod(pod, now)
        for key, why in result.gangs.items():
            pods = self._state.pod_groups.members(key).values()
            first = next((pod for pod in pods if not self._state.is_placed(pod.uid)), None)
            gang = None if first is None or why is None else gang_of(self._state, first)
            if isinstance(gang, Gang) and why is not None and self._may("/".join(key), gang.members[0], why, now):
                self._for_gang(gang, now)

    def _may(self, key: str, pod: PodView, diagnosis: Diagnosis, now: float) -> bool:
        under_way = bool(self._leaving.get(key)) or now < self._not_before.get(key, 0.0)
        if under_way or diagnosis.passing or diagnosis.concerns_pod:
            return False
        return outcome_without_search(self._state, pod, diagnosis) is None

    def _for_pod(self, pod: PodView, now: float) -> None:
        search = Preemption(self._state, self._profile, pod, now)
        outcome = search.begin(pod)
        while outcome is None and search.look_at_next(pod):
            pass
        outcome = search.take(pod) if outcome is None else outcome
        if outcome.candidate is not None:
            self._evict(pod.uid, [(pod, outcome.candidate.node)], outcome.candidate.victims.pods)

    def _for_gang(self, gang: Gang, now: float) -> None:
        found = GangPreemption(self._state, gang, self._profile, now, self._world.rng).find(LIMITS[-1], lambda: False)
        if found is not None:
            nodes = [(pod, found.nodes[pod.uid]) for pod in gang.members if pod.uid in found.nodes]
            self._evict("/".join(gang.key), nodes, found.victims.pods)

    def _evict(self, key: str, nodes: Iterable[tuple[PodView, str]], victims: Iterable[PodView]) -> None:
        for pod, node in nodes:
            self._state.nominations.nominate(pod, node)
        self._leaving[key] = {victim.uid for victim in victims}
        for victim in victims:
            if not victim.deleting:
                self._state.set_pod(dataclasses.replace(victim, deleting=True, preempted=True), self._world.now)
                self._world.evict(self._world.pods[victim.uid])
