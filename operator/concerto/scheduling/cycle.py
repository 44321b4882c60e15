"""The scheduling cycle: pending pods and the cluster in, placements out. Pure.

Pods are taken in order; each gets a mask (filters), a vector (scores) and the best node; the result is assumed in the
cluster, so that the next pod sees it. Carrying out the decisions, and what happens when one fails, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.gangs.gangs_of_cycle import GangsOfCycle
from concerto.scheduling.larger_first import larger_first
from concerto.scheduling.one_cycle import Cycle
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState

MAX_DECISIONS = 250
"""Decisions of one cycle: what one PodReservation may hold (CRD: maxItems)."""
MAX_UNSCHEDULABLE = 2000
"""Pods without a node, after which a cycle ends as if its time were over: to take note of them costs time, too."""
MAX_SECONDS = 0.18
"""Time of one cycle, after which no other pod is looked at."""


def schedule(
    cluster: ClusterState,
    heads: Iterable[PodView],
    profiles: Mapping[str, Profile],
    *,
    now: float,
    generator: np.random.Generator,
    limit: int = MAX_DECISIONS,
    resume: bool = False,
    postponed: PodView | None = None,
    parked: Iterable[PodView] = (),
    ready: Callable[[str], bool] = lambda uid: True,
    spent: Callable[[], float] = lambda: 0.0,
    max_seconds: float = MAX_SECONDS,
) -> CycleResult:
    """Decide on pending pods and assume the decisions in the cluster.

    Args:
        cluster: the cluster; decisions are assumed in it.
        heads: pending pods, in the order in which they are to be served (``queue.Queue.heads``), except that of pods
            created in the same second larger ones come first (``larger_first``). Pods that do not wait, of no profile,
            or placed already are passed over.
        profiles: by scheduler name.
        now: seconds since the epoch: says which telemetry is still good.
        generator: breaks ties.
        limit: decisions at most; a gang that is larger is decided on in a cycle of its own.
        resume: whether the cycle before ran out of time. The order of ``heads`` stays then: what is last has failed.
        postponed: a pod of the gang that the cycle before had no room or time left for (``CycleResult.postponed``). It
            goes before ``heads``, but not before the gang that holds room, and is not postponed again unless pods were
            counted in time of its cycle (`PodCounts.begin_turn`), which are not in the cycle after that.
        parked: pods beside ``heads`` that wait for capacity (``queue.Queue.parked``); they are counted, not looked at.
        ready: whether the pod of that UID may be placed now; pods of gangs are not only found in ``heads``.
        spent: seconds since the cycle began; asked before each pod but the first.
        max_seconds: time after which no other pod is looked at.
    """
    has_counted = cluster.pod_counts.begin_turn(may_rest=postponed is not None)
    gangs = GangsOfCycle(cluster, ready)
    cycle = Cycle(cluster, profiles, now, generator, gangs, lambda times: spent() >= times * max_seconds)
    cycle.result.released = cluster.pod_groups.held_room.end_overdue(now)
    unfinished = cycle.gangs.unfinished(resume=resume)
    heads = cycle.drain.first(heads if resume else larger_first(cluster, heads, parked), profiles, now)
    heads = cycle.gangs.with_holder(heads if postponed is None else chain((postponed,), heads))
    most = MAX_UNSCHEDULABLE
    for looked_at, pod in enumerate(chain(unfinished, heads)):
        if looked_at == len(unfinished):
            most += len(cycle.result.unschedulable)  # these go first: all others would wait for them
        elif looked_at < len(unfinished) and cycle.gangs.passes_over(pod, cycle.result, cycle.is_out_of_time):
            continue
        if len(cycle.result.decisions) >= limit:
            cycle.result.has_more = True
            break
        if looked_at and (cycle.is_out_of_time(1.0) or len(cycle.result.unschedulable) >= most):
            cycle.result.has_more = cycle.result.out_of_time = True
            cluster.pod_groups.unfinished_took_cycle = looked_at <= len(unfinished)
            break
        if looked_at >= len(unfinished):
            cycle.result.turns[pod.priority] = pod.namespace
        is_first = not has_counted and (looked_at <= len(unfinished) or pod is postponed)
        cycle.look_at(pod, is_first=is_first, room=limit - len(cycle.result.decisions))
        if cycle.result.postponed is not None:
            cycle.result.has_more = True
            break
    cycle.end()
    cluster.kinds.pods_wait = bool(cycle.result.unschedulable or cycle.result.has_more)
    cluster.kinds.large_pods_wait = any(
        failure.always_considered and failure.diagnosis.gang is None for failure in cycle.result.unschedulable
    )
    return cycle.result
