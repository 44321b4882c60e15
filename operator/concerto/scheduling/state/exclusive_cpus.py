"""What exclusive CPUs take of a node beyond the requests of the pods that hold them.

A pod counts as max(its request, the CPUs that its binding keeps from others): a request of 1 CPU at exclusiveness Core
takes both threads of a core. Pods without a binding have the shared pool, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.state.columns import Columns, Floats, Ints
from concerto.scheduling.state.cpus import CPUs
from concerto.scheduling.state.kind_loads import KindLoads
from concerto.scheduling.state.node_rows import NodeRows
from concerto.scheduling.state.placed_pods import PlacedPods
from concerto.scheduling.state.pod_index import PodIndex


class ExclusiveCPUs(Columns, PodIndex):
    """Exclusive CPUs by row.

    Args:
        rows: names and rows.
        cpus: which CPUs pods hold.
        placed: which pods are on which row.
        kinds: what pods cost; given the CPUs that these pods keep from others and do not use.

    Attributes:
        beyond_requests: millicores that pods hold exclusively beyond their requests.
        shared_part: part of the node's CPUs that is in the shared pool, 0 to 1.
    """

    FILLS: ClassVar[Mapping[str, float]] = {"beyond_requests": 0, "shared_part": 1.0}

    def __init__(self, rows: NodeRows, cpus: CPUs, placed: PlacedPods, kinds: KindLoads) -> None:
        self._rows = rows
        self._cpus = cpus
        self._placed = placed
        self._kinds = kinds
        self.beyond_requests: Ints = np.zeros(0, dtype=np.int64)
        self.shared_part: Floats = np.zeros(0)
        kinds.on_new_cost = self._recount_shared

    def row_assigned(self, row: int) -> None:
        """CPUs of the node may be known before it has a row."""
        self.recount(row)

    def recount(self, row: int) -> bool:
        """Count the row's node again; returns whether anything has changed."""
        name = self._rows.names[row]
        held, online = self._cpus.held_exclusively(name), self._cpus.count(name)
        pods = self._placed.on_row(row, held)
        requests = {uid: pod.requests.get("cpu", 0) for uid, pod in pods.items()}
        beyond = sum(max(1000 * cpus - requests.get(uid, 0), 0) for uid, cpus in held.items())
        part = 1.0 - min(sum(held.values()) / online, 1.0) if online else 1.0
        costs = {uid: self._kinds.cost_of(pod).share for uid, pod in pods.items() if pod.counted}
        kept = sum(max(cpus - costs.get(uid, 0.0), 0.0) for uid, cpus in held.items())
        self._kinds.loads.set_kept(row, kept)
        changed = (self.beyond_requests[row], self.shared_part[row]) != (beyond, part)
        self.beyond_requests[row], self.shared_part[row] = beyond, part
        return changed

    def follow_cost(self, row: int) -> None:
        """A pod on the row costs another amount now: what it keeps from others is what it does not use."""
        if self.shared_part[row] < 1.0:
            self.recount(row)

    def _recount_shared(self, rows: Ints) -> None:
        """What pods keep from others is what they do not use, and other costs are known of pods on these rows."""
        for row in rows[self.shared_part[rows] < 1.0].tolist():
            self.recount(row)
