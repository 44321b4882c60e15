"""Allowance on top of the measured capacity, found as TCP finds its window.

Disjoint windows of W completions; the sum of squared completion times of each is kept in O(1). A sum within the
threshold of the window before adds one pod; a larger one halves the allowance. Squares make a few slow pods weigh more.
Source: docs/references.md, "Over-provision".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import OverProvisionSettings

Floats = NDArray[np.float64]


class OverProvision:
    """The allowance of each of N nodes.

    Attributes:
        allowance: (N,) pods, in [0, ``settings.maximum``]; whole or halved.
    """

    def __init__(self, n_nodes: int, settings: OverProvisionSettings) -> None:
        """No completion seen yet."""
        self.settings = settings
        self.allowance: Floats = np.zeros(n_nodes)
        self._sum = [0.0] * n_nodes
        self._count = [0] * n_nodes
        self._before: list[float | None] = [None] * n_nodes

    def completed(self, node: int, seconds: float) -> None:
        """A pod of the node has ended after ``seconds``."""
        self._sum[node] += seconds * seconds
        self._count[node] += 1
        if self._count[node] < self.settings.window:
            return
        before, this = self._before[node], self._sum[node]
        if before is not None:
            grown = this <= self.settings.threshold * before
            present = float(self.allowance[node])
            self.allowance[node] = min(present + 1.0, float(self.settings.maximum)) if grown else present / 2.0
        self._before[node] = this
        self._sum[node], self._count[node] = 0.0, 0
