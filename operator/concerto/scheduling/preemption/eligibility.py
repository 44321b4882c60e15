"""Whether a pod may preempt others now, and which. Pure.

Source: kube-scheduler's ``PodEligibleToPreemptOthers``.
"""

from __future__ import annotations

from concerto.api.pod import PodView
from concerto.scheduling.state.cluster import ClusterState

NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
"""Both are kube-scheduler's words."""


def why_not_eligible(cluster: ClusterState, pod: PodView, *, nominated_is_hopeless: bool) -> str:
    """Why no pods are evicted for the pod now; empty if they may be.

    Args:
        cluster: the cluster.
        pod: the pod.
        nominated_is_hopeless: whether the node that it is nominated for would not take it whatever pods left it.
    """
    if not pod.preempts:
        return NEVER
    node = cluster.nominations.node_of(pod.uid)
    row = cluster.row_of.get(node)
    if row is None or nominated_is_hopeless:
        return ""
    makes_room = (each.preempted and each.priority < pod.priority for each in cluster.pods_on.on(row))
    return TERMINATING if any(makes_room) else ""


def may_be_evicted(cluster: ClusterState, pod: PodView, now: float) -> bool:
    """Whether the pod's deletion would make room on its node, and the API server has not just refused it.

    The deletion of a mirror pod makes no room. A pod that is only assumed on a node may end up on another one.
    """
    refused = cluster.budgets.refused_deletions
    return not pod.mirror and cluster.is_bound(pod.uid) and not (refused and refused.waits(pod.uid, now))
