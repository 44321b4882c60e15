"""Which pods to evict so that a whole gang fits. Pure. Source: kube-scheduler's ``PodGroupEvaluator``.

All pods of lower priority are taken off their nodes first, and nodes are looked for as in a cycle. Then one pod after
another is put back, as long as each pod of the gang still fits on the node that it found; what can't be put back are
the victims.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.scheduling.cycle import place_gang
from concerto.scheduling.framework import Filter, Query, Reach
from concerto.scheduling.gangs.gang import Gang
from concerto.scheduling.nominated_room import Prepared
from concerto.scheduling.preemption.victims import Victims, choose_victims
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import Request, query_for, request_of
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools
from concerto.scheduling.state.measured_capacity import MEASURED
from concerto.scheduling.state.what_if import RowWhatIf


class OutOfTime(Exception):
    """The search did not end in time: it is not known who would have to go."""


@dataclass(frozen=True)
class RoomForGang:
    """What a gang needs to fit.

    Attributes:
        nodes: where its pods would go, by UID.
        victims: the pods that would have to go, one at least.
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
        possible: how many pods may go; known after the first call.
    """

    def __init__(
        self, cluster: ClusterState, gang: Gang, profile: Profile, now: float, generator: np.random.Generator
    ) -> None:
        self.possible = 0
        self._asked = _Asked(cluster, gang, profile, now)
        self._generator = generator

    def is_hopeless_where_nominated(self) -> bool:
        """Whether one of the nodes that its pods are nominated for would take none of them whatever pods left it."""
        cluster = self._asked.cluster
        nodes = {node for pod in self._asked.gang.members if (node := cluster.nominations.node_of(pod.uid))}
        if not nodes:
            return False
        may_help, rows = _rows_that_may_help(self._asked, lambda: False), [cluster.row_of.get(node) for node in nodes]
        return any(row is None or not may_help[row] for row in rows)

    def find(self, limit: int, is_out_of_time: Callable[[], bool]) -> RoomForGang | None:
        """Whom to evict; None if the gang would not fit though so many went, or fits already.

        Args:
            limit: pods that are taken off at most: those of the nodes whose pods matter least.
            is_out_of_time: asked again and again.

        Raises:
            OutOfTime: the time was too short.
        """
        asked = self._asked
        possible = _possible(asked, is_out_of_time)
        self.possible = len(possible)
        possible = possible[:limit]

        def place() -> Sequence[Assignment]:
            decisions = place_gang(
                asked.cluster,
                asked.gang,
                asked.profile,
                now=asked.now,
                generator=self._generator,
                is_out_of_time=is_out_of_time,
            )
            return [decision.assignment for decision in decisions]

        pods = [pod for pod, _ in possible]
        with ExitStack() as stack:
            rows = {pod.uid: row for pod, row in possible}
            trial = _Trial(asked, stack, rows, place, is_out_of_time)
            victims = choose_victims(pods, asked.cluster.budgets.of(pods), trial)
            return RoomForGang(trial.nodes, victims) if victims is not None and victims.pods else None


@dataclass(frozen=True)
class _Asked:
    """A gang, and what filters are asked about its pods."""

    cluster: ClusterState
    gang: Gang
    profile: Profile
    now: float

    def query(self, pod: PodView) -> Query:
        return query_for(self.cluster, pod, self.profile, self.now, self.request(pod))

    def request(self, pod: PodView) -> Request:
        return request_of(self.cluster, pod, self.profile, self.now, starts_together=True)

    def alike(self, pod: PodView) -> Hashable:
        """What is the same for pods of the gang about which filters are asked the same."""
        return self.cluster.signatures.of(pod), pod.kind.key

    def prepared(self, pod: PodView, reach: Callable[[Reach], bool]) -> Prepared:
        query = self.query(pod)
        asked = (plugin for plugin in self.profile.filters if reach(plugin.reach))
        return [(plugin, state) for plugin in asked if (state := plugin.prepare(query)) is not None]


def _possible(asked: _Asked, is_out_of_time: Callable[[], bool]) -> list[tuple[PodView, int]]:
    """The pods that may go and their rows, those of the nodes whose pods matter least first."""
    cluster, priority = asked.cluster, asked.gang.members[0].priority
    may_help = _rows_that_may_help(asked, is_out_of_time)
    rows = np.flatnonzero(may_help & (cluster.pods_on.lowest_priority[: cluster.size] < priority))
    by_row = {row: [pod for pod in cluster.pods_on.on(row) if pod.priority < priority] for row in rows.tolist()}
    order = sorted((max(pod.priority for pod in pods), len(pods), row) for row, pods in by_row.items())
    in_order = ((pod, row) for _, _, row in order for pod in by_row[row])
    # The deletion of a mirror pod makes no room, and a pod that is only assumed may end up on another node
    return [(pod, row) for pod, row in in_order if not pod.mirror and cluster.is_bound(pod.uid)]


def _rows_that_may_help(asked: _Asked, is_out_of_time: Callable[[], bool]) -> Bools:
    """Rows that take pods of the gang, but for what the eviction of pods changes and is to change."""
    cluster, every = asked.cluster, slice(0, asked.cluster.size)
    may_help: Bools = np.zeros(cluster.size, dtype=np.bool_)
    for pod in {asked.alike(pod): pod for pod in asked.gang.members}.values():
        if is_out_of_time():
            raise OutOfTime
        passes: Bools = cluster.nodes.exists[every].copy()
        for plugin, state in asked.prepared(pod, lambda reach: reach is Reach.NOWHERE):
            passes &= plugin.check(state, every) == 0
        if asked.profile.settings.preemption.measured_capacity == "Never":
            passes &= asked.query(pod).basis[every] != MEASURED
        may_help |= passes
    return may_help


@dataclass(frozen=True)
class _Check:
    """One pod of the gang, for all on its row that are alike."""

    pod: PodView
    row: int
    filters: Prepared


class _Trial:
    """The nodes without the pods that were taken off so far; and with the gang, once it has found nodes there."""

    def __init__(
        self,
        asked: _Asked,
        stack: ExitStack,
        row_of: Mapping[str, int],
        place: Callable[[], Sequence[Assignment]],
        is_out_of_time: Callable[[], bool],
    ) -> None:
        self.nodes: Mapping[str, str] = {}
        self._asked = asked
        self._stack = stack
        self._row_of = row_of
        self._place = place
        self._is_out_of_time = is_out_of_time
        self._rows: dict[int, RowWhatIf] = {}
        self._checks: dict[int, list[_Check]] = {}
        self._by_domain: list[tuple[Filter, Any]] = []
        self._changed: set[int] = set()  # rows whose answers the last pod may have changed
        self._anew = False

    def remove(self, pod: PodView) -> None:
        if self._is_out_of_time():
            raise OutOfTime
        row = self._row_of[pod.uid]
        self._row(row).remove(pod)
        for plugin, state in self._by_domain:
            plugin.remove_pod(state, pod, row)

    def add(self, pod: PodView) -> None:
        row = self._row_of[pod.uid]
        self._row(row).add(pod)
        self._changed = {row}
        for plugin, state in self._by_domain:
            self._changed.update(plugin.add_pod(state, pod, row).tolist())

    def fits(self) -> bool:
        if self._is_out_of_time():
            raise OutOfTime
        if not self.nodes or self._anew:
            return self._find_nodes()
        return all(self._passes(check) for row in self._changed & self._checks.keys() for check in self._checks[row])

    def _row(self, row: int) -> RowWhatIf:
        if row not in self._rows:
            self._rows[row] = self._stack.enter_context(RowWhatIf(self._asked.cluster, row))
        return self._rows[row]

    def _find_nodes(self) -> bool:
        for each in self._rows.values():
            each.settle()
        assignments = self._place()
        if len(assignments) < max(1, len(self.nodes)):
            if self._is_out_of_time():
                raise OutOfTime
            return False
        self.nodes = {each.uid: each.node for each in assignments}
        # What no index holds of a pod before it is bound, checks on single rows would not see
        self._anew = any(each.pin is not None or each.volumes for each in assignments) or self._has_large_pods()
        if not self._anew:
            self._put_on_nodes()
        return True

    def _has_large_pods(self) -> bool:
        asked = self._asked
        alike = {asked.alike(pod): pod for pod in asked.gang.members}.values()
        return any(asked.request(pod).required_cpu is not None for pod in alike)

    def _put_on_nodes(self) -> None:
        cluster = self._asked.cluster
        placed = [
            (pod, cluster.row_of[self.nodes[pod.uid]]) for pod in self._asked.gang.members if pod.uid in self.nodes
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
        asked = self._asked
        filters: dict[Hashable, Prepared] = {}
        checks: dict[tuple[int, Hashable], _Check] = {}
        for pod, row in placed:
            alike = asked.alike(pod)
            if alike not in filters:
                if self._is_out_of_time():
                    raise OutOfTime
                filters[alike] = asked.prepared(pod, lambda reach: reach is not Reach.NOWHERE)
            checks.setdefault((row, alike), _Check(pod, row, filters[alike]))
        for check in checks.values():
            self._checks.setdefault(check.row, []).append(check)
        self._by_domain = [each for prepared in filters.values() for each in prepared if each[0].reach is Reach.DOMAIN]

    def _passes(self, check: _Check) -> bool:
        """Whether the row takes the pod beside all others that are there now."""
        pod, row = check.pod, check.row
        what_if, rows = self._rows[row], np.array([row])
        by_domain = [(plugin, state) for plugin, state in check.filters if plugin.reach is Reach.DOMAIN]
        what_if.withdraw(pod)
        for plugin, state in by_domain:
            plugin.remove_pod(state, pod, row)
        what_if.settle()
        passes = all(not plugin.check(state, rows)[0] for plugin, state in check.filters)
        what_if.place(pod)
        for plugin, state in by_domain:
            plugin.add_pod(state, pod, row)
        return passes
