"""Tests whether a policy's sum of ERU and QoS differs from another's by more than chance.

McNaughton tests minutes of one run against each other, and divides by their standard deviation. Minutes of one run
depend on each other, and the mean's uncertainty is its standard *error*. Here each random seed gives one difference,
and those are tested (paired, one-sided Student). Source: docs/references.md, "ERU and QoS".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.scheduling.plugins.load.beta import beta_cdf
from concerto.simulation.autoscaling.run import Result

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A policy's sum of ERU and QoS less the reference's.

    Attributes:
        mean: over seeds; above 0 is better.
        error: standard error of that.
        p_better: one-sided probability of such a mean, or a higher one, if there were no difference.
        p_worse: the same towards the other side.
    """

    mean: float
    error: float
    p_better: float
    p_worse: float


def z_sum_differences(policy: Result, reference: Result) -> Floats:
    """One difference per seed: -z(IdleCPU) - z(ResponseTime), normalised over both policies' minutes."""
    sums = []
    idle, response = (np.stack([getattr(r, k) for r in (policy, reference)]) for k in ("idle", "mean"))
    for values in (idle, response):
        spread = values.std()
        sums.append(-(values - values.mean()) / (spread if spread > 0 else 1.0))
    total = sums[0] + sums[1]
    return np.asarray((total[0] - total[1]).mean(axis=1))


def tested(differences: Floats) -> Difference:
    """Student's test of paired differences against none."""
    mean, count = float(differences.mean()), len(differences)
    error = float(differences.std(ddof=1) / np.sqrt(count)) if count > 1 else float("inf")
    if error == 0.0:
        return Difference(mean, 0.0, float(mean <= 0), float(mean >= 0))
    upper = upper_tail(mean / error, count - 1)
    return Difference(mean, error, upper, 1.0 - upper)


def upper_tail(t: float, degrees: int) -> float:
    """Probability that Student's t with so many degrees of freedom exceeds ``t``."""
    if degrees < 1:
        return 1.0
    one = np.ones(1)
    tail = 0.5 * float(beta_cdf(one * (degrees / (degrees + t * t)), one * (degrees / 2), one * 0.5)[0])
    return tail if t >= 0 else 1.0 - tail


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    order = np.argsort(p_values)
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected
