"""What one cycle has found out about gangs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.gangs.gang import Gang, NotReady, backing_off, being_bound, gang_of, selected_among
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.cluster import ClusterState

UNFINISHED_TIME = 0.5
"""Part of a cycle's time after which no further unfinished gang is looked at for which the last look found nothing."""
MAX_OF_UNFINISHED = 1000
"""Pods without a node, after which it is so, too."""


class GangsOfCycle:
    """The gangs of one cycle: each is looked at once.

    Args:
        cluster: the cluster.
        ready: whether the pod of that UID may be placed now, and does not back off after a failed binding.

    Attributes:
        hopeless: why gangs like these find no nodes in this cycle, in which room only gets less for them.
    """

    def __init__(self, cluster: ClusterState, ready: Callable[[str], bool]) -> None:
        self.hopeless: dict[Hashable, Diagnosis] = {}
        self._cluster = cluster
        self._ready = ready
        self._looked_at: set[GroupKey] = set()
        self._one_by_one: set[GroupKey] = set()

    def unfinished(self, *, resume: bool = False) -> list[PodView]:
        """A pod of each gang of which other pods are bound already, and a placement record has the rest on nodes.

        Those that have not been looked at come first, then those for which the last look found nothing, in turn. The
        latter are left out where such gangs alone took up the cycle before, which this one resumes.
        """
        groups, is_placed = self._cluster.pod_groups, self._cluster.is_placed
        skips, groups.unfinished_took_cycle = resume and groups.unfinished_took_cycle, False
        if skips:
            self._looked_at.update(groups.in_vain)
        in_vain = () if skips else groups.in_vain
        keys = chain((key for key in groups.unfinished if key not in groups.in_vain), in_vain)
        found = ((key, next((uid for uid in groups.unfinished[key] if not is_placed(uid)), None)) for key in keys)
        return [groups.members(key)[uid] for key, uid in found if uid is not None]

    def passes_over(self, pod: PodView, result: CycleResult, is_out_of_time: Callable[[float], bool]) -> bool:
        """Whether the pod's unfinished gang, for which the last look found nothing, has its turn in a later cycle.

        Such gangs have a part of the cycle, or all other pods would wait for them.
        """
        key = (pod.namespace, pod.group)
        has_had_part = is_out_of_time(UNFINISHED_TIME) or len(result.unschedulable) >= MAX_OF_UNFINISHED
        if key not in self._cluster.pod_groups.in_vain or not has_had_part:
            return False
        self._looked_at.add(key)
        return True

    def with_holder(self, heads: Iterable[PodView]) -> Iterator[PodView]:
        """The same pods; before others of its priority, a pod of the gang that holds room: they would take it."""
        groups = self._cluster.pod_groups
        pods = groups.of(groups.held_room.holder).waiting() if groups.held_room.holder is not None else ()
        holder = next((pod for pod in pods if self._ready(pod.uid)), None)
        for pod in heads:
            if holder is not None and pod.priority <= holder.priority:
                yield holder
                holder = None
            yield pod
        if holder is not None:
            yield holder

    def has_looked_at(self, pod: PodView) -> bool:
        """Whether the pod's gang has been decided on in this cycle."""
        return bool(pod.group) and (pod.namespace, pod.group) in self._looked_at

    def decided(self, key: GroupKey, *, in_vain: bool = False) -> None:
        """The gang has been decided on; in vain: none of its pods is placed."""
        self._looked_at.add(key)
        self._cluster.pod_groups.looked_at(key, in_vain=in_vain)

    def put_off(self, pod: PodView) -> None:
        """The pod's gang, if it has one, is not looked at any more in this cycle, but in the next one."""
        if self.of(pod) is not None:
            self._looked_at.add((pod.namespace, pod.group))

    def of(self, pod: PodView) -> Gang | NotReady | None:
        """The gang that a waiting pod is to be placed with; None if it is placed by itself."""
        if not pod.group or (key := (pod.namespace, pod.group)) in self._one_by_one:
            return None
        gang = gang_of(self._cluster, pod)
        if gang is None:
            self._one_by_one.add(key)
        if not isinstance(gang, Gang):
            return gang
        ready = tuple(each for each in gang.members if self._ready(each.uid))
        if len(ready) == len(gang.members):
            return gang
        others = gang.others + tuple(each for each in gang.members if not self._ready(each.uid))
        if gang.begun:
            return replace(gang, members=ready, others=others) if ready else being_bound(key, others)
        # Others of the gang could be placed meanwhile, and refused again and again
        return replace(gang, members=ready) if len(ready) >= gang.needed else backing_off(key, gang.members)

    def backing_off(self, key: GroupKey) -> list[PodView]:
        """Pods of a begun gang that back off after a failed binding: no other pod gets their room meanwhile."""
        groups, is_placed = self._cluster.pod_groups, self._cluster.is_placed
        pods = (groups.members(key).get(uid) for uid in groups.unfinished.get(key, ()))
        return [pod for pod in pods if pod and pod.waiting and not is_placed(pod.uid) and not self._ready(pod.uid)]

    def recorded_row(self, pod: PodView) -> int | None:
        """The row that a placement record has the pod on, if other pods of its gang are bound already."""
        recorded = self._cluster.pod_groups.unfinished.get((pod.namespace, pod.group), {})
        return self._cluster.row_of.get(recorded.get(pod.uid, ""))

    def may_be_helped(self, gang: Gang) -> bool:
        """Whether the placement of other pods may let nodes take its pods which do not now."""
        helped = (pod.shape.affinity or pod.shape.hard_spread or pod.volumes for pod in gang.members)
        return bool(self._cluster.nominations) or any(helped)

    def alike(self, gang: Gang) -> Hashable:
        """What two gangs have in common of which both find nodes, or neither."""
        signatures, by_kind = self._cluster.signatures, bool(self._cluster.kinds)
        first, selected = gang.members[0], selected_among(gang.members)
        pods = Counter(
            (signatures.of(pod), pod.kind.key if by_kind else "", self.recorded_row(pod), selected[pod.uid])
            for pod in gang.members
        )
        return first.scheduler_name, first.priority, first.namespace, gang.needed, frozenset(pods.items())
