"""What exclusive CPUs take of a node beyond the requests of the pods that hold them.

A pod counts as max(its request, the CPUs that its binding keeps from others): a request of 1 CPU at exclusiveness Core
takes both threads of a core. Pods without a binding have the shared pool, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.state.columns import Columns, Floats, Ints


class ExclusiveCPUs(Columns):
    """Exclusive CPUs by row.

    Attributes:
        beyond_requests: millicores that pods hold exclusively beyond their requests.
        shared_part: part of the node's CPUs that is in the shared pool, 0 to 1.
    """

    FILLS: ClassVar[Mapping[str, float]] = {"beyond_requests": 0, "shared_part": 1.0}

    def __init__(self) -> None:
        self.beyond_requests: Ints = np.zeros(0, dtype=np.int64)
        self.shared_part: Floats = np.zeros(0)

    def update(self, row: int, held: Mapping[str, int], requests: Mapping[str, int], online: int) -> bool:
        """Count a node again.

        Args:
            row: the node's.
            held: CPUs that bindings keep from others, by UID of the pod.
            requests: cpu requests of these pods as far as they are on the node, millicores.
            online: CPUs of the node.

        Returns:
            Whether anything has changed.
        """
        beyond = sum(max(1000 * cpus - requests.get(uid, 0), 0) for uid, cpus in held.items())
        part = 1.0 - min(sum(held.values()) / online, 1.0) if online else 1.0
        changed = (self.beyond_requests[row], self.shared_part[row]) != (beyond, part)
        self.beyond_requests[row], self.shared_part[row] = beyond, part
        return changed
