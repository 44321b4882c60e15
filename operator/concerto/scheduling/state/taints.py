"""Taints by row, as codes of the distinct lists of taints in the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from concerto.api.node import NodeView, Taint
from concerto.scheduling.state.columns import Bools, Columns, Floats, Ints, Rows

Taints = tuple[Taint, ...]
_MIN_LISTS_KEPT = 256


class TaintIndex(Columns):
    """What a function answers for each row's taints; it is asked once for each distinct list.

    Args:
        nodes: the Nodes by row; kept by the owner of the index.
    """

    FILLS: ClassVar[Mapping[str, float]] = {"_codes": 0}

    def __init__(self, nodes: Mapping[int, NodeView]) -> None:
        self._nodes = nodes
        self._codes: Ints = np.zeros(0, dtype=np.int64)
        self._code_of: dict[Taints, int] = {(): 0}

    def put(self, row: int, taints: Taints) -> None:
        """The row's node has these taints."""
        self._codes[row] = self._code_of.setdefault(taints, len(self._code_of))

    def forget_lists(self) -> None:
        """Drop lists that no node has any more, once there are many."""
        if len(self._code_of) > 2 * len(self._nodes) + _MIN_LISTS_KEPT:
            self._code_of = {(): 0}
            for row, node in self._nodes.items():
                self.put(row, node.taints)

    def accepted(self, accepts: Callable[[Taints], bool], rows: Rows) -> Bools:
        """Which rows' taints are accepted."""
        answer: Bools = np.array([accepts(taints) for taints in self._code_of])[self._codes[rows]]
        return answer

    def counted(self, count: Callable[[Taints], int], rows: Rows) -> Floats:
        """A number for each row's taints."""
        answer: Floats = np.array([float(count(taints)) for taints in self._code_of])[self._codes[rows]]
        return answer

    def repel(self, rows: Rows) -> Bools:
        """Which rows have a taint that only pods that tolerate it get past."""
        return self.accepted(lambda taints: any(t.effect in ("NoSchedule", "NoExecute") for t in taints), rows)
