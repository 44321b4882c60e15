"""All that filters read of a cluster, to show that a calculation leaves it as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.pod_selection import PodSelection


def state_of(cluster: ClusterState) -> str:
    """All that filters read, in comparable form; of rows without a node, which are free, nothing."""
    rows = [cluster.row_of[name] for name in sorted(cluster.row_of)]
    cluster.kinds.loads.settle()  # as each filter does that reads them
    parts = (cluster.resources, cluster.usage, cluster.ports, cluster.measured, cluster.large_pods, cluster.exclusive)
    columns = {
        (type(part).__name__, name): value[..., rows].tolist()
        for part in (*parts, cluster.kinds.loads)
        for name, value in vars(part).items()
        if isinstance(value, np.ndarray) and part is not cluster.resources
    }
    # by name: where a resource has its column depends on the order in which resources came
    table, every = cluster.resources, np.array(rows, dtype=np.intp)
    for name in sorted(table._index):
        columns["resource", name] = [table.used(name, every).tolist(), table.allocatable(name, every).tolist()]
    counts = cluster.pod_counts.by_row([PodSelection(((None, LabelSelector(())),))])[0][rows].tolist()
    accounts = [dataclasses.asdict(account) for name in cluster.names if (account := cluster.ledger.nodes.get(name))]
    indexes = (accounts, cluster.ports._ports, cluster.terms.refusing._rows)
    return repr((columns, counts, *map(without_order, indexes), cluster.signatures.version))


def without_order(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(((repr(key), without_order(item)) for key, item in value.items()), key=repr)
    return [without_order(item) for item in value] if isinstance(value, list) else repr(value)
