"""Gangs of which a part is bound, and the rest is not: the rest goes first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from concerto.api.podreservation import Assignment
from concerto.scheduling.state.cluster import ClusterState


def note_unfinished(cluster: ClusterState, cycles: Iterable[Sequence[Assignment]]) -> None:
    """Have the next cycle finish gangs of which some pods are bound, and others are not.

    Only pods that were placed together count. A gang is decided on afresh if none of those is bound, whatever other
    pods of it are on nodes: pods that replace others are not placed before all other pods.

    Args:
        cluster: the cluster; all pods are known.
        cycles: for each cycle, what is stored of its decisions.
    """
    groups = cluster.pod_groups
    for assignments in cycles:
        begun = {each.gang for each in assignments if each.gang is not None and cluster.is_bound(each.uid)}
        for assignment in assignments:
            if assignment.gang not in begun:
                continue
            pod = groups.members(assignment.gang).get(assignment.uid)
            if pod is not None and pod.waiting and not cluster.is_placed(pod.uid):
                groups.must_finish(assignment.gang, pod.uid, assignment.node)


def is_unfinished(cluster: ClusterState, assignment: Assignment) -> bool:
    """Whether pods of its gang may still be unbound: a successor reads from its record that the gang was begun."""
    groups, gang = cluster.pod_groups, assignment.gang
    return gang is not None and (gang in groups.unfinished or gang in groups.being_bound)
