"""The scheduling cycle: pending pods and the cluster in, placements out. Pure.

Pods are taken in order; each gets a mask (filters), a vector (scores) and the best node; the result is assumed in the
cluster, so that the next pod sees it. Carrying out the decisions, and what happens when one fails, is the caller's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_kind import Kind
from concerto.api.podreservation import Assignment, ReservationKey
from concerto.capacity.kinds.cost import Cost
from concerto.scheduling.evaluation import Evaluation, Ranked, reserved
from concerto.scheduling.feasibility import Placement
from concerto.scheduling.framework import Query
from concerto.scheduling.large_pod_drain import LargePodDrain, ignores_size_by_kind, required_cpu, waits
from concerto.scheduling.larger_first import larger_first
from concerto.scheduling.profile import Profile
from concerto.scheduling.reasons import Diagnosis, diagnose, diagnose_error
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.measured_capacity import MEASURED

MAX_DECISIONS = 250
"""Decisions of one cycle: what one PodReservation may hold (CRD: maxItems)."""
MAX_SECONDS = 0.18
"""Time of one cycle, after which no other pod is looked at."""
RANKED = 3
"""Nodes whose scores a decision keeps."""


@dataclass(frozen=True)
class Decision:
    """A pod and where it goes; assumed in the cluster already.

    Attributes:
        pod: the pod.
        assignment: the placement, as it is to be stored.
        score: the node's weighted score, 0 to 100.
        feasible: how many nodes were feasible.
        top: the node and the next best ones, with the scores that each plugin gave them.
        by_allocation: whether too few nodes were measured for every score by load, so that requests decided instead.
    """

    pod: PodView
    assignment: Assignment
    score: float
    feasible: int
    top: tuple[Ranked, ...] = ()
    by_allocation: bool = False


@dataclass(frozen=True)
class Unschedulable:
    """A pod for which there is no node now, and why; alike pods share one diagnosis.

    Attributes:
        pod: the pod.
        diagnosis: why.
        always_considered: whether nodes are drained for it. It is then among the heads of every cycle; a cycle without
            it would give those nodes away.
        error: what went wrong in a plugin; None where filters refused every node.
    """

    pod: PodView
    diagnosis: Diagnosis
    always_considered: bool = False
    error: Exception | None = None


@dataclass
class CycleResult:
    """What a cycle decided.

    Attributes:
        decisions: placements, in the order in which they were decided; at most the limit.
        unschedulable: pods without a node.
        has_more: whether it stopped before it had looked at all pods: at the limit of decisions, or out of time.
        out_of_time: whether it stopped because its time was over.
        abstentions: by (scheduler name, plugin), nodes of which it lacked metrics; a node counts once
            for each signature.
        look_again_at: when a node may be given the work of a pod that is without a node now, seconds since the epoch,
            though nothing else has changed; infinity if that is not what such pods wait for.
    """

    decisions: list[Decision] = field(default_factory=list)
    unschedulable: list[Unschedulable] = field(default_factory=list)
    has_more: bool = False
    out_of_time: bool = False
    abstentions: Counter[tuple[str, str]] = field(default_factory=Counter)
    look_again_at: float = math.inf


def schedule(
    cluster: ClusterState,
    heads: Iterable[PodView],
    profiles: Mapping[str, Profile],
    *,
    now: float,
    generator: np.random.Generator,
    limit: int = MAX_DECISIONS,
    spent: Callable[[], float] = lambda: 0.0,
    max_seconds: float = MAX_SECONDS,
) -> CycleResult:
    """Decide on pending pods and assume the decisions in the cluster.

    Args:
        cluster: the cluster; decisions are assumed in it.
        heads: pending pods, in the order in which they are to be served (``queue.Queue.heads``), except that of pods
            created in the same second larger ones come first (``larger_first``). Pods that do not wait (gates, or
            deletion under way), of no profile, or placed already are passed over.
        profiles: by scheduler name.
        now: seconds since the epoch: says which telemetry is still good.
        generator: breaks ties.
        limit: decisions at most.
        spent: seconds since the cycle began; asked before each pod but the first.
        max_seconds: time after which no other pod is looked at.
    """
    cycle = _Cycle(cluster, profiles, now, generator)
    for looked_at, pod in enumerate(cycle.drain.first(larger_first(cluster, heads), profiles, now)):
        if len(cycle.result.decisions) >= limit:
            cycle.result.has_more = True
            break
        if looked_at and spent() >= max_seconds:
            cycle.result.has_more = cycle.result.out_of_time = True
            break
        cycle.look_at(pod)
    cycle.drain.end()
    cluster.kinds.pods_wait = bool(cycle.result.unschedulable or cycle.result.has_more)
    cluster.kinds.large_pods_wait = any(failure.always_considered for failure in cycle.result.unschedulable)
    return cycle.result


ALL_ROWS = slice(None)


@dataclass
class _Failure:
    """Why pods of one signature found no node.

    Attributes:
        diagnosis: why.
        evaluation: what it was found out by; None after an error.
        error: what went wrong in a plugin.
    """

    diagnosis: Diagnosis
    evaluation: Evaluation | None = None
    error: Exception | None = None


class _Cycle:
    """One cycle: what has been found out in it, by signature of pods.

    Args:
        cluster: the cluster.
        profiles: by scheduler name.
        now: seconds since the epoch.
        generator: breaks ties.
    """

    def __init__(
        self, cluster: ClusterState, profiles: Mapping[str, Profile], now: float, generator: np.random.Generator
    ) -> None:
        self.result = CycleResult()
        self._cluster = cluster
        self._profiles = profiles
        self._now = now
        self._generator = generator
        self._placements: list[Placement] = []
        self.drain = LargePodDrain(cluster, self._placements)
        self._evaluations: dict[Hashable, Evaluation] = {}
        self._failed: dict[Hashable, _Failure] = {}
        self._nominated: dict[int, Hashable] = {}  # by priority

    def look_at(self, pod: PodView) -> None:
        """Decide on one pod. An error in a plugin is this pod's failure, and its like's, and nobody else's."""
        # 1. Is it ours, and does it wait?
        profile = self._profiles.get(pod.scheduler_name)
        if profile is None or not pod.waiting or self._cluster.is_placed(pod.uid):
            return
        alike: Hashable = pod.uid
        try:
            # 2. What do plugins have to know of it?
            request = request_of(self._cluster, pod, profile, self._now)
            alike = (pod.scheduler_name, self._cluster.signatures.of(pod), request, self._room_kept_from(pod.priority))
            is_nominated = bool(self._cluster.nominations.node_of(pod.uid))
            if is_nominated or not self._is_hopeless(alike):
                # 3. Which nodes are feasible, and how good are they?
                evaluation = self._evaluation(alike, pod, profile, request)
                best = evaluation.best_if_nominated(pod) if is_nominated else None
                best = best or evaluation.best(self._generator)
                if best is not None:
                    # 4. Take the best
                    self._place(pod, evaluation, *best)
                    return
                # 5. Or find out why no node will do
                self._failed[alike] = _Failure(diagnose(evaluation.query, evaluation.filters), evaluation)
                self._look_again_when_paced(request)
        except Exception as error:
            self._cluster.forget(pod.uid)
            self._failed[alike] = _Failure(diagnose_error(self._cluster, error), error=error)
        # 6. No node: drain one for a large pod that has waited for long
        self._fail(pod, alike, profile)

    def _room_kept_from(self, priority: int) -> Hashable:
        """What is the same for two priorities if the same nominated pods' room is kept from pods of both.

        Within a cycle, only its own placements change what that room is; evaluations follow those.
        """
        if priority not in self._nominated:
            self._nominated[priority] = self._cluster.nominations.signature(priority)
        return self._nominated[priority]

    def _is_hopeless(self, alike: Hashable) -> bool:
        """Whether such a pod has found no node in this cycle, and no placement since can have helped it."""
        failure = self._failed.get(alike)
        if failure is None:
            return False
        evaluation = failure.evaluation
        if evaluation is None or not evaluation.may_grow:
            return True
        evaluation.update()
        if not evaluation.feasible.any():
            return True
        del self._failed[alike]
        return False

    def _evaluation(self, alike: Hashable, pod: PodView, profile: Profile, request: Request) -> Evaluation:
        evaluation = self._evaluations.get(alike)
        if evaluation is not None:
            evaluation.update()
            return evaluation
        query = query_for(self._cluster, pod, profile, self._now, request)
        evaluation = self._evaluations[alike] = Evaluation(query, profile, self._placements)
        for plugin, count in evaluation.abstentions.items():
            self.result.abstentions[pod.scheduler_name, plugin] += count
        return evaluation

    def _place(self, pod: PodView, evaluation: Evaluation, row: int, score: float) -> None:
        decision = _decide(pod, evaluation, row, score)
        self._cluster.assume(pod, decision.assignment, self._now, evaluation.query.required_cpu or 0.0)
        self._placements.append((pod, row))
        self.result.decisions.append(decision)

    def _look_again_when_paced(self, request: Request) -> None:
        if request.cost is not None:
            wait = self._cluster.kinds.loads.seconds_until_paced(request.cost, ALL_ROWS, self._now)
            self.result.look_again_at = min(self.result.look_again_at, self._now + wait)

    def _fail(self, pod: PodView, alike: Hashable, profile: Profile) -> None:
        failure = self._failed[alike]
        query = failure.evaluation.query if failure.evaluation is not None else None
        is_large = query is not None and (query.required_cpu is not None or query.ignores_size)
        if query is not None and query.cost is not None:
            is_large = self._cluster.kinds.is_large(query.cost)
        always_considered = is_large and waits(pod, profile, self._now) >= 1
        self.result.unschedulable.append(Unschedulable(pod, failure.diagnosis, always_considered, failure.error))
        if always_considered and failure.evaluation is not None:
            self.drain.drain_one(alike, failure.evaluation)


