"""Models of resource usage: a node's own, the cluster's, and how they merge.

A model is a pair (U, Σ): orthonormal directions of usage and the root-mean-square usage along each. It is carried as
its second moment G = U Σ² Uᵀ, an m x m matrix: SVD of [√w₁ U₁Σ₁, √w₂ U₂Σ₂], Carico's Subspace-Merge, has the left
singular vectors and squared singular values that w₁ G₁ + w₂ G₂ has as eigenvectors and eigenvalues. So merging is
adding, in any order, and exact at full rank. All functions take any leading axes (nodes first).
Source: docs/references.md, "Local model and merge".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import acos, cos, degrees, sqrt

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import MergeKind

Floats = NDArray[np.float64]

MOST_STRENGTH = 10.0
"""No honest model has a sigma beyond it: usage is at most a whole node, and resources are at most eight. A sum that has
once held an immense or infinite term stays wrong when the term is taken out again."""
_REBUILD_AFTER_UPDATES = 10_000
"""Updates after which the running sum is added up afresh: each errs by some 1e-16, so 1e-12 is never reached."""


@dataclass(frozen=True)
class Subspace:
    """A merged model, as ``SubspaceSnapshot/cluster`` carries it.

    Attributes:
        directions: (m, m), column k is u_k.
        sigma: (m,) root-mean-square usage along each, descending.
        nodes: how many nodes' models are merged in it.
        resources: names of the rows; empty means those of the caller.
    """

    directions: Floats
    sigma: Floats
    nodes: int
    resources: tuple[str, ...] = ()


def second_moment(directions: Floats, sigma: Floats) -> Floats:
    """G = U Σ² Uᵀ of models (…, m, r), (…, r)."""
    scaled: Floats = directions * sigma[..., None, :]
    return scaled @ scaled.swapaxes(-1, -2)


def decompose(moment: Floats) -> tuple[Floats, Floats]:
    """Directions (…, m, m) and σ (…, m), descending, of second moments (…, m, m).

    Signs are fixed: u_1 is taken non-negative (Carico, appendix A.1.3), every other direction so that its
    entries sum to at least 0. Of a zero moment u_1 is uniform.
    """
    values, vectors = np.linalg.eigh(moment)
    sigma = np.sqrt(np.maximum(values[..., ::-1], 0.0))
    directions = vectors[..., ::-1] * np.where(vectors[..., ::-1].sum(axis=-2, keepdims=True) < 0.0, -1.0, 1.0)
    np.abs(directions[..., 0], out=directions[..., 0])
    empty = sigma[..., 0] == 0.0
    if empty.any():
        directions[empty] = _uniform_basis(moment.shape[-1])
    return directions, sigma


def _uniform_basis(m: int) -> Floats:
    """An orthonormal basis whose first column is uniform (a Householder reflection of the identity)."""
    uniform = np.full(m, 1.0 / sqrt(m))
    normal = uniform - np.eye(m)[0]
    length = float(normal @ normal)
    basis = np.eye(m)
    if length > 0:
        basis -= 2.0 * np.outer(normal, normal) / length
    basis *= np.where(basis.sum(axis=0) < 0.0, -1.0, 1.0)
    return basis


def batch_moment(batch: Floats, valid: Floats | None = None) -> Floats:
    """A Aᵀ / b of batches: the second moment per sample, which does not depend on the batch's length (past the source).

    Args:
        batch: (…, b, m) samples.
        valid: (…, b) 1 for the samples that count and 0 for the others; None: all do. No valid sample gives zero.
    """
    if valid is None:
        valid = np.ones(batch.shape[:-1])
    weighted = batch * valid[..., None]
    moment: Floats = weighted.swapaxes(-1, -2) @ weighted
    moment /= np.maximum(valid.sum(axis=-1), 1.0)[..., None, None]
    return moment


def merge(first: tuple[Floats, Floats], second: tuple[Floats, Floats], weight_second: float) -> tuple[Floats, Floats]:
    """Subspace-Merge (Carico, section 3.3) of two models (U, Σ), weights summing to 1: SVD of [√w₁ U₁Σ₁, √w₂ U₂Σ₂]."""
    return decompose((1.0 - weight_second) * second_moment(*first) + weight_second * second_moment(*second))


def has_moved(published: Subspace, current: Subspace, *, sigma_share: float, angle_degrees: float) -> bool:
    """Whether a model differs enough from the one last published to be worth a write.

    Args:
        published: what others know.
        current: what is so now.
        sigma_share: change of σ₁ that counts, as a share of the published one.
        angle_degrees: turn of u₁ that counts.
    """
    before, after = float(published.sigma[0]), float(current.sigma[0])
    if abs(after - before) > sigma_share * before:
        return True
    alignment = float(published.directions[:, 0] @ current.directions[:, 0])
    if alignment >= cos(angle_degrees * np.pi / 180):
        return False
    return degrees(acos(max(-1.0, min(1.0, alignment)))) > angle_degrees


class ClusterModel:
    """The merge of all live nodes' models: exact, independent of order, O(m²) an update.

    The mean of the nodes' second moments, kept as a sum from which a node's old moment is taken when its new one comes.
    """

    def __init__(self, n_resources: int) -> None:
        """No node merged yet."""
        self._moments: dict[str, Floats] = {}
        self._sum: Floats = np.zeros((n_resources, n_resources))
        self._updates = 0

    def __len__(self) -> int:
        """How many nodes are merged."""
        return len(self._moments)

    def __contains__(self, node: str) -> bool:
        """Whether the node is merged."""
        return node in self._moments

    def update(self, node: str, directions: Floats, sigma: Floats) -> None:
        """Take a node's new model (m, r), (r,) in the place of its old one.

        Raises:
            ValueError: shapes do not fit, or a number is not finite or beyond ``MOST_STRENGTH``; nothing has changed.
        """
        self.update_moments([node], _checked(directions, sigma, len(self._sum))[None])

    def update_moments(self, nodes: Sequence[str], moments: Floats) -> None:
        """The same for many nodes at once, given as second moments (N, m, m)."""
        for node, moment in zip(nodes, moments):
            old = self._moments.get(node)
            if old is not None:
                self._sum -= old
            self._moments[node] = moment.copy()
            self._sum += moment
        self._updates += len(nodes)
        if self._updates >= _REBUILD_AFTER_UPDATES:
            self.rebuild()

    def remove(self, node: str) -> None:
        """Drop a node whose model is gone or stale; nothing happens if it is not merged."""
        old = self._moments.pop(node, None)
        if old is not None:
            self._sum -= old
            self._updates += 1

    def rebuild(self) -> None:
        """Add up all live nodes afresh, so that rounding can't drift."""
        self._sum = np.zeros_like(self._sum)
        for node in sorted(self._moments):
            self._sum += self._moments[node]
        self._updates = 0

    def subspace(self) -> Subspace | None:
        """The merged model; None while no node is merged."""
        count = len(self._moments)
        if count == 0:
            return None
        directions, sigma = decompose(self._sum / count)
        return Subspace(directions, sigma, count)


