"""Preemption for alike pods that found no node: from the nodes that refuse them to the pods to evict. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from concerto.api.pod import PodView
from concerto.api.schedulingprofile import PreemptionPolicy
from concerto.scheduling.feasibility import Feasibility
from concerto.scheduling.framework import Query, Reach
from concerto.scheduling.nominated_room import Prepared
from concerto.scheduling.preemption.candidates import Candidate
from concerto.scheduling.preemption.eligibility import NEVER, why_not_eligible
from concerto.scheduling.preemption.look import NO_VICTIMS, NodeLook
from concerto.scheduling.preemption.search import NO_REMAINDER, NOT_HELPFUL, CandidateSearch, Remainder
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import query_for
from concerto.scheduling.reasons import Diagnosis, diagnose
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Ints

PATIENCE_SECONDS = 10.0
"""For so long after its creation a pod waits for a node that only limits how many pods start at a time.

For such a node that it is nominated for it waits longer: room was made for it there.
"""

SETTLE_SECONDS = 3.0
"""How long the room of victims that have ended is waited for, before others are evicted."""

_MAX_REFUSING = 100
"""For so many nodes that are no candidates the reasons are computed; the others count as `NOT_HELPFUL`."""


@dataclass(frozen=True)
class Outcome:
    """What came of it for one pod.

    Attributes:
        message: in kube-scheduler's words where it has them; follows the reasons of the nodes that refused the pod.
        candidate: the node to nominate it for, and the pods to evict there; None without one.
        withdraws: whether its nomination, if it has one, is to be withdrawn: nothing would help.
    """

    message: str
    candidate: Candidate | None = None
    withdraws: bool = False


class Preemption:
    """The search for room for pods that are alike and have the same priority.

    Args:
        cluster: the cluster; unchanged after each call.
        profile: their profile.
        pod: one of them.
        now: seconds since the epoch.
        offset: which of the nodes that may help is looked at first; callers draw it at random.
        earlier: of a search for such pods that ended a moment ago. This one goes on where that one ended: the nodes
            before were filled or refused.
    """

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        pod: PodView,
        now: float,
        offset: int = 0,
        earlier: Remainder = NO_REMAINDER,
    ) -> None:
        query = query_for(cluster, pod, profile, now)
        self._feasibility = Feasibility(query, profile.filters)
        filters = self._feasibility.filters
        self._cluster = cluster
        exists = cluster.nodes.exists[: cluster.size]
        self._nodes = int(np.count_nonzero(exists))
        resolvable = diagnose(query, filters).resolvable
        resolvable = resolvable[_may_be_mended(filters, resolvable, profile.settings.preemption.measured_capacity)]
        passes = _passes([each for each in filters if each[0].reach is Reach.NOWHERE], resolvable)
        self._hopeful = {cluster.names[row] for row in resolvable[passes]}
        lower = cluster.pods_on.lowest_priority[resolvable] < pod.priority
        refusing = [cluster.names[row] for row in resolvable[lower & ~passes]]
        self._refused = Counter({NO_VICTIMS: int(np.count_nonzero(~lower))})
        self._refused[NOT_HELPFUL] = self._nodes - len(resolvable) + len(refusing[_MAX_REFUSING:])
        self._is_patient = now - pod.created < PATIENCE_SECONDS
        self._pass_soon: Bools = np.zeros(cluster.size, dtype=np.bool_)
        if self._is_patient or cluster.nominations:
            self._pass_soon = exists & _pass_soon(query, filters, self._feasibility.feasible)
        rows = resolvable[lower & passes]
        if (next_row := cluster.row_of.get(earlier.next_node)) is not None:
            offset = int(np.searchsorted(rows, next_row))
        names = [cluster.names[row] for row in np.roll(rows, -(offset % max(1, len(rows))))]
        del refusing[_MAX_REFUSING:]
        self._look = NodeLook(cluster, profile, now, frozenset(refusing))
        self._search = CandidateSearch(names, self._look, refusing, earlier.candidates)

    @property
    def remainder(self) -> Remainder:
        """What it leaves to the next search for such pods."""
        return self._search.remainder

    def begin(self, pod: PodView) -> Outcome | None:
        """Whether one of the pods may preempt others: what came of it if it may not, or None."""
        node = self._cluster.nominations.node_of(pod.uid)
        hopeless = self.is_hopeless_where_nominated(pod)
        reason = why_not_eligible(self._cluster, pod, nominated_is_hopeless=hopeless)
        if reason:
            return Outcome(f"preemption: {reason}")
        row = self._cluster.row_of.get(node)
        nodes = int(np.count_nonzero(self._pass_soon)) if self._is_patient else 0
        if row is not None and row < len(self._pass_soon) and self._pass_soon[row]:
            nodes = nodes or 1
        if nodes:
            return Outcome(
                f"preemption: not needed: {nodes} node(s) can take the pod once those that were just placed "
                "there have started, or their agent has reported."
            )
        if node:
            self._search.look_first_at(pod, node)
        return None

    def is_hopeless_where_nominated(self, pod: PodView) -> bool:
        """Whether the node that one of the pods is nominated for would not take it whatever pods left it."""
        node = self._cluster.nominations.node_of(pod.uid)
        row = self._cluster.row_of.get(node)
        if row is None or row >= len(self._pass_soon):  # it came after the search began
            return True
        return node not in self._hopeful and not self._feasibility.takes_nominated(pod, row)

    def look_at_next(self, pod: PodView) -> bool:
        """Look at one more node; False if that is not necessary."""
        if self._search.finished:
            return False
        self._search.look_at_next(pod)
        return True

    def take(self, pod: PodView) -> Outcome:
        """What came of it for one of the pods, by the nodes that were looked at."""
        return self._outcome(self._search.take(pod, self._cluster.nominations.node_of(pod.uid)))

    def take_if_enough(self, pod: PodView) -> Outcome | None:
        """The same; None if so many candidates are not what they were that more nodes are to be looked at."""
        candidate = self._search.take(pod, self._cluster.nominations.node_of(pod.uid), at_once=False)
        return None if candidate is None and not self._search.finished else self._outcome(candidate)

    def _outcome(self, candidate: Candidate | None) -> Outcome:
        if candidate is None:
            return Outcome(self._message(), withdraws=True)
        message = (
            f"preemption: found a potential placement for pod on node {candidate.node}, "
            f"preempting {len(candidate.victims.pods)} victims"
        )
        return Outcome(message, candidate)

    def victims_on(self, pod: PodView, node: str) -> int | None:
        """How many pods would have to be evicted from one node; None if the pod would not fit there all the same."""
        found = self._look(pod, node) if pod.preempts and node in self._hopeful else None
        return len(found.victims.pods) if isinstance(found, Candidate) else None

    def _message(self) -> str:
        return _not_found(self._nodes, self._refused + Counter(self._search.refusals()))


def outcome_without_search(cluster: ClusterState, pod: PodView, diagnosis: Diagnosis) -> Outcome | None:
    """What came of it for a pod that may evict nobody, or than which no pod on a node is less important; else None.

    In a cluster whose pods all have one priority, nothing else is ever asked.
    """
    if not diagnosis.nodes:
        return Outcome("", withdraws=True)
    if not pod.preempts:
        return Outcome(f"preemption: {NEVER}")
    if (cluster.pods_on.lowest_priority[: cluster.size] < pod.priority).any():
        return None
    hopeful = len(diagnosis.resolvable)
    reasons = Counter({NO_VICTIMS: hopeful, NOT_HELPFUL: diagnosis.nodes - hopeful})
    return Outcome(_not_found(diagnosis.nodes, reasons), withdraws=True)


def _not_found(nodes: int, reasons: Counter[str]) -> str:
    counted = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))
    return f"preemption: 0/{nodes} nodes are available: {counted}."


def _may_be_mended(filters: Prepared, rows: Ints, measured_capacity: PreemptionPolicy) -> Bools:
    """Of these rows, those on which pods may be evicted; with ``Never``, not those that lack measured capacity."""
    by_measurement = [each for each in filters if each[0].by_measurement and measured_capacity == "Never"]
    return _passes(by_measurement, rows)


def _passes(filters: Prepared, rows: Ints) -> Bools:
    """Of these rows, those that pass all of the filters."""
    passes: Bools = np.ones(len(rows), dtype=np.bool_)
    for plugin, state in filters:
        passes &= plugin.check(state, rows) == 0
    return passes


def _pass_soon(query: Query, filters: Prepared, feasible: Bools) -> Bools:
    """Rows that do not take the pod, but will in a moment, though nobody is evicted."""
    rows = slice(0, query.cluster.size)
    passes: Bools = np.ones(query.cluster.size, dtype=np.bool_)
    soon = passes.copy()
    for plugin, state in filters:
        now = plugin.check(state, rows) == 0
        passes &= now
        soon &= now | plugin.passes_soon(state, rows)
    # A row that passes and is not feasible has room, but for pods that are nominated for it
    return soon & (feasible | ~passes)
