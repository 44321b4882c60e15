"""The capacity signal: how many units of the expected workload still fit (docs/references.md, "Capacity signal").

k = max{k : y_i + k e_i < 1 for all i} = min over e_i > 0 of (1 - y_i) / e_i.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import SignalForm

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def expected_load(directions: Floats, sigma: Floats, form: SignalForm) -> Floats:
    """The vector e (…, m) that one unit of the signal stands for.

    Args:
        directions: (…, m, r), as ``subspace.decompose`` gives them (signs fixed).
        sigma: (…, r), descending.
        form: ``Magnitude``: σ₁u₁ (Carico, eq. 3.3); ``Proportion``: σ₁u₁ / Tr Σ (Choteborsky, eq. 3.10); ``Mixture``:
            |Σ σ_i u_i| / Tr Σ (Choteborsky, section 3.8.2).
    """
    if form == "Magnitude":
        return directions[..., 0] * sigma[..., :1]
    total = sigma.sum(axis=-1, keepdims=True)
    safe = np.where(total > 0.0, total, 1.0)
    if form == "Proportion":
        return directions[..., 0] * (sigma[..., :1] / safe)
    mixture: Floats = np.abs((directions * sigma[..., None, :]).sum(axis=-1)) / safe
    return mixture


def capacity_signal(y: Floats, e: Floats, maximum: float) -> tuple[Floats, Ints]:
    """The signal k and which resource binds it.

    Args:
        y: (…, m) usage; NaN where a resource is not known: it binds nothing.
        e: (…, m) expected load of one unit, ≥ 0.
        maximum: cap of the signal, reached where nothing binds.

    Returns:
        k (…,) in [0, maximum] with y + k e ≤ 1 wherever y ≤ 1, and the index (…,) of the first resource that binds.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        room = (1.0 - y) / e
    # e = 0 and unknown resources bind nothing; 0/0 is such a case, too.
    room = np.where((e > 0.0) & (room == room), room, np.inf)
    binding = room.argmin(axis=-1)
    return np.clip(room.min(axis=-1), 0.0, maximum), binding
