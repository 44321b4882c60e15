"""TargetLoadPacking: fill nodes up to a target utilisation, and spread load above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.score_arguments import TargetLoadPackingArgs
from concerto.scheduling.plugins.load.base import LoadAwareScore
from concerto.scheduling.plugins.load.node_load import NodeLoad
from concerto.scheduling.rounding import rounded
from concerto.scheduling.state.columns import Floats, Rows
from concerto.scheduling.state.load import predicted_cpu_millicores

_SAME = 1e-9
"""How far apart, in percent, sums of the same fractions come out."""


def target_load_packing(utilisation: Floats, target: float) -> Floats:
    """The score of a utilisation (Trimaran, TargetLoadPacking, steps 4 to 6, with the signs of its example).

    Args:
        utilisation: percent, with the pod; NaN stays NaN.
        target: X, percent, between 1 and 99.

    Returns:
        (100 - X) * U / X + X up to X; X * (100 - U) / (100 - X) from there to 100; 0 above. Rounded.
    """
    with np.errstate(invalid="ignore"):
        packed = (100.0 - target) * utilisation / target + target
        spread = target * (100.0 - utilisation) / (100.0 - target)
        scores = np.where(utilisation <= target, packed, np.where(utilisation <= 100.0, spread, 0.0))
    return rounded(np.where(np.isnan(utilisation), np.nan, scores))


@dataclass(frozen=True)
class TargetLoadPacking(LoadAwareScore):
    """Best where the cpu would just be used to the target with the pod, worst above 100 %, and on nodes without cpu."""

    args: TargetLoadPackingArgs
    name: ClassVar[str] = "TargetLoadPacking"
    resources: ClassVar[tuple[str, ...]] = ("cpu",)
    packs: ClassVar[bool] = True

    def score(self, state: NodeLoad, rows: Rows) -> Floats:
        """By row; NaN where the cpu is not measured."""
        pod = state.part("cpu", predicted_cpu_millicores(state.query.pod, state.query.settings.load), rows)
        # At the target the score falls from 100 to the target: 0.1 + 0.2 must not be more than 0.3
        target = float(self.args.target_utilization)
        utilisation = 100.0 * (self.load(state, "cpu", rows) + pod)
        utilisation = np.where(np.abs(utilisation - target) < _SAME, target, utilisation)
        scores = target_load_packing(utilisation, target)
        return np.where(state.has("cpu", rows), scores, scores * 0.0)
