"""The scheduling cycle: pending pods and a cluster in, placements out. Pure.

Pods are taken in order; each gets a mask (filters), a vector (scores) and the best node; the result is assumed in the
cluster, so that the next pod sees it. What the decisions become, and what happens when one fails, is the caller's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from concerto.api.cpulist import format_cpu_list
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Pin, ReservationKey
from concerto.pinning.topology import bits
from concerto.scheduling.evaluation import Evaluation, Ranked, reserved
from concerto.scheduling.framework import Query
from concerto.scheduling.plugins.measured_capacity.score import pods_by_requests
from concerto.scheduling.profile import Profile
from concerto.scheduling.reasons import Diagnosis, diagnose
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Ints
from concerto.scheduling.state.cpus import Workload
from concerto.scheduling.state.measured_capacity import MEASURED

MAX_DECISIONS = 250
"""Decisions of one cycle: what one PodReservation may hold (CRD: maxItems)."""
_MAX_EMPTYING = 0.25
"""Share of the nodes that are kept at a time for large pods that wait."""
_SOON, _NEARLY_ALL = 0.25, 0.75
"""Part of ``largePodWait`` after which a large pod is content with that part of its CPU: what takes all of a node would
go nowhere where a service runs on every node."""
_MAX_WAITS = 5
"""Times that a large pod waits for ``largePodWait``: then it takes whatever room there is."""
_ORDINARY_WAITS = 3
"""Times that an ordinary pod waits as long: then no node is kept from it, nor do younger large ones go before it."""
ANYTHING = -math.inf
"""CPU that is looked for, for a pod that has waited so long that it goes wherever there is room for one more."""
RANKED = 3
"""Nodes that a decision tells the scores of."""


@dataclass(frozen=True)
class Decision:
    """A pod and where it goes; assumed in the cluster already.

    Attributes:
        pod: the pod.
        assignment: the placement, as it is to be stored.
        score: the node's weighted score, 0 to 100.
        feasible: how many nodes were feasible.
        top: the node and the next best ones, with the scores that each plugin gave them.
        by_allocation: whether every score by load abstained on every node, so that requests stood in for it.
    """

    pod: PodView
    assignment: Assignment
    score: float
    feasible: int
    top: tuple[Ranked, ...] = ()
    by_allocation: bool = False


@dataclass(frozen=True)
class Unschedulable:
    """A pod for which there is no node now, and why; siblings share one diagnosis.

    Attributes:
        pod: the pod.
        diagnosis: why.
        always_considered: whether nodes are drained for it. It is then among the heads of every cycle; a cycle without
            it would give those nodes away.
    """

    pod: PodView
    diagnosis: Diagnosis
    always_considered: bool = False


@dataclass
class CycleResult:
    """What a cycle decided.

    Attributes:
        decisions: placements, in the order in which they were decided; at most the limit.
        unschedulable: pods without a node.
        left: pods that were not looked at, as the limit was reached or time ran out.
        out_of_time: whether time ran out.
        abstentions: by (scheduler name, plugin), nodes on which it had no opinion for want of a metric; a node counts
            once for each kind of pod.
    """

    decisions: list[Decision] = field(default_factory=list)
    unschedulable: list[Unschedulable] = field(default_factory=list)
    left: list[PodView] = field(default_factory=list)
    out_of_time: bool = False
    abstentions: Counter[tuple[str, str]] = field(default_factory=Counter)


def schedule(
    cluster: ClusterState,
    heads: Iterable[PodView],
    profiles: Mapping[str, Profile],
    *,
    now: float,
    generator: np.random.Generator,
    limit: int = MAX_DECISIONS,
    out_of_time: Callable[[], bool] = lambda: False,
) -> CycleResult:
    """Decide on pending pods and assume the decisions in the cluster.

    Args:
        cluster: the cluster; decisions are assumed in it.
        heads: pending pods, in the order in which they are to be served (``queue.Queue.heads``). Pods that do not wait
            (gates, or deletion under way), of no profile, or placed already are passed over.
        profiles: by scheduler name.
        now: seconds since the epoch: says whose telemetry is still good.
        generator: breaks ties.
        limit: most decisions.
        out_of_time: whether the cycle should end; asked before each pod but the first, so that every cycle advances.
    """
    result = CycleResult()
    templates: dict[object, Evaluation] = {}
    failed: dict[object, tuple[Diagnosis, Query]] = {}
    touched: list[int] = []
    drain = LargePodDrain(cluster, touched)
    for pod in drain.first(heads, profiles, now):
        profile = profiles.get(pod.scheduler_name)
        if profile is None or not pod.waiting or cluster.is_placed(pod.uid):
            continue
        if not result.out_of_time and (result.decisions or result.unschedulable):
            result.out_of_time = out_of_time()
        if len(result.decisions) == limit or result.out_of_time:
            result.left.append(pod)
            continue
        reservation = cluster.ledger.reservations.for_pod(pod)
        workload = profile.workload(pod)
        millicores = _millicores(cluster, pod, profile, now)
        key = (*_template_key(cluster, pod, reservation), workload, millicores)
        # Placements only take away, so what has found no node in this cycle finds none later in it
        if key not in failed:
            if key not in templates:
                query = query_for(cluster, pod, profile, reservation, now)
                templates[key] = template = Evaluation(query, profile.for_workload(workload), reservation, touched)
                for plugin, count in template.abstentions.items():
                    result.abstentions[pod.scheduler_name, plugin] += count
            template = templates[key]
            template.update()
            best = template.best(generator)
            if best is not None:
                decision = _decide(pod, template, *best)
                cluster.assume(pod, decision.assignment, now, millicores)
                touched.append(best[0])
                result.decisions.append(decision)
                continue
            failed[key] = diagnose(template.query, profile.for_workload(workload).filters), template.query
            del templates[key]
        diagnosis, query = failed[key]
        always_considered = millicores != 0.0 and _waits(pod, profile, now) >= 1
        result.unschedulable.append(Unschedulable(pod, diagnosis, always_considered))
        if always_considered:
            drain.keep_one(key, query, profile.for_workload(workload))
    drain.over()
    return result


class LargePodDrain:
    """Nodes that a cycle keeps from pods that are units, so that they come free for large ones that wait for long.

    Nothing is remembered from one cycle to the next: the node that has emptied the most is the first to be kept again.
    """

    def __init__(self, cluster: ClusterState, touched: list[int]) -> None:
        self._cluster = cluster
        self._touched = touched
        self._may_keep: dict[object, list[int]] = {}  # for like pods, the last is the next

    def first(self, heads: Iterable[PodView], profiles: Mapping[str, Profile], now: float) -> Iterable[PodView]:
        """The same pods, those first that nodes may have to be kept for: others would take what comes free."""
        if not self._cluster.large_pods.sizes:
            return heads

        def waits(pod: PodView) -> bool:
            profile = profiles.get(pod.scheduler_name)
            if profile is None or not _waits(pod, profile, now):
                return False
            return _millicores(self._cluster, pod, profile, now) != 0.0

        return sorted(heads, key=lambda pod: (-pod.priority, not waits(pod)))

    def keep_one(self, key: object, query: Query, profile: Profile) -> None:
        """Keep one more node for a pod like those of that key, the one that has to lose the least."""
        if key not in self._may_keep:
            self._may_keep[key] = self._candidates(query, profile)
        candidates = self._may_keep[key]
        while candidates:
            row = candidates.pop()
            if not self._cluster.large_pods.draining[row]:
                self._cluster.large_pods.draining[row] = True
                self._touched.append(row)
                return

    def _candidates(self, query: Query, profile: Profile) -> list[int]:
        """Nodes to keep for such pods, so many that of the nodes that would do for them a quarter is kept, or one."""
        cluster, rows = self._cluster, slice(0, self._cluster.size)
        wanted = cluster.nodes.exists[rows] & query.is_measured(rows)
        for plugin in profile.filters:
            if plugin.name != "PodCapacity":
                wanted &= plugin.feasible(query, rows)
        taken = cluster.large_pods.taken(rows)
        kept = int(np.count_nonzero(wanted & cluster.large_pods.draining[rows]))
        most = max(1, int(_MAX_EMPTYING * np.count_nonzero(wanted))) - kept
        could: Ints = np.flatnonzero(wanted & ~cluster.large_pods.draining[rows] & np.isfinite(taken))
        return [int(row) for row in could[np.argsort(taken[could], kind="stable")][: max(0, most)][::-1]]

    def over(self) -> None:
        """The cycle is over."""
        self._cluster.large_pods.draining[:] = False


def _template_key(cluster: ClusterState, pod: PodView, reservation: ReservationKey | None) -> tuple[object, ...]:
    """What two pods must have in common to be treated alike: labels matter only to others' anti-affinity."""
    refusable = (pod.namespace, frozenset(pod.labels.items())) if cluster.anti_affinity else None
    return (pod.scheduler_name, pod.shape, reservation, refusable)


