"""Trimaran's scores: pods go where their requests fit, to the node with the best measured load (docs/references.md).

The agents' windows stand for load-watcher, the production cycle for kube-scheduler, with its filters by requests and
without measured capacity.
"""

from __future__ import annotations

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.schedulingprofile import DEFAULT_FILTERS, ProfileSettings
from concerto.api.score_arguments import LoadVariationRiskBalancingArgs, ScoreSettings, TargetLoadPackingArgs
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.policies.raw_pods import SCHEDULER_NAME

_FILTERS = tuple(name for name in DEFAULT_FILTERS if name not in ("PodCapacity", "WorkloadAware"))


def trimaran(score: ScoreSettings) -> Concerto:
    """Filters by requests and one score."""
    return Concerto(CapacitySettings(), ProfileSettings(SCHEDULER_NAME, filters=_FILTERS, scores=(score,)))


def target_load_packing() -> Concerto:
    """TargetLoadPacking with its default target, 40 %."""
    return trimaran(ScoreSettings("TargetLoadPacking", target_load_packing=TargetLoadPackingArgs()))


def load_variation_risk_balancing() -> Concerto:
    """LoadVariationRiskBalancing as upstream computes it."""
    args = LoadVariationRiskBalancingArgs(formula="Upstream")
    return trimaran(ScoreSettings("LoadVariationRiskBalancing", load_variation_risk_balancing=args))
