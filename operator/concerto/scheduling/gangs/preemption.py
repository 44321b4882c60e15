"""Which pods to evict so that a whole gang fits. Pure. Source: kube-scheduler's ``PodGroupEvaluator``.

First all pods of lower priority are removed from their nodes, and the gang is placed as in a cycle. Then one pod after
another is put back, as long as each pod of the gang still fits on its node. Pods that can't be put back are the
victims.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.scheduling.framework import Filter, Reach
from concerto.scheduling.gangs.assumed_gang import AssumedGang
from concerto.scheduling.gangs.gang import Gang, selected_among
from concerto.scheduling.gangs.gang_queries import GangQueries
from concerto.scheduling.gangs.gangs_of_cycle import GangsOfCycle
from concerto.scheduling.gangs.trial import Trial
from concerto.scheduling.nominated_room import Prepared, RowTrial
from concerto.scheduling.one_cycle import Cycle
from concerto.scheduling.preemption.eligibility import may_be_evicted
from concerto.scheduling.preemption.victims import Victims, choose_victims
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Rows
from concerto.scheduling.state.measured_capacity import MEASURED
from concerto.scheduling.state.what_if import RowWhatIf

LIMITS = (250, 2000)
"""How many pods the first search for a gang may remove, and how many the next one."""


class OutOfTime(Exception):
    """The search did not end in time, so the victims are not known."""


@dataclass(frozen=True)
class RoomForGang:
    """What a gang needs to fit.

    Attributes:
        nodes: of the gang's pods, by UID.
        victims: the pods to evict, at least one.
    """

    nodes: Mapping[str, str]
    victims: Victims


class GangPreemption:
    """The search for room for one gang.

    Args:
        cluster: the cluster; as before after each call, also one that raises.
        gang: the gang.
        profile: of its pods.
        now: seconds since the epoch.
        generator: breaks ties between nodes.

    Attributes:
        removable: how many pods may be evicted, no more than one beyond the limit of a call; known after the first.
    """

    def __init__(
        self, cluster: ClusterState, gang: Gang, profile: Profile, now: float, generator: np.random.Generator
    ) -> None:
        self.removable = 0
        # Labels make no difference once all pods are off that select by them, and do again when those are put back
        selected = selected_among(gang.members)
        alike = {pod.uid: (cluster.signatures.of(pod), pod.kind.key, selected[pod.uid]) for pod in gang.members}
        self._queries = GangQueries(cluster, gang, profile, now, alike)
        self._generator = generator

    def is_hopeless_where_nominated(self) -> bool:
        """Whether one of the nodes that its pods are nominated for would take none of them whatever pods left it."""
        cluster = self._queries.cluster
        nodes = {node for pod in self._queries.gang.members if (node := cluster.nominations.node_of(pod.uid))}
        if not nodes:
            return False
        rows = np.array([cluster.row_of[node] for node in nodes if node in cluster.row_of], dtype=np.int64)
        return len(rows) < len(nodes) or not _may_help(self._queries, rows, lambda: False).all()

    def find(self, limit: int, is_out_of_time: Callable[[], bool]) -> RoomForGang | None:
        """The pods to evict and the gang's nodes; None if the gang does not fit without them, or fits already.

        Args:
            limit: pods that are removed at most: those of the nodes whose pods have the lowest priority.
            is_out_of_time: whether to stop; called repeatedly.

        Raises:
            OutOfTime: the time was too short.
            StillCounting: in a turn (``PodCounts.begin_turn``), while pods that the gang's terms select are counted.
        """
        queries = self._queries
        removable = _removable(queries, limit + 1, is_out_of_time)
        self.removable = len(removable)
        removable = removable[:limit]

        def place() -> Sequence[Assignment]:
            return _place(queries, self._generator, is_out_of_time)

        pods = [pod for pod, _ in removable]
        with ExitStack() as stack:
            rows = {pod.uid: row for pod, row in removable}
            trial = _Trial(queries, stack, rows, place, is_out_of_time)
            victims = choose_victims(pods, queries.cluster.budgets.of(pods), trial)
            return RoomForGang(trial.nodes, victims) if victims is not None and victims.pods and trial.nodes else None


def _place(
    queries: GangQueries, generator: np.random.Generator, is_out_of_time: Callable[[], bool]
) -> Sequence[Assignment]:
    """Where pods of the gang would go; nothing if too few find nodes, or not in time. The cluster is as before."""
    cluster, gang, profile = queries.cluster, queries.gang, queries.profile
    gangs = GangsOfCycle(cluster, lambda uid: True)
    profiles = {gang.members[0].scheduler_name: profile}
    cycle = Cycle(cluster, profiles, queries.now, generator, gangs, lambda times: is_out_of_time())
    trial = Trial(cluster, queries.now)
    try:
        failures, in_time = cycle.try_all(gang, profile, trial, 1.0)
    finally:
        trial.take_back()
    fits = in_time and len(failures) <= gang.spare
    return [decision.assignment for decision in cycle.result.decisions] if fits else ()


def _removable(queries: GangQueries, number: int, is_out_of_time: Callable[[], bool]) -> list[tuple[PodView, int]]:
    """So many pods that may be evicted and their rows; those of the nodes with the lowest priorities come first."""
    cluster, priority = queries.cluster, queries.gang.members[0].priority
    pods_on = cluster.pods_on
    may_help = _may_help(queries, slice(0, cluster.size), is_out_of_time)
    rows = np.flatnonzero(may_help & (pods_on.lowest_priority[: cluster.size] < priority)).tolist()
    order = sorted((*pods_on.highest_below(row, priority), row) for row in rows)
    in_order = ((pod, row) for _, _, row in order for pod in pods_on.on(row) if pod.priority < priority)
    return [*islice((each for each in in_order if may_be_evicted(cluster, each[0], queries.now)), number)]


def _may_help(queries: GangQueries, rows: Rows, is_out_of_time: Callable[[], bool]) -> Bools:
    """Which of the rows take pods of the gang, apart from what evictions change and may be made for."""
    exists: Bools = queries.cluster.nodes.exists[rows]
    may_help = np.zeros_like(exists)
    for pod in queries.one_of_each():
        if is_out_of_time():
            raise OutOfTime
        passes = exists.copy()
        for plugin, state in queries.prepared(pod, lambda reach: reach is Reach.NOWHERE):
            passes &= plugin.check(state, rows) == 0
        if queries.profile.settings.preemption.measured_capacity == "Never":
            passes &= queries.query(pod).basis[rows] != MEASURED
        may_help |= passes
    return may_help


@dataclass(frozen=True)
class _Check:
    """One pod of the gang, for all on its row that are alike."""

    pod: PodView
    row: int
    filters: Prepared


class _Trial:
    """The nodes without the pods removed so far, and with the gang once it has been placed."""

    def __init__(
        self,
        queries: GangQueries,
        stack: ExitStack,
        row_of: Mapping[str, int],
        place: Callable[[], Sequence[Assignment]],
        is_out_of_time: Callable[[], bool],
    ) -> None:
        self.nodes: Mapping[str, str] = {}
        self._queries = queries
        self._stack = stack
        self._row_of = row_of
        self._place = place
        self._is_out_of_time = is_out_of_time
        self._rows: dict[int, RowWhatIf] = {}
        self._checks: dict[int, list[_Check]] = {}
        self._by_domain: list[tuple[Filter, Any]] = []
        self._changed: set[int] = set()  # rows whose answers the last pod may have changed
        self._assumed: AssumedGang | None = None
        self._not_taken: set[int] = set()  # rows that the last pod has left too little room on

    def remove(self, pod: PodView) -> None:
        if self._is_out_of_time():
            raise OutOfTime
        row = self._row_of[pod.uid]
        self._row(row).remove(pod)
        for plugin, state in self._by_domain:
            plugin.remove_pod(state, pod, row)
        if self._not_taken and self._assumed is not None:
            self._take_again(self._assumed)

    def add(self, pod: PodView) -> None:
        row = self._row_of[pod.uid]
        self._row(row).add(pod)
        self._changed = {row}
        for plugin, state in self._by_domain:
            self._changed.update(plugin.add_pod(state, pod, row).tolist())

    def fits(self) -> bool:
        if self._is_out_of_time():
            raise OutOfTime
        if not self.nodes:
            return self._find_nodes()
        if self._assumed is not None:
            return self._fit_where_assumed(self._assumed)
        return all(self._passes(check) for row in self._changed & self._checks.keys() for check in self._checks[row])

    def _row(self, row: int) -> RowWhatIf:
        if row not in self._rows:
            self._rows[row] = self._stack.enter_context(RowWhatIf(self._queries.cluster, row))
        return self._rows[row]

    def _settle(self) -> None:
        for each in self._rows.values():
            each.settle()

    def _find_nodes(self) -> bool:
        self._settle()
        assignments = self._place()
        if len(assignments) < max(1, len(self.nodes)):
            if self._is_out_of_time():
                raise OutOfTime
            return False
        self.nodes = {each.uid: each.node for each in assignments}
        # These are in no index before a pod is assumed
        if any(each.pin is not None or each.volumes for each in assignments) or self._has_large_pods():
            self._assume(assignments)
        else:
            self._put_on_nodes()
        return True

    def _assume(self, assignments: Sequence[Assignment]) -> None:
        self._assumed = AssumedGang(self._queries, assignments)
        self._stack.callback(self._assumed.take_back)
        for pod in self._queries.one_of_each():
            self._by_domain += self._queries.prepared(pod, lambda reach: reach is Reach.DOMAIN)

    def _take_again(self, gang: AssumedGang) -> None:
        """The pod that left too little room on these rows is off again."""
        self._settle()
        fits = all(gang.fits_on(row) for row in sorted(self._not_taken))
        self._not_taken.clear()
        if not fits:  # other nodes have to be found
            gang.take_back()
            self._assumed, self._by_domain, self.nodes = None, [], {}

    def _fit_where_assumed(self, gang: AssumedGang) -> bool:
        self._settle()
        for row in sorted(self._changed & gang.rows):
            if not gang.fits_on(row):
                self._not_taken.add(row)
                return False
        return True

    def _has_large_pods(self) -> bool:
        queries = self._queries
        return any(queries.request(pod).required_cpu is not None for pod in queries.one_of_each())

    def _put_on_nodes(self) -> None:
        cluster = self._queries.cluster
        placed = [
            (pod, cluster.row_of[self.nodes[pod.uid]]) for pod in self._queries.gang.members if pod.uid in self.nodes
        ]
        for pod, row in placed:
            self._row(row).place(pod)
        nominated = cluster.nominations.of_priority(placed[0][0].priority)
        for row in {row for _, row in placed}:
            for pod in nominated.get(cluster.names[row], ()):
                if pod.uid not in self.nodes:
                    self._row(row).place(pod)
        self._prepare_checks(placed)

    def _prepare_checks(self, placed: list[tuple[PodView, int]]) -> None:
        queries = self._queries
        filters: dict[Hashable, Prepared] = {}
        checks: dict[tuple[int, Hashable], _Check] = {}
        for pod, row in placed:
            alike = queries.alike[pod.uid]
            if alike not in filters:
                if self._is_out_of_time():
                    raise OutOfTime
                filters[alike] = queries.prepared(pod, lambda reach: reach is not Reach.NOWHERE)
            checks.setdefault((row, alike), _Check(pod, row, filters[alike]))
        for check in checks.values():
            self._checks.setdefault(check.row, []).append(check)
        self._by_domain = [each for prepared in filters.values() for each in prepared if each[0].reach is Reach.DOMAIN]

    def _passes(self, check: _Check) -> bool:
        """Whether the row takes the pod beside all others that are there now."""
        trial = RowTrial(self._rows[check.row], check.row, check.filters)
        trial.withdraw(check.pod)
        passes = trial.passes()
        trial.place(check.pod)
        return passes