def _waits(pod: PodView, profile: Profile, now: float) -> int:
    """How many times ``largePodWait`` the pod has waited."""
    return max(0, int((now - pod.created) / profile.settings.large_pod_wait_seconds))


def _millicores(cluster: ClusterState, pod: PodView, profile: Profile, now: float) -> float:
    """CPU that is looked for, for a pod whose kind is no unit of capacity; 0 for all others.

    The longer it waits, the less it is content with. Where even keeping a node for it has not helped, slow is better
    than never: it takes half, and so on, and in the end ``ANYTHING``, as do ordinary pods that have waited for long.
    """
    if not cluster.large_pods.sizes:
        return 0.0
    waits, millicores = _waits(pod, profile, now), cluster.large_pods.sizes.millicores(pod)
    if waits >= (_MAX_WAITS if millicores else _ORDINARY_WAITS):
        return ANYTHING
    if waits < 2:
        soon = now - pod.created < _SOON * profile.settings.large_pod_wait_seconds
        return millicores if soon else _NEARLY_ALL * millicores
    return millicores * 0.5 ** (waits - 1)


def query_for(
    cluster: ClusterState, pod: PodView, profile: Profile, reservation: ReservationKey | None, now: float
) -> Query:
    """What plugins are asked about a pod under its profile, as of now."""
    settings = profile.settings
    basis = cluster.measured.basis(
        now, stale_after_seconds=settings.stale_after_seconds, policy=settings.metrics_policy
    )
    return Query(
        pod,
        cluster,
        basis,
        reserved(cluster, reservation),
        settings.admit_fraction,
        settings.load,
        now - settings.stale_after_seconds,
        profile.workload(pod),
        settings.workload_aware.policy,
        _millicores(cluster, pod, profile, now),
    )


def _decide(pod: PodView, template: Evaluation, row: int, score: float) -> Decision:
    query, cluster = template.query, template.query.cluster
    rows = np.array([row])
    measured = query.basis[row] == MEASURED
    available = query.available(rows) if measured else pods_by_requests(query, rows)
    node = cluster.names[row]
    assignment = Assignment(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=node,
        basis="Capacity" if measured else "Requests",
        node_capacity_resource_version=cluster.ledger.resource_version(node),
        available=float(available[0]),
        reservation=template.reservation if query.reserved[row] > 0 else None,
        pin=_pin(pod, query, node),
    )
    return Decision(
        pod,
        assignment,
        score,
        int(np.count_nonzero(template.feasible)),
        template.top(row, RANKED),
        template.by_allocation,
    )


def _pin(pod: PodView, query: Query, node: str) -> Pin | None:
    """The CPUs that the pod gets there; its binding has its name, as a pod has one at most."""
    if not isinstance(query.workload, Workload):
        return None
    placement = query.cluster.cpus.place(node, query.workload)
    assert placement is not None, "the filter let the node pass"
    cpus, mems = format_cpu_list(bits(placement.cpus)), format_cpu_list(placement.mems)
    return Pin(cpus, mems, placement.level, pod.name)
