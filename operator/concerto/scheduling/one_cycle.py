"""What one scheduling cycle does with each pod or gang that it looks at, and what it has found out so far. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain, islice

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.cycle_result import CycleResult, Failure, Unschedulable, build_assignment, build_decision
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.feasibility import Placement
from concerto.scheduling.gangs.gang import MAX_PODS, Gang, NotReady, could_fit, orders
from concerto.scheduling.gangs.gangs_of_cycle import GangsOfCycle
from concerto.scheduling.gangs.room_to_come import RoomToCome
from concerto.scheduling.gangs.trial import Trial
from concerto.scheduling.large_pod_drain import LargePodDrain, is_of_large_pod, waits
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import Request, query_for, request_of
from concerto.scheduling.reasons import (
    Diagnosis,
    diagnose,
    diagnose_error,
    diagnose_gang,
    diagnose_group,
    diagnose_held,
    diagnose_lack_of_time,
)
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.comparisons import StillCounting

GANG_TIME = 1.05
"""Times ``cycle.MAX_SECONDS`` that a gang may take with which a cycle begins. To take its pods back takes a sixth of it
on top, and both together stay below ``MAX_HELD_SECONDS``."""
ORDERS_TIME, HOLD_TIME = 0.5, 0.75
"""Times ``cycle.MAX_SECONDS`` within which other orders of a gang's pods are tried, and room to come is held for it.
The rest is for other pods: a gang that holds room goes first in each cycle."""


class Cycle:
    """One cycle: what has been found out in it, by signature of pods.

    Args:
        cluster: the cluster.
        profiles: by scheduler name.
        now: seconds since the epoch.
        generator: breaks ties.
        gangs: what the cycle finds out about gangs.
        is_out_of_time: whether so many times the time that a cycle has are over.
    """

    def __init__(
        self,
        cluster: ClusterState,
        profiles: Mapping[str, Profile],
        now: float,
        generator: np.random.Generator,
        gangs: GangsOfCycle,
        is_out_of_time: Callable[[float], bool],
    ) -> None:
        self._held_room = cluster.pod_groups.held_room
        self._slow = cluster.pod_groups.slow
        self.result = CycleResult()
        self.is_out_of_time = is_out_of_time
        self._cluster = cluster
        self._profiles = profiles
        self._now = now
        self._generator = generator
        self._placements: list[Placement] = []
        self.drain = LargePodDrain(cluster, self._placements)
        self.gangs = gangs
        self._evaluations: dict[Hashable, Evaluation] = {}
        self._failed: dict[Hashable, Failure] = {}
        self._used: set[Hashable] = set()  # of both, those that have seen what a gang's trial has assumed
        self._put_off: set[Hashable] = set()  # those for which pods are still being counted
        # By priority, which nominated pods' room is kept from pods; evaluations follow the cycle's own placements
        self._room_kept_from = cache(cluster.nominations.number)
        self._trial = Trial(cluster, now)  # of the gang that is looked at
        self._held: list[Trial] = []  # of gangs that hold room, to be taken back at the end

    def end(self) -> None:
        """The cycle is over."""
        self.drain.end()
        self._cluster.pod_counts.end_turn()
        self._cluster.kinds.loads.forget_waiting()
        for trial in self._held:
            trial.take_back()

    def look_at(self, pod: PodView, *, is_first: bool, room: int) -> None:
        """Decide on one pod, or on its whole gang; later, if pods are still being counted for it.

        Args:
            pod: the pod.
            is_first: whether its gang gets the time of a whole cycle, and is not postponed.
            room: decisions that may still be made.
        """
        placements, decisions = len(self._placements), len(self.result.decisions)
        self._trial = Trial(self._cluster, self._now)
        self._used.clear()
        try:
            self._look_at(pod, is_first, room)
        except StillCounting:
            self._undo(self._trial, placements, decisions)
            self.gangs.put_off(pod)
            self.result.has_more = self.result.put_off = True

    def _look_at(self, pod: PodView, is_first: bool, room: int) -> None:
        # 1. Is it ours, and does it wait?
        profile = self._profiles.get(pod.scheduler_name)
        if profile is None or not pod.waiting or self._cluster.is_placed(pod.uid) or self.gangs.has_looked_at(pod):
            return
        if (gang := self.gangs.of(pod)) is None:
            if (failure := self._look_at_one(pod, profile)) is not None:
                self._report(pod, failure, profile)
        elif isinstance(gang, NotReady):
            self._held_room.gone(gang.key)
            self._report_gang(gang, diagnose_group(self._cluster, gang))
        elif not gang.begun and self._slow.waits(gang.key[0], len(gang.members), self._now):
            self._report_gang(gang, diagnose_lack_of_time(self._cluster, gang.key))
        elif not is_first and len(gang.members) > room:
            self.result.postponed = pod
        elif not self._look_at_gang(gang, profile, is_first):
            self.result.postponed, self.result.out_of_time = pod, True
        if gang is not None and (pods := self.gangs.backing_off(gang.key)):
            self._hold_room(pods, profile)

    def _hold_room(self, pods: Iterable[PodView], profile: Profile) -> None:
        """Nobody else gets the room in this cycle that these pods, the rest of a begun gang, would find."""
        decisions, trial = len(self.result.decisions), Trial(self._cluster, self._now)
        for pod in pods:
            with suppress(StillCounting):
                self._look_at_one(pod, profile, trial)
        del self.result.decisions[decisions:]
        self._held.append(trial)

    def _look_at_one(self, pod: PodView, profile: Profile, trial: Trial | None = None) -> Failure | None:
        """Place one pod; returns why it finds no node, if so. A plugin's error is that pod's failure, and its like's.

        Args:
            pod: the pod.
            profile: its profile.
            trial: of the gang that it is placed with; None for a pod that is placed by itself.
        """
        alike: Hashable = pod.uid
        try:
            # 2. What do plugins have to know of it?
            request = request_of(self._cluster, pod, profile, self._now, starts_together=trial is not None)
            alike = (pod.scheduler_name, self._cluster.signatures.of(pod), request, self._room_kept_from(pod.priority))
            is_nominated = bool(self._cluster.nominations.node_of(pod.uid))
            recorded = self.gangs.recorded_row(pod) if trial is not None else None
            if alike in self._put_off:
                raise StillCounting
            is_hopeless = self._is_hopeless(alike)
            if is_nominated or recorded is not None or not is_hopeless:
                # 3. Which nodes are feasible, and how good are they?
                evaluation = self._evaluation(alike, pod, profile, request)
                best = evaluation.best_if_nominated(pod) if is_nominated else None
                if best is None and recorded is not None:
                    best = evaluation.best_if_recorded(recorded)
                if best is None and not is_hopeless:
                    best = evaluation.best(self._generator)
                if best is not None:
                    # 4. Take the best
                    self._place(pod, evaluation, *best, trial)
                    return None
                if not is_hopeless:
                    # 5. Or find out why no node will do
                    self._failed[alike] = Failure(alike, diagnose(evaluation.query, evaluation.filters), evaluation)
                    self._look_again_when_paced(request)
        except StillCounting:
            self._put_off.add(alike)
            raise
        except Exception as error:
            self._cluster.forget(pod.uid)
            self._failed[alike] = Failure(alike, diagnose_error(self._cluster, error), error=error)
            self._used.add(alike)
        return self._failed[alike]

    def _look_at_gang(self, gang: Gang, profile: Profile, is_first: bool) -> bool:
        """Place enough pods of a gang, or none; returns False, with none placed, if it needs a whole cycle's time."""
        try:
            alike = self.gangs.alike(gang)
        except Exception as error:
            self._report_gang(gang, diagnose_gang(gang, [diagnose_error(self._cluster, error)], 0), error)
            return True
        if (diagnosis := self.gangs.hopeless.get(alike)) is not None:
            self._report_gang(gang, diagnosis)
            return True
        trial, placements, decisions = self._trial, len(self._placements), len(self.result.decisions)
        failures, in_time = self.try_all(gang, profile, trial, GANG_TIME if is_first else 1.0)
        if len(failures) <= gang.spare and (in_time or (gang.begun and len(trial))):
            trial.keep()
            self.gangs.decided(gang.key)
            self._held_room.placed(gang.key)
            self.result.gangs[gang.key] = None
            for pod, failure in failures:
                self._report(pod, failure, profile)
            return True
        first = failures[0][1] if failures else Failure(gang, diagnose_lack_of_time(self._cluster, gang.key))
        diagnosis = diagnose_gang(gang, [each.diagnosis for _, each in failures] or [first.diagnosis], len(trial))
        if in_time and not gang.begun and could_fit(self._cluster, gang) and self._held_room.ask(gang.key, self._now):
            if self._hold_room_to_come(gang, profile, trial):
                if self.is_out_of_time(1.0):
                    self._held_room.gone(gang.key)  # no other pod would be looked at as long as it holds room
                del self.result.decisions[decisions:]
                self._held.append(trial)
                self.result.held_until = self._held_room.until
                self._report_gang(gang, diagnosis, always_considered=True)
                return True
            self._held_room.pass_on(gang.key)
        self._undo(trial, placements, decisions)
        if not in_time and not is_first:
            return False
        if not in_time and not gang.begun:
            again_at = self._slow.took_too_long(gang.key[0], len(gang.members), self._now)
            self.result.look_again_at_gangs[gang.key] = again_at
        if in_time and not self.gangs.may_be_helped(gang):
            self.gangs.hopeless[alike] = diagnosis
        self._report_gang(gang, diagnosis, first.error)
        return True

    def try_all(
        self, gang: Gang, profile: Profile, trial: Trial, times: float
    ) -> tuple[list[tuple[PodView, Failure]], bool]:
        """Place pods of a gang until too many found no node; returns those, and whether the time was enough.

        All orders of its pods are tried, as long as there is time. What is returned is about the first of them unless
        another one is better.
        """
        placements, decisions = len(self._placements), len(self.result.decisions)
        first: list[tuple[PodView, Failure]] | None = None
        for tried, members in enumerate(orders(gang)):
            if first is not None:
                if self.is_out_of_time(ORDERS_TIME * tried / (tried + 1)):  # the next one takes as long
                    break
                self._undo(trial, placements, decisions)
            failures: list[tuple[PodView, Failure]] = []
            for looked_at, pod in enumerate(members):
                if (looked_at or first is not None) and self.is_out_of_time(times):
                    return (failures, False) if first is None else (first, True)
                if (failure := self._look_at_one(pod, profile, trial)) is not None:
                    failures.append((pod, failure))
                if len(failures) > gang.spare:
                    break
            if len(failures) <= gang.spare:
                return failures, True
            first = failures if first is None else first
        return first or [], True

    def _undo(self, trial: Trial, placements: int, decisions: int) -> None:
        """Go on as if the cycle had not looked at the gang since there were so many placements and decisions."""
        trial.take_back()
        del self.result.decisions[decisions:]
        del self._placements[placements:]
        for key in self._used:
            self._evaluations.pop(key, None)
            self._failed.pop(key, None)

    def _hold_room_to_come(self, gang: Gang, profile: Profile, trial: Trial) -> bool:
        """Hold room for pods that have found none, too, as it comes free in pieces; False if too many never fit."""
        to_come = RoomToCome(trial)
        for pod in gang.members:
            if len(trial) >= gang.needed or to_come.never_fit > gang.spare or self.is_out_of_time(HOLD_TIME):
                break
            failure = None if self._cluster.is_placed(pod.uid) else self._look_at_one(pod, profile, trial)
            if failure is None or (evaluation := failure.evaluation) is None:
                continue
            if (row := to_come.row_for(pod, failure.alike, evaluation)) is not None:
                trial.assume(pod, build_assignment(pod, evaluation, row), evaluation.query.required_cpu or 0.0)
                self._placements.append((pod, row))
        return to_come.never_fit <= gang.spare

    def _is_hopeless(self, alike: Hashable) -> bool:
        """Whether such a pod has found no node in this cycle, and no placement since can have helped it."""
        if (failure := self._failed.get(alike)) is None:
            return False
        evaluation = failure.evaluation
        if evaluation is None or not evaluation.may_grow:
            return True
        evaluation.update()
        self._used.add(alike)
        if not evaluation.feasible.any():
            return True
        del self._failed[alike]
        return False

    def _evaluation(self, alike: Hashable, pod: PodView, profile: Profile, request: Request) -> Evaluation:
        evaluation = self._evaluations.get(alike)
        self._used.add(alike)
        if evaluation is not None:
            evaluation.update()
            return evaluation
        query = query_for(self._cluster, pod, profile, self._now, request)
        evaluation = self._evaluations[alike] = Evaluation(query, profile, self._placements)
        for plugin, count in evaluation.abstentions.items():
            self.result.abstentions[pod.scheduler_name, plugin] += count
        return evaluation

    def _place(self, pod: PodView, evaluation: Evaluation, row: int, score: float, trial: Trial | None) -> None:
        decision = build_decision(pod, evaluation, row, score)
        required_cpu = evaluation.query.required_cpu or 0.0
        if trial is None:
            self._cluster.assume(pod, decision.assignment, self._now, required_cpu)
            self._cluster.kinds.give_work(pod, row, self._now)
        else:
            trial.assume(pod, decision.assignment, required_cpu)
        self._placements.append((pod, row))
        self.result.decisions.append(decision)

    def _look_again_when_paced(self, request: Request) -> None:
        if request.cost is not None:
            wait = self._cluster.kinds.loads.seconds_until_paced(request.cost, slice(None), self._now)
            self.result.look_again_at = min(self.result.look_again_at, self._now + wait)

    def _report(self, pod: PodView, failure: Failure, profile: Profile) -> None:
        """The pod has no node now: drain one for a large pod that has waited for long."""
        is_large = failure.evaluation is not None and is_of_large_pod(failure.evaluation.query)
        always_considered = is_large and waits(pod, profile, self._now) >= 1
        diagnosis = diagnose_held(failure.diagnosis) if self._held else failure.diagnosis
        self.result.unschedulable.append(Unschedulable(pod, diagnosis, always_considered, failure.error))
        if always_considered and failure.evaluation is not None:
            self.drain.drain_one(failure.alike, failure.evaluation)

    def _report_gang(
        self,
        gang: Gang | NotReady,
        diagnosis: Diagnosis,
        error: Exception | None = None,
        *,
        always_considered: bool = False,
    ) -> None:
        """None of its pods is placed now. The first of them stand for all."""
        self.gangs.decided(gang.key, in_vain=True)
        self.result.gangs[gang.key] = diagnosis
        pods = islice(chain(gang.members, gang.others if isinstance(gang, Gang) else ()), MAX_PODS)
        self.result.unschedulable += (Unschedulable(pod, diagnosis, always_considered, error) for pod in pods)
