"""One node and a pod that would preempt others there: the filters asked over the cluster's own indexes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from concerto.api.pod import PodView
from concerto.scheduling.framework import Reach
from concerto.scheduling.nominated_room import RowTrial, names_of
from concerto.scheduling.preemption.candidates import Candidate
from concerto.scheduling.preemption.eligibility import may_be_evicted
from concerto.scheduling.preemption.victims import choose_victims
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import query_for
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.what_if import RowWhatIf

NO_VICTIMS = "No preemption victims found for incoming pod"
"""Of nodes without a pod of lower priority. Source: kube-scheduler's words."""

MAX_VICTIMS = 1000
"""Pods of a node that may be evicted for one pod, those that came last if there are more: a look takes 0.1 ms for each,
and everybody who may create pods may name one node in thousands of them."""


@dataclass(frozen=True)
class NodeLook:
    """Looks at single nodes for pods of one profile.

    Attributes:
        cluster: the cluster.
        profile: their profile.
        now: seconds since the epoch.
        refusing: nodes that refuse the pods whichever pods are evicted; filters whose answers no eviction changes are
            called for these, too.
    """

    cluster: ClusterState
    profile: Profile
    now: float
    refusing: frozenset[str] = frozenset()

    def __call__(self, pod: PodView, node: str) -> Candidate | tuple[str, ...]:
        """The pods to evict from the node for the pod; or why it would not fit though all of lower priority went."""
        cluster = self.cluster
        row = cluster.row_of.get(node)
        on_row = () if row is None else cluster.pods_on.latest(row)
        lower = (each for each in on_row if each.priority < pod.priority)
        possible = [*islice((each for each in lower if may_be_evicted(cluster, each, self.now)), MAX_VICTIMS)]
        if row is None or not possible:
            return (NO_VICTIMS,)
        query = query_for(cluster, pod, self.profile, self.now)
        every = node in self.refusing
        concerned = (plugin for plugin in self.profile.filters if every or plugin.reach is not Reach.NOWHERE)
        filters = [(plugin, state) for plugin in concerned if (state := plugin.prepare(query)) is not None]
        with RowWhatIf(cluster, row, names_of(filters)) as what_if:
            trial = _Trial(RowTrial(what_if, row, filters), pod, cluster.nominations.beside(pod, node))
            victims = choose_victims(possible, cluster.budgets.of(possible), trial)
            if victims is not None:
                return Candidate(node, victims)
            refusal = trial.row.refusal()
            return () if refusal is None else refusal.reasons


class _Trial:
    """The node without those that were taken off so far, and with what others are nominated for."""

    def __init__(self, row: RowTrial, pod: PodView, nominated: Sequence[PodView]) -> None:
        self.row = row
        self._nominated = nominated
        # Without them, only what the pod requires of others may be missing
        self._may_lack_them = bool(nominated and (pod.shape.affinity or pod.shape.hard_spread))
        for each in nominated:
            row.place(each)

    def remove(self, pod: PodView) -> None:
        self.row.remove(pod)

    def add(self, pod: PodView) -> None:
        self.row.add(pod)

    def fits(self) -> bool:
        if not self.row.passes():
            return False
        if not self._may_lack_them:
            return True
        for each in self._nominated:
            self.row.withdraw(each)
        fits = self.row.passes()
        for each in self._nominated:
            self.row.place(each)
        return fits
