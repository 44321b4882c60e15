"""What becomes of a load-aware score on nodes whose metrics are missing. Pure.

One rule for each score and node, whatever the source; see the table in docs/load-aware.md, "When metrics are missing".
Source: Trimaran (docs/references.md), "Bad Metrics".
"""

from __future__ import annotations

import numpy as np

from concerto.api.schedulingprofile import RequestsStrategy
from concerto.api.score_arguments import MissingMetrics, NodeResourcesFitArgs
from concerto.scheduling.framework import Score
from concerto.scheduling.plugins.node_resources.fit_score import NodeResourcesFit
from concerto.scheduling.state.columns import Bools, Floats


def too_few_are_measured(known: Bools, candidates: Bools, min_measured_percent: int) -> bool:
    """Whether this is a failure of the provider rather than of some nodes.

    Args:
        known: by row, whether a score has its metrics.
        candidates: by row, whether the pod can go there.
        min_measured_percent: the least percentage of candidates that must be measured.
    """
    measured, nodes = int(np.count_nonzero(known & candidates)), int(np.count_nonzero(candidates))
    return nodes > 0 and (measured == 0 or 100 * measured < min_measured_percent * nodes)


def settle(scores: Floats, candidates: Bools, rule: MissingMetrics) -> Floats:
    """The scores with those of nodes without metrics filled in: NaN only where every candidate is NaN.

    ``LeastScore``: 0, which no node is below. ``Abstain``: the mean of the other candidates. Left out of its weighted
    mean instead, such a node would stand by its other scores alone, and on a busy cluster, where scores by load are
    low, draw all pods. Under ``Requests`` and ``Avoid`` nothing is left to fill in but what was never measurable.
    """
    missing = np.isnan(scores)
    if missing.all():
        return scores
    if rule == "LeastScore":
        return np.where(missing, 0.0, scores)
    measured = scores[~missing & candidates]
    return np.where(missing, measured.mean() if len(measured) else np.nan, scores)


def stand_in(score: Score, strategy: RequestsStrategy) -> Score:
    """The score by requests that decides in the place of one by load while too few nodes are measured."""
    if strategy == "ByScore":
        return _BEST_FIT if score.packs else _SPREAD
    return _BEST_FIT if strategy == "MostAllocated" else _SPREAD


_BEST_FIT: Score = NodeResourcesFit(NodeResourcesFitArgs("MostAllocated"))
_SPREAD: Score = NodeResourcesFit(NodeResourcesFitArgs("LeastAllocated"))
