"""How far nodes are filled, by how unsteadily their pods use CPUs and by how much these are seen to idle.

Pods that wait and compute by turns leave CPUs idle at times, although their shares add up to the node's cores: so much
the more, the more cores one of them uses at a time beside those of the node. Pods that compute throughout their lives
leave none idle, and only slow each other down where there are more of them.

A pod that uses p cores while it computes, and s over its life, has a use with the variance s (p − s). Of pods whose
shares add up to a node's C cores, these add up to C (p − s), whose root in parts of the node is ((p − s) / C)^½. What
kubelet and container runtime do to start and end pods is part of their shares, and not of the variance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concerto.capacity.kinds.cost import Cost
from concerto.capacity.kinds.idleness import Idleness
from concerto.capacity.kinds.settings import KindSettings

Floats = NDArray[np.float64]
Row = int | NDArray[np.int64]

_MAX_WIDENED = 6.0
"""What is seen to idle adds so many times what follows from the pods at most. With steady pods, CPUs idle only while
one generation of them follows another, and more pods at a time would crowd the next one.
"""


class HeadRoom:
    """Of N nodes, by row. Settings, pods and cores are the caller's.

    Attributes:
        filled_to: (N,) shares that a node is filled to, in parts of its cores.
    """

    def __init__(self) -> None:
        self.filled_to: Floats = np.zeros(0)
        self._by_pods: Floats = np.zeros(0)  # without what was seen
        self._widened: Floats = np.zeros(0)  # by what was seen
        self._known: Floats = np.zeros(0)  # cores that those pods take of which it is known what they use at a time
        self._variance: Floats = np.zeros(0)  # of what these use, cores squared
        self._idleness = Idleness()

    def grow(self, width: int, settings: KindSettings) -> None:
        """Make room for that many nodes."""
        more = max(0, width - len(self.filled_to))
        self.filled_to, self._by_pods = (
            np.concatenate([each, np.full(more, settings.head_room)]) for each in (self.filled_to, self._by_pods)
        )
        self._widened, self._known, self._variance = (
            np.concatenate([each, np.zeros(more)]) for each in (self._widened, self._known, self._variance)
        )
        self._idleness.grow(width)

    def clear(self, row: int, settings: KindSettings) -> None:
        """The row stands for another node from now on; its pods have been removed."""
        self.filled_to[row] = self._by_pods[row] = settings.head_room
        self._widened[row] = self._known[row] = self._variance[row] = 0.0
        self._idleness.clear(row)

    def add(self, rows: Row, cost: Cost, pods: Floats | float) -> None:
        """So many pods of that cost have come to each of the rows; less than 0: they have ended."""
        if cost.variance is not None:
            self._known[rows] += pods * cost.share
            self._variance[rows] += pods * cost.variance

    def recount(self, rows: Row, cpu: Floats, pods: Floats, cores: Floats, settings: KindSettings) -> Floats:
        """(R,) ``filled_to`` once other pods are on the rows.

        Args:
            rows: the rows.
            cpu: shares of their pods, added up, cores.
            pods: their number. The settings say what a node without pods is filled to, or with pods that are unknown.
            cores: that pods may use.
            settings: constants.
        """
        known = np.maximum(self._known[rows], 0.0)
        part = np.minimum(np.maximum(self._variance[rows], 0.0) / np.maximum(known * cores, 1e-9), 1.0)
        more = settings.unsteadiness * np.maximum(np.sqrt(part) - settings.steady, 0.0)
        weight = np.minimum(known / np.maximum(cpu, 1e-9), 1.0)
        by_pods = settings.head_room + np.where(pods > 0.0, weight, 0.0) * (1.0 + more - settings.head_room)
        self._by_pods[rows] = by_pods
        widened = np.minimum(self._widened[rows], _MAX_WIDENED * (by_pods - 1.0))
        filled_to: Floats = np.minimum(by_pods + widened, settings.max_head_room)
        self.filled_to[rows] = filled_to
        return filled_to

    def for_last(self, rows: Row | slice, settings: KindSettings) -> Floats:
        """(R,) what the rows are filled to beyond that for the last pods that wait, in parts of their cores.

        Where pods are so unsteady that a node is given more anyway, that much less.
        """
        more = settings.head_room + settings.last_pods - self._by_pods[rows]
        most = np.minimum(settings.last_pods, settings.max_head_room - self.filled_to[rows])
        for_last: Floats = np.clip(more, 0.0, np.maximum(most, 0.0))
        return for_last

    def report(self, row: int, used: float, filled: bool, now: float, settings: KindSettings) -> None:
        """The node's agent has reported.

        Args:
            row: the node.
            used: its CPU utilisation, in parts of it.
            filled: whether it is filled while pods wait.
            now: seconds.
            settings: constants.
        """
        growth = self._idleness.report(row, used, now)
        if filled:
            self._widen(row, self._widened[row] + growth, settings)

    def set(self, row: int, filled_to: float, settings: KindSettings) -> None:
        """Fill the node to that part of its cores while it has such pods, within the bounds that the settings name."""
        self._widen(row, filled_to - self._by_pods[row], settings)

    def _widen(self, row: int, widened: float, settings: KindSettings) -> None:
        most = min(settings.max_head_room - settings.head_room, _MAX_WIDENED * (self._by_pods[row] - 1.0))
        self._widened[row] = min(max(widened, 0.0), most)
