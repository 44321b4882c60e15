"""How long a small HTTP server takes to answer on a node that others use, too.

Source: Carico, section 5.7 and table 5.4 (docs/references.md, "Evaluation").

Fixed formula, before any policy is judged by it: on a node with D runnable threads per CPU, in milliseconds

    latency = max(0.99, Normal(3.04, 0.60)) + W₁ + W₂,    Wᵢ ~ Exponential(mean τ · max(0, D - 1)).

The first term is table 5.4's row for an undisturbed server (median 3.04, P90 3.78, P95 4.00, P99 4.47). The other two
are its two turns at the CPU, to read the request and to answer: each waits while the threads before it run, which are
as many per CPU as run beyond the one. τ is fitted once, to kube-scheduler's row (median 10.06, P99 28.82).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MEDIAN_MS, SPREAD_MS, LEAST_MS = 3.04, 0.60, 0.99
TURN_MS = 0.50
"""τ: what one thread ahead in the queue costs, in milliseconds."""


def latencies(load_factors: Floats, rng: np.random.Generator) -> Floats:
    """One answer time in milliseconds for each moment's runnable threads per CPU."""
    alone = np.maximum(rng.normal(MEDIAN_MS, SPREAD_MS, load_factors.shape), LEAST_MS)
    waiting = TURN_MS * np.maximum(0.0, load_factors - 1.0)
    return (
        alone + rng.exponential(1.0, load_factors.shape) * waiting + rng.exponential(1.0, load_factors.shape) * waiting
    )


def percentiles(values: Floats) -> dict[str, float]:
    """As table 5.4 gives them."""
    if not values.size:
        return {}
    found = np.percentile(values, [0, 50, 90, 95, 99, 100])
    return {k: round(float(v), 2) for k, v in zip(("min", "p50", "p90", "p95", "p99", "max"), found)}
