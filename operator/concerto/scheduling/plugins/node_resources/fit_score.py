"""NodeResourcesFit: by what pods request of the nodes. Source: kube-scheduler's plugin, whose integers it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from concerto.api.score_arguments import NodeResourcesFitArgs, ShapePoint
from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.rounding import rounded
from concerto.scheduling.state.columns import Floats, Ints, Rows

_NATIVE = ("cpu", "memory", "ephemeral-storage")


def least_allocated(requested: Ints, allocatable: Ints) -> Ints:
    """The part that is left, in percent, rounded down; 0 where more is requested than there is."""
    score: Ints = np.maximum(allocatable - requested, 0) * 100 // np.maximum(allocatable, 1)
    return score


def most_allocated(requested: Ints, allocatable: Ints) -> Ints:
    """The part that is requested, in percent, rounded down; 100 where more is requested than there is."""
    score: Ints = np.minimum(requested, allocatable) * 100 // np.maximum(allocatable, 1)
    return score


def requested_to_capacity_ratio(requested: Ints, allocatable: Ints, shape: Sequence[ShapePoint]) -> Ints:
    """The part that is requested, in percent, put through straight lines between the points of a shape.

    Scores of the points go from 0 to 10; between points the result is cut towards the score of the left one.
    """
    utilisation = most_allocated(requested, allocatable)
    score = np.full_like(utilisation, shape[-1].score * 10)
    for left, right in reversed(list(pairwise(shape))):
        rise = (right.score - left.score) * 10 * (utilisation - left.utilization)
        cut = np.sign(rise) * (np.abs(rise) // (right.utilization - left.utilization))
        score = np.where(utilisation <= right.utilization, left.score * 10 + cut, score)
    return np.where(utilisation <= shape[0].utilization, shape[0].score * 10, score)


@dataclass(frozen=True)
class NodeResourcesFit(ScoreDefaults):
    """A weighted mean over resources of what is left (LeastAllocated), taken (MostAllocated), or a shape of it."""

    args: NodeResourcesFitArgs
    name: ClassVar[str] = "NodeResourcesFit"
    by_requests: ClassVar[bool] = True

    def score(self, state: Query, rows: Rows) -> Floats:
        """By row; what the node has none of, and extended resources that the pod does not request, are left out."""
        size = len(state.basis[rows])
        total, weights = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        for resource, weight in self.args.resources:
            if resource not in _NATIVE and not state.pod.shape.requests.get(resource, 0):
                continue
            allocatable = state.cluster.resources.allocatable(resource, rows)
            scores = self._one(_requested(state, resource, rows), allocatable)
            # A shape's zeros do not count in kube-scheduler, not even in the mean's divisor
            counts = (allocatable > 0) & ((scores > 0) | (self.args.strategy != "RequestedToCapacityRatio"))
            total += np.where(counts, scores * weight, 0)
            weights += np.where(counts, weight, 0)
        if self.args.strategy == "RequestedToCapacityRatio":
            return rounded(np.divide(total, weights, out=np.zeros(size), where=weights > 0))
        return (total // np.maximum(weights, 1)).astype(np.float64)

    def _one(self, requested: Ints, allocatable: Ints) -> Ints:
        if self.args.strategy == "LeastAllocated":
            return least_allocated(requested, allocatable)
        if self.args.strategy == "MostAllocated":
            return most_allocated(requested, allocatable)
        return requested_to_capacity_ratio(requested, allocatable, self.args.shape)


def _requested(query: Query, resource: str, rows: Rows) -> Ints:
    """With the pod; of cpu and memory with defaults for containers that request nothing."""
    cluster, shape = query.cluster, query.pod.shape
    if resource == "cpu":
        cpu: Ints = cluster.usage.nonzero[0][rows] + shape.nonzero_cpu_millicores
        return cpu
    if resource == "memory":
        memory: Ints = cluster.usage.nonzero[1][rows] + shape.nonzero_memory_bytes
        return memory
    return cluster.resources.used(resource, rows) + shape.requests.get(resource, 0)
