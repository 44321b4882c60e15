"""Which nodes have CPUs enough for a pod, where most of the cluster's CPUs are on such nodes. Pure.

A pod also runs on a node with fewer CPUs than it uses, but takes longer there. If it takes more than twice as long, and
most CPUs are on nodes that are large enough, it has to wait for less time until one of those has room.
"""

from __future__ import annotations

import numpy as np

from concerto.capacity.kinds.cost import Cost
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools

_MAX_TIMES = 2.0
"""Cores that a pod takes on a node that is large enough, in times of the node's."""
_MOST = 0.75
"""Part of the CPUs at least that is on nodes large enough for a pod, where it is kept from others: so many may idle."""


def large_enough(cluster: ClusterState, cost: Cost) -> Bools | None:
    """By row, whether a node has at least half the cores that a pod takes; None where it takes nodes of any size.

    Nodes with taints count for nothing: most pods are kept from them.

    Args:
        cluster: the cluster.
        cost: of the pod.
    """
    rows, loads, nodes = slice(0, cluster.size), cluster.kinds.loads, cluster.nodes
    cores = np.maximum(loads.cores[rows] - loads.own_cpu[rows] - loads.kept_cpu[rows], 0.0)
    enough: Bools = cost.share <= _MAX_TIMES * cores
    if enough.all():
        return None
    takes_pods = nodes.exists[rows] & nodes.ready[rows] & ~nodes.unschedulable[rows]
    takes_pods &= ~nodes.taints.repel(rows)
    on_all, on_large = float(cores[takes_pods].sum()), float(cores[takes_pods & enough].sum())
    return enough if on_large >= _MOST * on_all > 0.0 else None
