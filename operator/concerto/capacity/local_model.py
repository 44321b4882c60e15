"""The nodes' own models of usage, and the view that each node merges from its own and the cluster's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concerto.capacity import subspace
from concerto.capacity.batch import Batch
from concerto.capacity.subspace import Subspace

Floats = NDArray[np.float64]


class LocalModel:
    """The local models of N nodes, as second moments.

    Attributes:
        moments: (N, m, m) second moments; this is what a node publishes.
    """

    def __init__(self, n_nodes: int, resources: tuple[str, ...]) -> None:
        self.moments: Floats = np.zeros((n_nodes, len(resources), len(resources)))
        self._resources = resources

    def update(self, batch: Batch, first: NDArray[np.bool_], weight: float) -> None:
        """Learn from one batch: the SVD of [√(1-w) UΣ, √w A/√b], as second moments.

        Args:
            batch: the samples.
            first: (N,) whether it is the node's first batch, which then is the model.
            weight: w, the weight of a later batch.
        """
        moment = subspace.batch_moment(batch.smoothed, batch.measured.astype(float))
        weights = np.where(batch.fresh, np.where(first, 1.0, weight), 0.0)
        self.moments += weights[:, None, None] * (moment - self.moments)

    def view(self, cluster: Subspace | None) -> Floats:
        """(N, m, m) the cluster's model with weight (N-1)/N and the node's own with 1/N.

        Only the capacity signal reads the view; it is never published. Without a cluster model, or with one of other
        resources, it is the node's own.
        """
        if cluster is None or cluster.nodes < 1 or len(cluster.directions) != self.moments.shape[-1]:
            return self.moments
        if cluster.resources and cluster.resources != self._resources:
            return self.moments
        own = 1.0 / cluster.nodes
        return own * self.moments + (1.0 - own) * subspace.second_moment(cluster.directions, cluster.sigma)
