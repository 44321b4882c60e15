"""Gangs of which a part is bound, and the rest is not: the rest goes first. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from concerto.api.podreservation import Assignment
from concerto.scheduling.state.cluster import ClusterState


def note_unfinished(cluster: ClusterState, assignments: Iterable[Assignment]) -> None:
    """Have the next cycle finish what is stored of gangs, where it was begun.

    A gang none of whose pods is bound is decided on afresh: nobody depends on what was decided.

    Args:
        cluster: the cluster; all pods are known.
        assignments: as stored.
    """
    groups = cluster.pod_groups
    for assignment in assignments:
        if assignment.gang is None:
            continue
        members = groups.members(assignment.gang)
        pod = members.get(assignment.uid)
        if pod is None or not pod.waiting or cluster.is_placed(pod.uid):
            continue
        if any(cluster.is_bound(uid) for uid in members):
            groups.must_finish(assignment.gang, pod.uid, assignment.node)


def is_unfinished(cluster: ClusterState, assignment: Assignment) -> bool:
    """Whether the pod still waits while others of its gang are bound: a successor reads that from this assignment."""
    gang = assignment.gang
    return gang is not None and assignment.uid in cluster.pod_groups.unfinished.get(gang, ())
