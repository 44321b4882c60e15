"""The regularised incomplete beta function over arrays: the distribution function of a beta distribution.

scipy has it, and is the tests' oracle; importing scipy.special costs the operator some 30 MiB and 0.3 s for this alone.
Source: the continued fraction of DLMF 8.17.22, evaluated by Lentz's method (Thompson and Barnett 1986). It takes some
root of a and b steps, thousands where load hardly varies; there, Temme's expansion for large a and b (DLMF 8.18.9).
"""

from __future__ import annotations

from math import erfc, log, pi

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TINY = 1e-300
_PRECISION = 1e-14
_MAX_STEPS = 5_000

_LARGE = 1_000.0
"""From here on of both a and b, the expansion is right to 0.00002, and a score by it to its last whole number."""
_NEAR = 1e-3
"""Distance from the mean, in standard deviations of one sample, within which a coefficient has its limit there."""

_SHIFT = 8
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def beta_cdf(x: Floats, a: Floats, b: Floats) -> Floats:
    """P(X <= x) for X ~ Beta(a, b); elementwise, all of one shape.

    Args:
        x: in [0, 1].
        a: above 0.
        b: above 0.
    """
    if not x.size:
        return np.zeros(0)
    large = np.minimum(a, b) >= _LARGE
    if large.any():
        both = np.empty_like(x)
        both[large] = _of_large(x[large], a[large], b[large])
        both[~large] = beta_cdf(x[~large], a[~large], b[~large])
        return both
    # The fraction converges fast below the mean; above it, the other tail is computed
    swap = x > (a + 1.0) / (a + b + 2.0)
    x, rest = np.where(swap, 1.0 - x, x), np.where(swap, x, 1.0 - x)
    a, b = np.where(swap, b, a), np.where(swap, a, b)
    with np.errstate(divide="ignore", under="ignore"):
        log_front = a * np.log(x) + b * np.log(rest) + _ln_gamma(a + b) - _ln_gamma(a) - _ln_gamma(b)
        tail = np.exp(log_front) / (a * _fraction(x, a, b))
    tail = np.where(x <= 0.0, 0.0, tail)
    cdf: Floats = np.clip(np.where(swap, 1.0 - tail, tail), 0.0, 1.0)
    return cdf


def _of_large(x: Floats, a: Floats, b: Floats) -> Floats:
    """DLMF 8.18.9 with its first coefficient."""
    r = a + b
    mean = a / r
    spread = np.sqrt(mean * (1.0 - mean))
    off = x - mean
    with np.errstate(divide="ignore", invalid="ignore"):
        half_square = -(mean * np.log1p(off / mean) + (1.0 - mean) * np.log1p(-off / (1.0 - mean)))
        eta = np.sign(off) * np.sqrt(2.0 * np.maximum(half_square, 0.0))
        coefficient = 1.0 / eta - spread / off
    # Close to the mean the two terms cancel out
    near = np.abs(off) < _NEAR * spread
    coefficient = np.where(near, (1.0 - 2.0 * mean) / (3.0 * spread), coefficient)
    tail: Floats = np.array([0.5 * erfc(z) for z in (-eta * np.sqrt(r / 2.0)).tolist()])
    cdf = tail + np.exp(-r * half_square) * coefficient / np.sqrt(2.0 * pi * r)
    cdf = np.where(x <= 0.0, 0.0, np.where(x >= 1.0, 1.0, cdf))
    return np.clip(cdf, 0.0, 1.0)


def _ln_gamma(z: Floats) -> Floats:
    """Stirling's series (DLMF 5.11.1) at z + 8, and from there back by the recurrence."""
    product = np.ones_like(z)
    for step in range(_SHIFT):
        product = product * (z + step)
    w = z + _SHIFT
    inverse = 1.0 / w
    series = np.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = series * inverse * inverse + coefficient
    ln_gamma: Floats = (w - 0.5) * np.log(w) - w + 0.5 * log(2 * pi) + series * inverse - np.log(product)
    return ln_gamma


def _fraction(x: Floats, a: Floats, b: Floats) -> Floats:
    """1 + d1/(1 + d2/(1 + ...)) with the coefficients of DLMF 8.17.23."""

    def not_zero(values: Floats) -> Floats:
        return np.where(np.abs(values) < _TINY, _TINY, values)

    value = np.ones_like(x)
    c = np.ones_like(x)
    d = np.zeros_like(x)
    for step in range(1, _MAX_STEPS):
        m = step // 2
        if step % 2:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / not_zero(1.0 + coefficient * d)
        c = not_zero(1.0 + coefficient / c)
        factor = c * d
        value = value * factor
        if np.abs(factor - 1.0).max() < _PRECISION:
            break
    return value
