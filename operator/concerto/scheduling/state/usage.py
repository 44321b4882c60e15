"""What pods on the nodes request and are limited to, as scores read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.state.columns import Columns, Ints
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.provided_load import RESOURCES


class PodUsage(Columns, PodIndex):
    """Sums over the pods on each row.

    Attributes:
        pods: how many pods there are; shape (rows,).
        nonzero: cpu millicores and memory bytes requested, with kube-scheduler's defaults; shape (2, rows).
        limits: cpu millicores and memory bytes, of each pod its limit or request, whichever is greater; (2, rows).
    """

    FILLS: ClassVar[Mapping[str, float]] = {"pods": 0, "nonzero": 0, "limits": 0}

    def __init__(self) -> None:
        self.pods: Ints = np.zeros(0, dtype=np.int64)
        self.nonzero: Ints = np.zeros((len(RESOURCES), 0), dtype=np.int64)
        self.limits: Ints = np.zeros((len(RESOURCES), 0), dtype=np.int64)

    def pod_added(self, pod: PodView, row: int) -> None:
        """Count the pod on the row."""
        self._count(pod, row, 1)

    def pod_removed(self, pod: PodView, row: int) -> None:
        """Take the pod off the row."""
        self._count(pod, row, -1)

    def _count(self, pod: PodView, row: int, sign: int) -> None:
        shape = pod.shape
        self.pods[row] += sign
        cpu, memory = pod.nonzero or (shape.nonzero_cpu_millicores, shape.nonzero_memory_bytes)
        self.nonzero[0, row] += sign * cpu
        self.nonzero[1, row] += sign * memory
        for index, resource in enumerate(RESOURCES):
            limit = max(shape.limits.get(resource, 0), pod.requests.get(resource, 0))
            self.limits[index, row] += sign * limit
