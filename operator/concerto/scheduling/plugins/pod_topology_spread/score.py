"""PodTopologySpread: soft topology spread constraints. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_constraints import SpreadConstraint
from concerto.scheduling.framework import CountsPods, Query, ScoreDefaults
from concerto.scheduling.plugins.domains import DomainCounts
from concerto.scheduling.plugins.pod_topology_spread.filter import EligibleRows, selection_of
from concerto.scheduling.rounding import rounded
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import NO_ROWS, Bools, Floats, Ints, Rows
from concerto.scheduling.state.pod_selection import PodSelection

HOSTNAME = "kubernetes.io/hostname"


@dataclass
class SoftConstraint:
    """One soft constraint of a pod, and the pods that it counts.

    Attributes:
        constraint: the constraint.
        selection: the pods that it counts.
        by_domain: their number by domain, on nodes that count.
        by_row: their number by row; a node is its own domain for the topology key kubernetes.io/hostname, whatever the
            constraint's policies.
    """

    constraint: SpreadConstraint
    selection: PodSelection
    by_domain: DomainCounts
    by_row: Ints

    def counts(self) -> Ints:
        """By row, the pods in its domain."""
        if self.constraint.topology_key == HOSTNAME:
            return self.by_row
        return self.by_domain.by_row(slice(None))


@dataclass(frozen=True)
class SoftSpread:
    """The soft constraints of one pod.

    Attributes:
        cluster: the cluster.
        constraints: the constraints.
        ignored: rows that lack a label which the constraints need; they get the least score.
    """

    cluster: ClusterState
    constraints: tuple[SoftConstraint, ...]
    ignored: Bools


def default_constraints(query: Query) -> tuple[SpreadConstraint, ...]:
    """Constraints of a pod that has none: over nodes and zones, by its Services and its workload.

    Source: kube-scheduler's ``systemDefaultConstraints``.
    """
    selector = query.cluster.signatures.workload_selectors.of(query.pod)
    if not selector.requirements:
        return ()
    return tuple(
        SpreadConstraint(key, skew, 1, selector, (), honors_affinity=True, honors_taints=False)
        for key, skew in ((HOSTNAME, 3), ("topology.kubernetes.io/zone", 5))
    )


class PodTopologySpread(CountsPods, ScoreDefaults):
    """The fewer matching pods in the node's domains, the better; a topology with more domains weighs more."""

    name: ClassVar[str] = "PodTopologySpread"
    needs_normalising: ClassVar[bool] = True

    def prepare(self, query: Query) -> SoftSpread | None:
        """Counts by domain; pods without a soft constraint are not concerned."""
        pod, cluster = query.pod, query.cluster
        soft = pod.shape.soft_spread if pod.shape.spreads else default_constraints(query)
        if not soft:
            return None
        needed = pod.shape.soft_spread  # a node without a zone is still spread by default over nodes
        constraints = []
        ignored: Bools = np.zeros(cluster.size, dtype=np.bool_)
        eligible = EligibleRows(query, needed)
        selections = [selection_of(pod, constraint) for constraint in soft]
        for constraint, selection, column in zip(soft, selections, cluster.pod_counts.by_row(selections, pod.uid)):
            by_row = column[: cluster.size].copy()
            counts = DomainCounts(cluster, constraint.topology_key, by_row, eligible.of(constraint))
            ignored |= ~counts.labelled & bool(needed)
            constraints.append(SoftConstraint(constraint, selection, counts, by_row))
        return SoftSpread(cluster, tuple(constraints), ignored)

    def score(self, state: SoftSpread, rows: Rows) -> Floats:
        """0 everywhere: weights depend on how many domains are feasible, so `normalise` computes all."""
        return np.zeros(len(state.ignored[rows]))

    def normalise(self, state: SoftSpread, scores: Floats) -> Floats | None:
        """100 for the fewest pods, less for more of them, in kube-scheduler's integers."""
        candidates = ~np.isnan(scores) & ~state.ignored
        if not candidates.any():
            return None
        sums = np.zeros(len(scores))
        for each in state.constraints:
            weight = np.log(_domains(each, candidates) + 2)
            sums += np.where(each.by_domain.labelled, each.counts() * weight + each.constraint.max_skew - 1, 0.0)
        sums = rounded(sums)
        least, greatest = sums[candidates].min(), sums[candidates].max()
        normalised = np.full(len(scores), 100.0)
        if greatest > 0:
            normalised = np.floor(100.0 * (greatest + least - sums) / greatest)
        return np.where(np.isnan(scores), np.nan, np.where(state.ignored, 0.0, normalised))

    def count_pod(self, state: SoftSpread, pod: PodView, row: int, sign: int) -> Ints:
        """The pod's row, for which all scores are computed anew."""
        rows = NO_ROWS
        for each in state.constraints:
            if each.selection.matches(pod):
                each.by_row[row] += sign
                each.by_domain.add(row, sign)
                rows = np.array([row])
        return rows


def _domains(constraint: SoftConstraint, candidates: Bools) -> int:
    """How many domains of the constraint have a node that the pod can go to."""
    if constraint.constraint.topology_key == HOSTNAME:
        return int(np.count_nonzero(candidates))
    return constraint.by_domain.domains(candidates)
