"""Gangs of which a part is bound, and the rest is not: the rest goes first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from concerto.api.podreservation import Assignment
from concerto.scheduling.state.cluster import ClusterState


def note_unfinished(cluster: ClusterState, assignments: Iterable[Assignment], stored: Iterable[Assignment]) -> None:
    """Have the next cycle finish what is stored of gangs, where it was begun.

    A gang is decided on afresh if none of its stored pods is bound. Its pods that were bound earlier do not count:
    pods that replace others are not placed before all other pods.

    Args:
        cluster: the cluster; all pods are known.
        assignments: what may have to be finished.
        stored: all assignments of the placement records that exist, by which a gang was begun if one of them is bound.
    """
    groups = cluster.pod_groups
    begun = {each.gang for each in stored if each.gang is not None and cluster.is_bound(each.uid)}
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
