"""Pronto's reject-job signal, kept for comparison (docs/references.md, "Reject signal").

Samples are projected on the directions of the merged model and watched for peaks; when the peaks of one instant,
weighted by σ, exceed a threshold, the node would rather have no job. Peaks are found by a z-score against the window
before, in which peaks count only in part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PEAK_DEVIATIONS = 3.5
"""Standard deviations above the window's mean that make a peak."""
PEAK_INFLUENCE = 0.5
"""Share of a peak's height with which it enters the window that later samples are compared with."""
REJECT_SHARE = 0.5
"""Share of Σσ whose directions must peak at one instant."""
_LEAST_DEVIATION = 0.01
"""A flat window must not make a peak of every tick of a counter."""


class RejectSignal:
    """Peak detection on the projections of each of N nodes, one batch against the batch before it."""

    def __init__(self, n_nodes: int, n_resources: int) -> None:
        """No window yet: the first batch cannot peak."""
        self._mean: Floats = np.full((n_nodes, n_resources), np.nan)
        self._deviation: Floats = np.full((n_nodes, n_resources), np.nan)

    def update(self, batch: Floats, valid: Floats, directions: Floats, sigma: Floats) -> Bools:
        """Whether each node rejects, judged by this batch.

        Args:
            batch: (N, b, m) raw samples: smoothing would take away the very peaks.
            valid: (N, b) 1 where the sample counts, else 0.
            directions: (N, m, r) merged model.
            sigma: (N, r).

        Returns:
            (N,) True where the σ-weighted share of peaking directions exceeds REJECT_SHARE at any instant.
        """
        projections: Floats = batch @ directions
        counted = valid[:, :, None]
        threshold = self._mean + PEAK_DEVIATIONS * np.maximum(self._deviation, _LEAST_DEVIATION)
        peaks: Bools = (projections > threshold[:, None, :]) & (counted > 0.0)
        total = np.maximum(sigma.sum(axis=-1), 1e-12)
        share: Floats = (peaks @ sigma[:, :, None])[..., 0] / total[:, None]
        damped = np.where(
            peaks, self._mean[:, None, :] + PEAK_INFLUENCE * (projections - self._mean[:, None, :]), projections
        )
        samples = np.maximum(counted.sum(axis=1), 1.0)
        mean = (damped * counted).sum(axis=1) / samples
        deviation = np.sqrt((((damped - mean[:, None, :]) * counted) ** 2).sum(axis=1) / samples)
        known = (valid.sum(axis=1) > 0.0)[:, None]
        np.copyto(self._mean, mean, where=known)
        np.copyto(self._deviation, deviation, where=known)
        return np.any(share > REJECT_SHARE, axis=1)  # type: ignore[no-any-return]
