"""LoadVariationRiskBalancing: keep the mean and the variation of load low together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.score_arguments import LoadVariationRiskBalancingArgs
from concerto.scheduling.plugins.load.base import LoadAwareScore
from concerto.scheduling.plugins.load.node_load import NodeLoad
from concerto.scheduling.rounding import rounded
from concerto.scheduling.state.columns import Floats, Rows


def kep_score(mean: Floats, deviation: Floats, request: Floats, margin: float) -> Floats:
    """Trimaran, LoadVariationRiskBalancing, steps 3 to 5: 100 * (1 - min(M + r + margin * V, 1)). All fractions."""
    score: Floats = 100.0 * (1.0 - np.minimum(mean + request + margin * deviation, 1.0))
    return score


def upstream_score(mean: Floats, deviation: Floats, request: Floats, margin: float, sensitivity: float) -> Floats:
    """Upstream's ``computeScore``: 100 * (1 - (mu + sigma) / 2).

    mu is M + r; sigma is margin * V ** (1 / sensitivity), with sensitivity 0 it is 0 unless V is 1, and a negative
    sensitivity leaves V as it is. M, V, mu and sigma are each clamped to [0, 1].
    """
    mu = np.clip(np.clip(mean, 0.0, 1.0) + request, 0.0, 1.0)
    spread = np.clip(deviation, 0.0, 1.0)
    if sensitivity > 0:
        spread = spread ** (1.0 / sensitivity)
    elif sensitivity == 0:
        spread = np.where(spread < 1.0, spread * 0.0, spread)  # NaN stays NaN
    score: Floats = 100.0 * (1.0 - (mu + np.clip(margin * spread, 0.0, 1.0)) / 2.0)
    return score


@dataclass(frozen=True)
class LoadVariationRiskBalancing(LoadAwareScore):
    """The worst of the resources that are measured: the less of mean, variation and request together, the better."""

    args: LoadVariationRiskBalancingArgs
    name: ClassVar[str] = "LoadVariationRiskBalancing"
    needs_telemetry: ClassVar[frozenset[str]] = frozenset({"load", "deviation"})

    def score(self, state: NodeLoad, rows: Rows) -> Floats:
        """By row; NaN where neither cpu nor memory is measured, and 0 where the machine has none of a measured one."""
        return rounded(np.fmin.reduce([self._one(state, resource, rows) for resource in self.resources]))

    def _one(self, load: NodeLoad, resource: str, rows: Rows) -> Floats:
        mean, deviation = self.load(load, resource, rows), load.deviation(resource, rows)
        request = load.part(resource, load.query.pod.shape.requests.get(resource, 0), rows)
        args = self.args
        if args.formula == "KEP":
            scores = kep_score(mean, deviation, request, args.safe_variance_margin)
        else:
            scores = upstream_score(mean, deviation, request, args.safe_variance_margin, args.safe_variance_sensitivity)
        return np.where(load.has(resource, rows), scores, scores * 0.0)
