"""Room for large pods: the CPU that one requires the longer it waits, and nodes that a cycle drains for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, groupby, islice

import numpy as np

from concerto.api.pod import PodView
from concerto.capacity.kinds.cost import Cost
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.feasibility import Placement
from concerto.scheduling.framework import Query
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Ints

_MAX_DRAINING = 0.25
"""Share of the nodes that are drained at a time for large pods that wait."""
_SOON, _NEARLY_ALL = 0.25, 0.75
"""Part of ``largePodWait`` after which a large pod requires that part of its CPU only: what takes all of a node would
find none where a service runs on every node."""
_MAX_WAITS_LARGE = 5
"""Times that a large pod waits for ``largePodWait``: then it takes whatever room there is."""
_MAX_WAITS_REGULAR = 3
"""Times that a regular pod waits as long: then no node is drained at its cost, nor do younger large pods come first."""
_MAX_SORTED = 4096
"""Heads among which large pods come first."""


def waits(pod: PodView, profile: Profile, now: float) -> int:
    """How many times ``largePodWait`` the pod has waited."""
    return max(0, int((now - pod.created) / profile.settings.large_pod_wait_seconds))


def is_of_large_pod(query: Query) -> bool:
    """Whether nodes may be drained for the pod that is asked about."""
    if query.cost is not None:
        return query.cluster.kinds.is_large(query.cost)
    return query.required_cpu is not None or query.ignores_size


def required_cpu(cluster: ClusterState, pod: PodView, profile: Profile, now: float) -> tuple[float | None, bool]:
    """CPU that a node must have left for the pod, millicores, and whether the pod goes wherever there is room.

    None for a regular pod. The longer a large pod waits, the less it requires. Where even draining a node has not
    helped, slow is better than never: it requires half, and so on, and in the end it ignores size, as do regular pods
    that have waited for long.
    """
    sizes = cluster.large_pods.sizes
    if not sizes:
        return None, False
    waited, millicores = waits(pod, profile, now), sizes.millicores(pod)
    if waited >= (_MAX_WAITS_LARGE if millicores else _MAX_WAITS_REGULAR):
        return None, True
    if not millicores:
        return None, False
    if waited < 2:
        soon = now - pod.created < _SOON * profile.settings.large_pod_wait_seconds
        return millicores if soon else _NEARLY_ALL * millicores, False
    return millicores * 0.5 ** (waited - 1), False


def ignores_size_by_kind(cluster: ClusterState, pod: PodView, cost: Cost, profile: Profile, now: float) -> bool:
    """Whether the pod, placed by what it costs, goes wherever any CPU is left, drained nodes included.

    A large pod does once draining has not helped for long, and an ordinary one once nodes were drained at its cost for
    long.
    """
    if not cluster.kinds.large_pods_wait:
        return False
    limit = _MAX_WAITS_LARGE if cluster.kinds.is_large(cost) else _MAX_WAITS_REGULAR
    return waits(pod, profile, now) >= limit


class LargePodDrain:
    """Nodes that a cycle gives no regular pods, so that they come free for large pods that have waited for long.

    Nothing is remembered from one cycle to the next: the node that has emptied the most is the first to be drained
    again.

    Args:
        cluster: the cluster; its ``large_pods.draining`` is written.
        placements: of the cycle; rows that are drained are appended.
    """

    def __init__(self, cluster: ClusterState, placements: list[Placement]) -> None:
        self._cluster = cluster
        self._placements = placements
        self._candidates: dict[object, list[int]] = {}  # for alike pods, the last is the next

    def first(self, heads: Iterable[PodView], profiles: Mapping[str, Profile], now: float) -> Iterable[PodView]:
        """The same pods, of each priority those first that nodes may be drained for: others would take what is free."""
        kinds = self._cluster.kinds
        if not (self._cluster.large_pods.sizes or (kinds and kinds.large_pods_wait)):
            return heads

        def has_waited(pod: PodView) -> bool:
            profile = profiles.get(pod.scheduler_name)
            if profile is None or not waits(pod, profile, now):
                return False
            if kinds and pod.counted:
                return kinds.is_large(kinds.cost_of(pod))
            millicores, ignores_size = required_cpu(self._cluster, pod, profile, now)
            return millicores is not None or ignores_size

        iterator = iter(heads)
        # Run by run of one priority: a cycle that goes on puts pods that have failed behind others of lower priority
        runs = groupby(islice(iterator, _MAX_SORTED), key=lambda pod: pod.priority)
        some = [pod for _, run in runs for pod in sorted(run, key=lambda pod: not has_waited(pod))]
        return chain(some, iterator)

    def drain_one(self, key: object, evaluation: Evaluation) -> None:
        """Drain one more node for a pod like those of that key, the node that has to lose the least."""
        if key not in self._candidates:
            self._candidates[key] = self._find(evaluation)
        candidates, draining = self._candidates[key], self._cluster.large_pods.draining
        while candidates:
            row = candidates.pop()
            if not draining[row]:
                draining[row] = True
                self._placements.append((None, row))
                return

    def end(self) -> None:
        """The cycle is over."""
        self._cluster.large_pods.draining[:] = False

    def _find(self, evaluation: Evaluation) -> list[int]:
        """Nodes to drain for such pods: so many that a quarter of those that would do for them is drained, or one."""
        cluster, rows = self._cluster, slice(0, self._cluster.size)
        wanted = cluster.nodes.exists[rows] & evaluation.query.is_measured(rows)
        for plugin, state in evaluation.filters:
            if not plugin.mended_by_draining:
                wanted &= plugin.check(state, rows) == 0
        by_kind = evaluation.query.cost is not None
        taken = -cluster.kinds.loads.cpu_left(rows) if by_kind else cluster.large_pods.taken(rows)
        draining = cluster.large_pods.draining[rows]
        max_more = max(1, int(_MAX_DRAINING * np.count_nonzero(wanted))) - int(np.count_nonzero(wanted & draining))
        possible: Ints = np.flatnonzero(wanted & ~draining & np.isfinite(taken))
        return [int(row) for row in possible[np.argsort(taken[possible], kind="stable")][: max(0, max_more)][::-1]]
