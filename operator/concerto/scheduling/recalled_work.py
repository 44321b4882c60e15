"""What nodes have to do by the placements of an earlier process: pace and head room go on from there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from concerto.api.podreservation import Assignment
from concerto.scheduling.state.cluster import ClusterState


def recall_work(cluster: ClusterState, assignments: Iterable[Assignment], at: float, now: float) -> None:
    """Give nodes the work of those placements whose pods are bound, as if it had been given then.

    A pod that is not bound is decided on afresh, and gives its node no work.

    Args:
        cluster: the cluster; the pods that are on nodes are known.
        assignments: of one placement record. Earlier records have to come before later ones.
        at: when the record was created, seconds since the epoch by the API server's clock. If that is ahead of ours,
            the record counts as made now: nodes would else get no work until then.
        now: seconds since the epoch.
    """
    for assignment in assignments:
        row = cluster.row_of.get(assignment.node)
        if row is None or assignment.cost is None or not cluster.is_bound(assignment.uid):
            continue
        if (pod := cluster.pods_on.get(row, assignment.uid)) is not None:
            cluster.kinds.recall_work(pod, row, assignment.cost, min(at, now))
