"""The scheduling cycle: pending pods and a snapshot in, placements out. Pure.

Pods are taken in order; each gets a mask (filters), a vector (scores) and the best node; the result is assumed in the
snapshot, so that the next pod sees it. What the decisions become, and what happens when one fails, is the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from concerto.api.cpulist import format_cpu_list
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Pin, ReservationKey
from concerto.pinning.topology import bits
from concerto.scheduling.cpus import Workload
from concerto.scheduling.plugin import Query
from concerto.scheduling.profile import Profile
from concerto.scheduling.reasons import Diagnosis, diagnose
from concerto.scheduling.scores.capacity import pods_by_requests
from concerto.scheduling.snapshot import MEASURED, Snapshot
from concerto.scheduling.template import Ranked, Template, reserved

MAX_DECISIONS = 250
"""Decisions of one cycle: what one PodReservation may hold (CRD: maxItems)."""
RANKED = 3
"""Nodes that a decision tells the scores of."""


@dataclass(frozen=True)
class Decision:
    """A pod and where it goes; assumed in the snapshot already.

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
    """A pod for which there is no node now, and why; siblings share one diagnosis."""

    pod: PodView
    diagnosis: Diagnosis


@dataclass
class CycleResult:
    """What a cycle decided.

    Attributes:
        decisions: placements, in the order in which they were decided; at most the limit.
        unschedulable: pods without a node.
        left: pods that were not looked at, as the limit was reached.
        abstentions: by (scheduler name, plugin), nodes on which it had no opinion for want of a metric; a node counts
            once for each kind of pod.
    """

    decisions: list[Decision] = field(default_factory=list)
    unschedulable: list[Unschedulable] = field(default_factory=list)
    left: list[PodView] = field(default_factory=list)
    abstentions: Counter[tuple[str, str]] = field(default_factory=Counter)


def schedule(
    snapshot: Snapshot,
    heads: Iterable[PodView],
    profiles: Mapping[str, Profile],
    *,
    now: float,
    generator: np.random.Generator,
    limit: int = MAX_DECISIONS,
) -> CycleResult:
    """Decide on pending pods and assume the decisions in the snapshot.

    Args:
        snapshot: the cluster; decisions are assumed in it.
        heads: pending pods, in the order in which they are to be served (``queue.Queue.heads``). Pods that do not wait
            (gates, or deletion under way), of no profile, or placed already are passed over.
        profiles: by scheduler name.
        now: seconds since the epoch: says whose telemetry is still good.
        generator: breaks ties.
        limit: most decisions.
    """
    result = CycleResult()
    templates: dict[object, Template] = {}
    failed: dict[object, Diagnosis] = {}
    touched: list[int] = []
    for pod in heads:
        profile = profiles.get(pod.scheduler_name)
        if profile is None or not pod.waiting or snapshot.is_placed(pod.uid):
            continue
        if len(result.decisions) == limit:
            result.left.append(pod)
            continue
        reservation = snapshot.ledger.reservation_for(pod)
        workload = profile.workload(pod)
        key = (*_template_key(snapshot, pod, reservation), workload)
        # Placements only take away, so what has found no node in this cycle finds none later in it
        if key in failed:
            result.unschedulable.append(Unschedulable(pod, failed[key]))
            continue
        if key not in templates:
            query = query_for(snapshot, pod, profile, reservation, now)
            templates[key] = template = Template(query, profile.for_workload(workload), reservation, touched)
            for plugin, count in template.abstentions.items():
                result.abstentions[pod.scheduler_name, plugin] += count
        template = templates[key]
        template.update()
        best = template.best(generator)
        if best is None:
            failed[key] = diagnose(template.query, profile.for_workload(workload).filters)
            del templates[key]
            result.unschedulable.append(Unschedulable(pod, failed[key]))
            continue
        decision = _decide(pod, template, *best)
        snapshot.assume(pod, decision.assignment, now)
        touched.append(best[0])
        result.decisions.append(decision)
    return result


def _template_key(snapshot: Snapshot, pod: PodView, reservation: ReservationKey | None) -> tuple[object, ...]:
    """What two pods must have in common to be treated alike: labels matter only to others' anti-affinity."""
    refusable = (pod.namespace, frozenset(pod.labels.items())) if snapshot.any_refusals else None
    return (pod.scheduler_name, pod.shape, reservation, refusable)


def query_for(
    snapshot: Snapshot, pod: PodView, profile: Profile, reservation: ReservationKey | None, now: float
) -> Query:
    """What plugins are asked about a pod under its profile, as of now."""
    settings = profile.settings
    basis = snapshot.basis(now, stale_after_seconds=settings.stale_after_seconds, policy=settings.metrics_policy)
    return Query(
        pod,
        snapshot,
        basis,
        reserved(snapshot, reservation),
        settings.admit_fraction,
        settings.load,
        now - settings.stale_after_seconds,
        profile.workload(pod),
        settings.workload_aware.policy,
    )


def _decide(pod: PodView, template: Template, row: int, score: float) -> Decision:
    query, snapshot = template.query, template.query.snapshot
    rows = np.array([row])
    measured = query.basis[row] == MEASURED
    available = query.available(rows) if measured else pods_by_requests(query, rows)
    node = snapshot.names[row]
    assignment = Assignment(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=node,
        basis="Capacity" if measured else "Requests",
        node_capacity_resource_version=snapshot.ledger.resource_version(node),
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
    placement = query.snapshot.cpus.place(node, query.workload)
    assert placement is not None, "the filter let the node pass"
    cpus, mems = format_cpu_list(bits(placement.cpus)), format_cpu_list(placement.mems)
    return Pin(cpus, mems, placement.level, pod.name)
