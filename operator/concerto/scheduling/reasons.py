"""Why a pod found no node, in kube-scheduler's words. Source: ``framework.FitError.Error``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey
from concerto.scheduling.framework import Filter, Query
from concerto.scheduling.gangs.gang import Gang, NotReady
from concerto.scheduling.nominated_room import Prepared, Refusal, insufficient_beside, refusal_beside
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import NO_ROWS, Ints
from concerto.scheduling.state.comparisons import TooManyComparisons

UNSCHEDULABLE = "Unschedulable"
"""Reason of the condition PodScheduled for which a cluster autoscaler adds nodes."""
SCHEDULER_ERROR = "SchedulerError"
"""Reason of the condition PodScheduled where no new node would help."""
_TOO_LONG = "looking for nodes for all pods of the PodGroup at once took too long"

_MAX_TRIED = 100
"""Nodes of which it is found out in full what they lack beside nominated pods: half a millisecond each."""
_HELD = "Some room is held for the pods of a PodGroup for a short time."


@dataclass(frozen=True)
class Diagnosis:
    """Why no node was feasible.

    Attributes:
        nodes: how many nodes there are.
        reasons: how many nodes were refused for each reason; a node may lack several things.
        requeue_on: changes after which another look is worth while.
        error: what went wrong while nodes were looked at, in words; empty where filters refused every node.
        resolvable: rows whose first refusal the eviction of pods could mend.
        concerns_pod: whether the reason lies in the pod alone, so that it is given without a count of nodes.
        passing: whether the reason ends by itself soon, so that room that was made for the pod is kept for it.
        gang: the PodGroup whose pods are only placed together; nobody is evicted for one of them.
        addition: a sentence about the gang.
        condition_reason: of the condition PodScheduled.
    """

    nodes: int
    reasons: Mapping[str, int]
    requeue_on: Change
    error: str = ""
    resolvable: Ints = field(default_factory=NO_ROWS.copy, compare=False)
    concerns_pod: bool = False
    passing: bool = False
    gang: GroupKey | None = None
    addition: str = ""
    condition_reason: str = UNSCHEDULABLE

    @cached_property
    def message(self) -> str:
        """Like ``0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.``"""
        return f"{self._about_nodes} {self.addition}" if self.addition else self._about_nodes

    @property
    def _about_nodes(self) -> str:
        if self.error:
            return self.error
        if not self.nodes:
            return "no nodes available to schedule pods"
        if self.concerns_pod:
            return f"0/{self.nodes} nodes are available: {', '.join(self.reasons)}."
        counted = sorted(f"{count} {reason}" for reason, count in self.reasons.items())
        return f"0/{self.nodes} nodes are available: {', '.join(counted)}."


def diagnose_error(cluster: ClusterState, error: Exception) -> Diagnosis:
    """The diagnosis of a pod over which a plugin failed: no news of a node mends that, but a changed one may."""
    nodes = len(cluster.nodes.views)
    text = f"Scheduling failed with an internal error ({type(error).__name__}): see the log of concerto-operator."
    if isinstance(error, TooManyComparisons):
        text = f"0/{nodes} nodes are available: {error}."
    return Diagnosis(nodes, {}, Change.NODE | Change.CPUS, text, condition_reason=SCHEDULER_ERROR)


def diagnose_failed_binding(note: str) -> Diagnosis:
    """The diagnosis of a pod that had a node and could not be bound to it."""
    return Diagnosis(0, {note: 1}, Change.NOTHING, note, condition_reason=SCHEDULER_ERROR)


def diagnose_group(cluster: ClusterState, group: NotReady) -> Diagnosis:
    """The diagnosis of the pods of a group that is not ready to be placed, whatever nodes there are."""
    nodes = len(cluster.nodes.views)
    return Diagnosis(
        nodes,
        {group.message: nodes},
        Change.NOTHING,
        concerns_pod=True,
        passing=group.passing,
        gang=group.key,
        condition_reason=group.reason,
    )


def diagnose_lack_of_time(cluster: ClusterState, gang: GroupKey) -> Diagnosis:
    """The diagnosis of a gang for whose pods a whole cycle's time was not enough."""
    nodes = len(cluster.nodes.views)
    return Diagnosis(
        nodes,
        {_TOO_LONG: nodes},
        Change.NODE,
        concerns_pod=True,
        passing=True,
        gang=gang,
        condition_reason=SCHEDULER_ERROR,
    )


