"""Which pods are placed at once, and whether all of them are there. Pure. Source: kube-scheduler's GangScheduling.

kube-scheduler's rules hold: the pods of a PodGroup wait until the PodGroup and ``minCount`` pods exist. Pods on nodes
count towards ``minCount``, so that pods that come later are placed one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey, PodGroup
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.group_members import GroupMembers, place_of
from concerto.scheduling.state.resources import PODS

MAX_PODS = 500
"""Pods of one gang that are placed at once: they are decided on in one cycle, which holds up all others."""
_MAX_SELECTORS = 32
"""Selectors with which each pod of a gang is compared; with more of them, pods with different labels are different."""
WAITING, ERROR = "WaitingForPodGroup", "SchedulerError"
"""Reasons of the condition PodScheduled: a cluster autoscaler adds nodes for neither."""


@dataclass(frozen=True)
class Gang:
    """Pods that wait, of which enough are there.

    Attributes:
        key: of the PodGroup.
        members: the pods that wait and are decided on, in the order in which nodes are looked for: the largest first.
        needed: how many of them have to find nodes at once, or none is placed; at least 1.
        min_count: ``minCount`` of the group; the rest of it is on nodes already.
        begun: whether others of its pods are bound already, so that each of these is placed for which there is room.
        others: of a begun gang, pods that wait and are not decided on now, up to ``MAX_PODS``. They wait for what the
            gang waits for.
    """

    key: GroupKey
    members: tuple[PodView, ...]
    needed: int
    min_count: int
    begun: bool = False
    others: tuple[PodView, ...] = ()

    @property
    def spare(self) -> int:
        """How many of them need not find nodes."""
        return len(self.members) - self.needed


@dataclass(frozen=True)
class NotReady:
    """A group no pod of which can be placed now, whatever nodes there are.

    Attributes:
        key: of the PodGroup.
        members: pods of it that wait, up to ``MAX_PODS``.
        message: what it waits for, or what is wrong with it.
        reason: of the condition PodScheduled of its pods: WAITING or ERROR.
        passing: whether that ends by itself soon.
    """

    key: GroupKey
    members: tuple[PodView, ...]
    message: str
    reason: str
    passing: bool = False


def gang_of(cluster: ClusterState, pod: PodView) -> Gang | NotReady | None:
    """The gang that a waiting pod is to be placed with; None if it is placed by itself."""
    if not pod.group:
        return None
    groups, key = cluster.pod_groups, (pod.namespace, pod.group)
    members = groups.of(key)
    recorded = groups.unfinished.get(key, {})
    if begun := sorted((members.pods[uid] for uid in recorded if members.is_waiting(uid)), key=place_of):
        # It was decided before, and recorded: what the PodGroup says by now does not matter
        others = (each for each in members.waiting() if each.uid not in recorded)
        return Gang(key, tuple(begun), 1, len(begun), begun=True, others=tuple(islice(others, MAX_PODS)))
    group = groups.get(key)
    if group is not None and not group.min_count and not group.unsupported:
        return None
    waiting = tuple(islice(members.waiting(), MAX_PODS))
    if group is None:
        return NotReady(key, waiting, f"waiting for PodGroup {pod.group} to appear", WAITING)
    needed = group.min_count - members.placed
    if problem := _problem(group, members, needed):
        return NotReady(key, waiting, problem, ERROR)
    if needed <= 0:
        return None if members.bound >= group.min_count else being_bound(key, waiting)
    if key in groups.being_bound:  # a binding has failed; once the others have ended, that pod is to be finished first
        return being_bound(key, waiting)
    if members.number_waiting < needed:
        there = members.placed + members.number_waiting
        text = f"waiting for {group.min_count} pods of PodGroup {group.name}, of which {there} are there"
        return NotReady(key, waiting, text, WAITING)
    return Gang(key, waiting, needed, group.min_count)


def orders(gang: Gang) -> Iterator[tuple[PodView, ...]]:
    """Orders in which nodes may be looked for: where pods differ, those that fit in one order may not in another.

    The largest pods come first, then the oldest, as in kube-scheduler (``PodGroupMemberPodsOrderingFunc``), then, where
    not all have to find nodes, the smallest.
    """
    yield gang.members
    if len({place_of(pod)[:2] for pod in gang.members}) == 1:
        return
    yield tuple(sorted(gang.members, key=lambda pod: (pod.created, pod.name)))
    if gang.spare:
        yield gang.members[::-1]


def selected_among(members: Collection[PodView]) -> Mapping[str, Hashable]:
    """By UID, by which required terms and constraints of these pods each of them is selected.

    Signatures distinguish pods by the terms of pods on nodes, and not by those of pods that wait.
    """
    shapes = {pod.shape.key: pod.shape for pod in members}.values()
    selectors = {term.selector for shape in shapes for term in (*shape.affinity, *shape.anti_affinity)}
    selectors |= {constraint.selector for shape in shapes for constraint in shape.hard_spread}
    if len(selectors) > _MAX_SELECTORS:
        return {pod.uid: frozenset(pod.labels.items()) for pod in members}
    return {pod.uid: frozenset(each for each in selectors if each.matches(pod.labels)) for pod in members}


def being_bound(key: GroupKey, members: tuple[PodView, ...]) -> NotReady:
    """Pods that wait until others of their gang are bound: should that fail, those must not run alone."""
    return NotReady(key, members, f"waiting for pods of PodGroup {key[1]} that are being bound", WAITING, passing=True)


def backing_off(key: GroupKey, members: tuple[PodView, ...]) -> NotReady:
    """Pods that wait until as many of their gang as it needs may be tried again after failed bindings."""
    text = f"waiting for pods of PodGroup {key[1]} that could not be bound"
    return NotReady(key, members, text, WAITING, passing=True)


def could_fit(cluster: ClusterState, gang: Gang) -> bool:
    """Whether the nodes that take pods are large enough in all for so many pods as have to find nodes at once."""
    rows = np.flatnonzero(cluster.nodes.exists[: cluster.size] & ~cluster.nodes.unschedulable[: cluster.size])
    wanted: Counter[str] = Counter({PODS: gang.needed})
    for pod in gang.members[gang.spare :]:
        wanted.update(pod.requests)
    return all(amount <= cluster.resources.allocatable(name, rows).sum() for name, amount in wanted.items() if amount)


def _problem(group: PodGroup, members: GroupMembers, needed: int) -> str:
    """What is wrong with the group; empty if nothing is. Source: kube-scheduler's ``validatePodGroup``.

    Args:
        group: the group.
        members: its pods.
        needed: how many have to find nodes at once.
    """
    if group.unsupported:
        return f"PodGroup {group.name} has {', '.join(group.unsupported)}, which Concerto does not evaluate"
    if needed > MAX_PODS:
        return f"PodGroup {group.name} needs {needed} pods at once, and Concerto places at most {MAX_PODS} at once"
    together = "all pods in a single pod group should have the same"
    if len(names := members.schedulers_there) > 1:
        return f"{together} .spec.schedulerName set, got {_listed(names)}"
    priorities = members.priorities_there.keys()
    if group.priority is not None and priorities - {group.priority}:
        wrong = priorities - {group.priority}
        return f"{together} priority as the pod group's priority, got {_listed(wrong)} and {group.priority}"
    if len(priorities) > 1:
        return f"{together} priority, got {_listed(priorities)}"
    if len(members.preempting_there) > 1:
        return f"{together} preemption policy, got PreemptLowerPriority and Never"
    return ""


def _listed(values: Collection[object]) -> str:
    return " and ".join(map(str, sorted(values, key=str)[:2]))