class Request(NamedTuple):
    """What one pod asks for beyond its shape, under its profile and as of now.

    Attributes:
        reservation: the reservation that holds units for it; None without one.
        required_cpu: millicores that a node must have left for a large pod; None for a regular pod.
        ignores_size: whether it goes wherever there is room for one more pod.
        cost: what such a pod costs by what was measured of its kind; None while nothing is measured of any kind.
        first_of: its kind, while no pod of it has ended: how many of its pods run where matters then.
    """

    reservation: ReservationKey | None
    required_cpu: float | None
    ignores_size: bool
    cost: Cost | None = None
    first_of: Kind | None = None


def request_of(cluster: ClusterState, pod: PodView, profile: Profile, now: float) -> Request:
    """What the pod asks for beyond its shape."""
    reservation = cluster.ledger.reservations.for_pod(pod)
    if not (cluster.kinds and pod.counted):
        return Request(reservation, *required_cpu(cluster, pod, profile, now))
    cost = cluster.kinds.cost_of(pod)
    ignores_size = ignores_size_by_kind(cluster, pod, cost, profile, now)
    return Request(reservation, None, ignores_size, cost, None if cost.basis == "Ended" else pod.kind)


def query_for(
    cluster: ClusterState, pod: PodView, profile: Profile, now: float, request: Request | None = None
) -> Query:
    """What plugins are asked about a pod under its profile, as of now."""
    settings = profile.settings
    request = request_of(cluster, pod, profile, now) if request is None else request
    basis = cluster.measured.basis(
        now, stale_after_seconds=settings.stale_after_seconds, policy=profile.capacity_policy
    )
    return Query(
        pod,
        cluster,
        settings,
        basis,
        reserved(cluster, request.reservation),
        now,
        reservation=request.reservation,
        required_cpu=request.required_cpu,
        ignores_size=request.ignores_size,
        cost=request.cost,
    )


def _decide(pod: PodView, evaluation: Evaluation, row: int, score: float) -> Decision:
    query, cluster = evaluation.query, evaluation.query.cluster
    rows = np.array([row])
    measured = query.basis[row] == MEASURED
    cost = cluster.kinds.recorded(query.cost, row) if measured and query.cost is not None else None
    available = query.capacity(rows) if measured else query.pods_by_requests(rows)
    node = cluster.names[row]
    assignment = Assignment(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=node,
        basis="Capacity" if measured else "Requests",
        node_capacity_resource_version=cluster.ledger.nodes.resource_version(node),
        available=float(available[0]),
        reservation=query.reservation if query.reserved[row] > 0 else None,
        cost=cost,
    )
    return Decision(
        pod,
        evaluation.reserve(assignment),
        score,
        int(np.count_nonzero(evaluation.feasible)),
        evaluation.top(row, RANKED),
        evaluation.by_allocation,
    )