def diagnose_gang(gang: Gang, failures: Sequence[Diagnosis], placed: int) -> Diagnosis:
    """The diagnosis of the pods of a gang: that of the first one, which is requeued by what may help any of them.

    Args:
        gang: the gang.
        failures: of its pods that found no node; at least one.
        placed: pods that found nodes.
    """
    text = f"PodGroup {gang.key[1]} needs {gang.needed} more pods at once, and only {placed} found nodes."
    requeue_on = reduce(or_, (failure.requeue_on for failure in failures))
    return replace(failures[0], gang=gang.key, addition=text, requeue_on=requeue_on)


def diagnose_held(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of a pod that may have found a node if no room were held for a gang."""
    return diagnosis if diagnosis.addition else replace(diagnosis, addition=_HELD)


def diagnose(query: Query, filters: Prepared) -> Diagnosis:
    """Run the filters again, one after another, and ask each why it refuses what it is the first to refuse.

    Args:
        query: the pod and its cluster.
        filters: with what they prepared for the pod, in order.
    """
    rows = np.flatnonzero(query.cluster.nodes.exists[: query.cluster.size])
    nodes = len(rows)
    reasons: Counter[str] = Counter()
    resolvable: list[Ints] = []
    requeue_on = Change.NODE
    filters = list(filters)
    no_node_helps = any(plugin.no_node_helps(state) for plugin, state in filters)
    condition_reason = SCHEDULER_ERROR if no_node_helps else UNSCHEDULABLE
    for plugin, state in filters:
        if refusal := plugin.pod_refusal(state):
            changes = requeue_on | plugin.requeue_on
            return Diagnosis(nodes, {refusal: nodes}, changes, concerns_pod=True, condition_reason=condition_reason)
    rows = _named(query.cluster, filters, rows, reasons)
    for plugin, state in filters:
        codes = plugin.check(state, rows)
        refused = codes != 0
        if refused.any():
            reasons.update(plugin.reasons(state, rows[refused], codes[refused]))
            requeue_on |= plugin.requeue_on
            resolvable.append(rows[np.isin(codes, list(plugin.resolvable))])
        rows = rows[~refused]
    nominated = query.cluster.nominations.of_priority(query.pod.priority) if len(rows) else {}
    with_nominated = [row for row in rows.tolist() if query.cluster.names[row] in nominated] if nominated else []
    beside = []
    for number, row in enumerate(with_nominated):
        if (why_not := _why_not_beside(query, filters, row, nominated, in_full=number < _MAX_TRIED)) is not None:
            reasons.update(why_not.reasons)
            # Nominated pods count for any filter, as for spread and affinity; they may also go elsewhere
            requeue_on |= why_not.requeue_on | Change.ENDED | Change.CAPACITY
            beside.append(row)
    resolvable.append(np.array(beside, dtype=np.int64))
    return Diagnosis(
        nodes,
        reasons,
        requeue_on,
        resolvable=np.sort(np.concatenate([NO_ROWS, *resolvable])),
        condition_reason=condition_reason,
    )


def not_named(plugin: Filter) -> str:
    """Why a node is refused that is not among those that the pod names [PreFilterResult]."""
    return f"node(s) didn't satisfy plugin(s) [{plugin.name}]"


def _named(cluster: ClusterState, filters: Prepared, rows: Ints, reasons: Counter[str]) -> Ints:
    """Those of the rows whose nodes the pod names, if it names any; counts the others."""
    for plugin, state in filters:
        names = plugin.named_nodes(state)
        if names is not None:
            named = np.array([cluster.names[row] in names for row in rows.tolist()], dtype=np.bool_)
            if others := len(rows) - int(np.count_nonzero(named)):
                reasons[not_named(plugin)] += others
            rows = rows[named]
    return rows


def _why_not_beside(
    query: Query, filters: Prepared, row: int, nominated: Mapping[str, Sequence[PodView]], *, in_full: bool
) -> Refusal | None:
    """Why the row is refused because of the pods that are nominated for it; None if it is not.

    Args:
        query: the pod and its cluster.
        filters: with what they prepared for the pod, in order.
        row: the row.
        nominated: pods by node.
        in_full: whether the first filter that refuses says why, also where the pod's requests are not left.
    """
    cluster, pods = query.cluster, nominated[query.cluster.names[row]]
    refusal = None if in_full else insufficient_beside(cluster, query.pod, row, filters, pods)
    return refusal or refusal_beside(cluster, row, filters, pods)
