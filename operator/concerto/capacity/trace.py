"""The last minutes of a law that decides how many pods a node takes, in its own numbers. Pure code.

An agent keeps the numbers of its node after each batch. The operator keeps those of placement by kind for every node.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """One number of a law.

    Attributes:
        name: as in the answer of /debug/trace.
        unit: of the number.
        meaning: what it is, in a sentence's part.
    """

    name: str
    unit: str
    meaning: str


AGENT_COLUMNS = (
    Column("pods", "pods", "pods that are counted, n"),
    Column("window", "pods", "pods that the node should run"),
    Column("demand", "tasks", "tasks that run or wait for a CPU, per CPU, D"),
    Column("cpu", "share", "CPU utilisation over the last second"),
    Column("tokens", "pods", "pods that may start now by the pace"),
    Column("capacity", "pods", "pods that the node can take, signed"),
    Column("published", "pods", "capacity in the last status that was written"),
    Column("share", "share", "share of the node's CPUs that a regular pod takes"),
)
"""What an agent keeps of its node after each batch (docs/capacity-control.md, "The control law")."""

KIND_COLUMNS = (
    Column("pods", "pods", "pods placed on the node"),
    Column("committed", "cores", "sum of the shares of the pods there"),
    Column("left", "cores", "cores that are not committed, signed"),
    Column("headRoom", "ratio", "shares that the node is filled to, in parts of its cores"),
    Column("tokens", "core-seconds", "work that the node may be given now, at most"),
    Column("system", "cores", "cores in use outside of pods"),
    Column("memoryLeft", "bytes", "memory that is not committed, signed"),
)
"""What the operator keeps of each node (docs/capacity-control.md, "Capacity by kind")."""


class Trace:
    """Numbers of N nodes at the last moments; the oldest make room for new ones. N may grow.

    ``add`` may run in another thread than ``rows``: what was added is never changed.
    """

    def __init__(self, columns: Sequence[Column], kept: int) -> None:
        """Nothing is known yet.

        Args:
            columns: names of the numbers.
            kept: moments to keep.
        """
        self.columns = tuple(columns)
        self._moments: deque[tuple[float, NDArray[np.float32]]] = deque(maxlen=kept)

    def add(self, at: float, values: Mapping[str, Floats | float]) -> None:
        """Keep the numbers of one moment.

        Args:
            at: seconds since the epoch.
            values: by name of the column, (N,) numbers each; NaN or infinite where unknown.

        Raises:
            KeyError: a column is missing.
        """
        numbers = [np.atleast_1d(np.asarray(values[column.name], dtype=np.float32)) for column in self.columns]
        self._moments.append((at, np.stack(numbers)))

    def rows(self, node: int, since: float = -math.inf) -> list[list[float | None]]:
        """Time and numbers of one node, oldest first; None where a number is unknown.

        Args:
            node: the node's index.
            since: seconds since the epoch; earlier moments are left out.
        """
        return [
            [round(at, 3), *(round(float(v), 4) if np.isfinite(v) else None for v in numbers[:, node])]
            for at, numbers in list(self._moments)
            if at >= since and node < numbers.shape[1]
        ]

    def document(self, node: str, rows: Sequence[Sequence[float | None]]) -> dict[str, object]:
        """The answer of /debug/trace about a node: names and units of the columns, and the rows."""
        columns = [{"name": "at", "unit": "seconds since the epoch"}]
        columns += [{"name": column.name, "unit": column.unit} for column in self.columns]
        return {"node": node, "columns": columns, "rows": list(rows)}
