"""``spec.scores`` of a SchedulingProfile: the score plugins, their weights and arguments.

The defaults are those of the CRD (crds/schedulingprofiles.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from concerto.api.quantities import number_of

RiskFormula = Literal["KEP", "Upstream"]
FitStrategy = Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]
MissingMetrics = Literal["LeastScore", "Abstain", "Requests", "Avoid"]


@dataclass(frozen=True)
class TargetLoadPackingArgs:
    """Arguments of TargetLoadPacking.

    Attributes:
        target_utilization: nodes are filled up to this percentage of cpu; above it load is spread.
    """

    target_utilization: int = 40

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``targetLoadPacking`` of a score."""
        return cls(raw.get("targetUtilization", cls.target_utilization))


@dataclass(frozen=True)
class LoadVariationRiskBalancingArgs:
    """Arguments of LoadVariationRiskBalancing.

    Attributes:
        formula: ``KEP`` (Trimaran, docs/references.md) or ``Upstream``, the formula of the scheduler-plugins project.
        safe_variance_margin: number of standard deviations that stay free.
        safe_variance_sensitivity: the deviation's root of this degree counts; ``Upstream`` only.
    """

    formula: RiskFormula = "KEP"
    safe_variance_margin: float = 1.0
    safe_variance_sensitivity: float = 1.0

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``loadVariationRiskBalancing`` of a score."""
        return cls(
            raw.get("formula", cls.formula),
            number_of(raw, "safeVarianceMargin", cls.safe_variance_margin),
            number_of(raw, "safeVarianceSensitivity", cls.safe_variance_sensitivity),
        )


@dataclass(frozen=True)
class LowRiskOverCommitmentArgs:
    """Arguments of LowRiskOverCommitment.

    Attributes:
        smoothing_window: samples that metrics are smoothed over; their variance is multiplied by this number. None: as
            the provider's metrics are smoothed (``SMOOTHING``).
        limit_risk_weight: weight of the risk by limits, 0 to 1; the risk by load has the rest.
        limit_risk_weights: (resource, weight) where a resource has another one.
    """

    smoothing_window: int | None = None
    limit_risk_weight: float = 0.5
    limit_risk_weights: tuple[tuple[str, float], ...] = ()

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``lowRiskOverCommitment`` of a score."""
        percent, weights = raw.get("limitRiskWeightPercent"), raw.get("riskLimitWeights") or {}
        return cls(
            raw.get("smoothingWindowSize", cls.smoothing_window),
            cls.limit_risk_weight if percent is None else percent / 100,
            tuple((name, number_of(weights, name, 0.0)) for name in weights),
        )


@dataclass(frozen=True)
class ShapePoint:
    """A point of RequestedToCapacityRatio's shape.

    Attributes:
        utilization: requested percentage.
        score: 0 to 10.
    """

    utilization: int
    score: int


@dataclass(frozen=True)
class NodeResourcesFitArgs:
    """Arguments of NodeResourcesFit.

    Attributes:
        strategy: which nodes score higher.
        resources: (name, weight) of each resource that counts.
        shape: for RequestedToCapacityRatio, by ascending utilization; empty for the others.
    """

    strategy: FitStrategy = "LeastAllocated"
    resources: tuple[tuple[str, int], ...] = (("cpu", 1), ("memory", 1))
    shape: tuple[ShapePoint, ...] = ()

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """``nodeResourcesFit`` of a score.

        Raises:
            ValueError: RequestedToCapacityRatio without a shape (the CRD refuses this, too).
        """
        resources = raw.get("resources")
        shape = tuple(ShapePoint(p["utilization"], p["score"]) for p in raw.get("shape") or ())
        strategy: FitStrategy = raw.get("strategy", cls.strategy)
        if strategy == "RequestedToCapacityRatio" and not shape:
            raise ValueError("nodeResourcesFit.shape is missing, which RequestedToCapacityRatio needs")
        return cls(
            strategy,
            cls.resources if resources is None else tuple((r["name"], r.get("weight", 1)) for r in resources),
            tuple(sorted(shape, key=lambda p: p.utilization)),
        )


@dataclass(frozen=True)
class ScoreSettings:
    """A score of a profile. Only the arguments of the named plugin have an effect.

    Attributes:
        name: name of the plugin.
        weight: factor of its score.
        target_load_packing: arguments of TargetLoadPacking.
        load_variation_risk_balancing: arguments of LoadVariationRiskBalancing.
        low_risk_over_commitment: arguments of LowRiskOverCommitment.
        node_resources_fit: arguments of NodeResourcesFit.
        missing_metrics: what a load-aware score does about a node whose metrics are missing.
    """

    name: str
    weight: int = 1
    target_load_packing: TargetLoadPackingArgs = TargetLoadPackingArgs()
    load_variation_risk_balancing: LoadVariationRiskBalancingArgs = LoadVariationRiskBalancingArgs()
    low_risk_over_commitment: LowRiskOverCommitmentArgs = LowRiskOverCommitmentArgs()
    node_resources_fit: NodeResourcesFitArgs = NodeResourcesFitArgs()
    missing_metrics: MissingMetrics = "LeastScore"

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """An item of ``spec.scores``."""
        return cls(
            raw["name"],
            raw.get("weight", cls.weight),
            TargetLoadPackingArgs.from_raw(raw.get("targetLoadPacking") or {}),
            LoadVariationRiskBalancingArgs.from_raw(raw.get("loadVariationRiskBalancing") or {}),
            LowRiskOverCommitmentArgs.from_raw(raw.get("lowRiskOverCommitment") or {}),
            NodeResourcesFitArgs.from_raw(raw.get("nodeResourcesFit") or {}),
            raw.get("missingMetrics", cls.missing_metrics),
        )
