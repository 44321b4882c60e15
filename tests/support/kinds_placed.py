"""How many pods of a kind one cycle places on empty nodes, by what is known of the kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import floor

import numpy as np

from concerto.api.pod import PodView
from concerto.api.pod_kind import Kind
from concerto.capacity.kinds.table import Table
from concerto.scheduling.cycle import schedule
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

CORES, HEAD_ROOM, OVERHANG = 4.0, 1.15, 0.3
NODES = 3


def placed_on_nodes(kind: Kind, table: Table, there: Sequence[PodView] = ()) -> list[int]:
    """Pods without end that are placed on each node: their work is not paced, so that all that fit are."""
    pods = [replace(pod(f"web-{i}"), kind=kind) for i in range(NODES * 40)]
    names = [f"node-{number}" for number in range(NODES)]
    cluster = cluster_state([node(name) for name in names], there, [capacity(name, -5.0) for name in names])
    cluster.kinds.set_table(table)
    result = schedule(cluster, pods, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(1))
    found = Counter(decision.assignment.node for decision in result.decisions)
    return [found[name] for name in names]


def pods_of(share: float) -> int:
    """Pods of that share that fill an empty node."""
    return floor(HEAD_ROOM * CORES / share + 1.0 - OVERHANG + 1e-9)
