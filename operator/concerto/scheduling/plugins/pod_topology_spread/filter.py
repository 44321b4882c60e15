"""PodTopologySpread: hard topology spread constraints. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_constraints import SpreadConstraint
from concerto.api.selectors import LabelSelector
from concerto.scheduling.framework import CountsPods, FilterDefaults, Query
from concerto.scheduling.plugins.domains import DomainCounts
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import NO_ROWS, Bools, Codes, Ints, Rows, union
from concerto.scheduling.state.pod_selection import PodSelection

_SKEWED, _MISSING_LABEL = 1, 2
_REFUSAL = "node(s) didn't match pod topology spread constraints"


@dataclass
class HardConstraint:
    """One constraint of a pod, and the pods that it counts by domain.

    Attributes:
        constraint: the constraint.
        selection: the pods that it counts.
        itself: 1 if it counts the pod itself, else 0.
        counts: the pods by domain, on nodes that count.
        skewed: by domain, whether one more pod like this one would be too many, as `DomainCounts.numbers`.
    """

    constraint: SpreadConstraint
    selection: PodSelection
    itself: int
    counts: DomainCounts
    skewed: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def __post_init__(self) -> None:
        self.skewed = self._skewed()

    def count(self, row: int, number: int) -> Ints:
        """Count pods on the row; returns the rows of domains that are skewed now and were not, or the other way."""
        if not self.counts.add(row, number):
            return NO_ROWS
        before, self.skewed = self.skewed, self._skewed()
        return self.counts.rows_of(self.skewed != before)

    def _skewed(self) -> Bools:
        fewest, domains = self.counts.fewest()
        if domains < self.constraint.min_domains:
            fewest = 0
        answer: Bools = self.counts.numbers + self.itself - fewest > self.constraint.max_skew
        return answer


@dataclass(frozen=True)
class HardSpread:
    """The hard constraints of one pod, in order."""

    cluster: ClusterState
    constraints: tuple[HardConstraint, ...]


class PodTopologySpread(CountsPods, FilterDefaults):
    """With the pod, no domain has more than ``maxSkew`` matching pods more than the domain that has the fewest."""

    name: ClassVar[str] = "PodTopologySpread"
    refusals: ClassVar[tuple[str, ...]] = (_REFUSAL, f"{_REFUSAL} (missing required label)")
    resolvable: ClassVar[frozenset[int]] = frozenset({_SKEWED})
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED | Change.PLACED

    def prepare(self, query: Query) -> HardSpread | None:
        """Counts by domain; pods without a hard constraint are not concerned."""
        pod, cluster = query.pod, query.cluster
        if not pod.shape.hard_spread:
            return None
        constraints = []
        selections = [selection_of(pod, constraint) for constraint in pod.shape.hard_spread]
        columns = cluster.pod_counts.by_row(selections, pod.uid)
        eligible = EligibleRows(query, pod.shape.hard_spread)
        for constraint, selection, by_row in zip(pod.shape.hard_spread, selections, columns):
            counts = DomainCounts(cluster, constraint.topology_key, by_row, eligible.of(constraint))
            itself = int(constraint.selector_of(pod.labels).matches(pod.labels))
            constraints.append(HardConstraint(constraint, selection, itself, counts))
        return HardSpread(cluster, tuple(constraints))

    def check(self, state: HardSpread, rows: Rows) -> Codes:
        """A missing label, or too many pods, by the first constraint that refuses."""
        codes: Codes = np.zeros_like(state.cluster.nodes.exists[: state.cluster.size][rows], dtype=np.int8)
        for each in reversed(state.constraints):
            codes[each.counts.of_rows(each.skewed, rows)] = _SKEWED
            codes[~each.counts.has(rows)] = _MISSING_LABEL
        return codes

    def count_pod(self, state: HardSpread, pod: PodView, row: int, sign: int) -> Ints:
        """The domains that the pod makes skewed, or even."""
        rows = NO_ROWS
        for each in state.constraints:
            if each.selection.matches(pod):
                rows = union(rows, each.count(row, sign))
        return rows


class EligibleRows:
    """Rows whose pods a constraint counts: with the labels of all these constraints, and by its own policies.

    Args:
        query: the pod.
        constraints: those whose labels a node has to have.
    """

    def __init__(self, query: Query, constraints: Iterable[SpreadConstraint]) -> None:
        self._query = query
        self._every = slice(0, query.cluster.size)
        self._labelled: Bools = query.cluster.nodes.exists[self._every].copy()
        for constraint in constraints:
            self._labelled &= query.cluster.nodes.labels.column(constraint.topology_key).codes[self._every] >= 0

    def of(self, constraint: SpreadConstraint) -> Bools:
        """The rows that count for one of the constraints; not to be changed."""
        if constraint.honors_affinity:
            return self._tolerated & self._selected if constraint.honors_taints else self._labelled & self._selected
        return self._tolerated if constraint.honors_taints else self._labelled

    @cached_property
    def _selected(self) -> Bools:
        return self._query.cluster.nodes.labels.selected(self._query.pod.shape.node_selector, self._every)

    @cached_property
    def _tolerated(self) -> Bools:
        shape, taints = self._query.pod.shape, self._query.cluster.nodes.taints
        accepted: Bools = taints.accepted(
            lambda taints: all(t.effect not in ("NoSchedule", "NoExecute") or shape.tolerates(t) for t in taints),
            self._every,
        )
        return self._labelled & accepted


def selection_of(pod: PodView, constraint: SpreadConstraint) -> PodSelection:
    """The pods that the constraint of this pod counts: those of its namespace that are not being deleted."""
    selector = constraint.selector_of(pod.labels)
    # kube-scheduler counts no pods for a selector that is empty
    counted = selector if selector.requirements else LabelSelector(None)
    return PodSelection(((frozenset((pod.namespace,)), counted),), terminating=False)