class StreamingClusterModel:
    """Carico's on-the-fly aggregation (section 4.3): each model that arrives is merged into the latest aggregate.

    Weights γ_A = √((N-1)/N), γ_B = √(1/N) for N known nodes: Carico's N-1 and 1 do not sum to 1 and σ₁ would explode.
    What a node said earlier fades out rather than being taken back, so the result depends on order and rate.
    """

    def __init__(self, n_resources: int) -> None:
        """No node merged yet."""
        self._nodes: set[str] = set()
        self._moment: Floats = np.zeros((n_resources, n_resources))

    def __len__(self) -> int:
        """How many nodes are known."""
        return len(self._nodes)

    def __contains__(self, node: str) -> bool:
        """Whether the node is known."""
        return node in self._nodes

    def update(self, node: str, directions: Floats, sigma: Floats) -> None:
        """Merge a node's model (m, r), (r,).

        Raises:
            ValueError: shapes do not fit, or a number is not finite.
        """
        self.update_moments([node], _checked(directions, sigma, len(self._moment))[None])

    def update_moments(self, nodes: Sequence[str], moments: Floats) -> None:
        """The same for many nodes one after the other, given as second moments (N, m, m)."""
        for node, moment in zip(nodes, moments):
            self._nodes.add(node)
            weight = 1.0 / len(self._nodes)
            self._moment = (1.0 - weight) * self._moment + weight * moment

    def remove(self, node: str) -> None:
        """Forget that the node exists; its share of the aggregate fades."""
        self._nodes.discard(node)

    def rebuild(self) -> None:
        """Nothing to rebuild: a stream keeps no parts."""

    def subspace(self) -> Subspace | None:
        """The latest aggregate; None while no node is known."""
        if not self._nodes:
            return None
        directions, sigma = decompose(self._moment)
        return Subspace(directions, sigma, len(self._nodes))


def cluster_model(kind: MergeKind, n_resources: int) -> ClusterModel | StreamingClusterModel:
    """The cluster model that ``NodeCapacity.spec.merge`` names."""
    return ClusterModel(n_resources) if kind == "Exact" else StreamingClusterModel(n_resources)


def _checked(directions: Floats, sigma: Floats, m: int) -> Floats:
    """The second moment of a model that came from elsewhere."""
    directions, sigma = np.asarray(directions, dtype=float), np.asarray(sigma, dtype=float)
    if directions.ndim != 2 or directions.shape[0] != m or sigma.shape != directions.shape[1:]:
        raise ValueError(f"a model of {m} resources has directions (m, r) and sigma (r,), not "
                         f"{directions.shape} and {sigma.shape}")  # fmt: skip
    if not (np.isfinite(directions).all() and np.isfinite(sigma).all()):
        raise ValueError("a model must be finite")
    if max(np.abs(directions).max(initial=0.0), np.abs(sigma).max(initial=0.0)) > MOST_STRENGTH:
        raise ValueError(f"no node uses more than {MOST_STRENGTH:.0f} times what it has")
    return second_moment(directions, sigma)
