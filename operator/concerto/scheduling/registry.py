"""Every filter and score there is: a new one is a file, a line here, a value of the CRD's enum, and a test."""

from __future__ import annotations

from collections.abc import Callable

from concerto.api.schedulingprofile import ScoreSettings
from concerto.scheduling.filters.node_affinity import NodeAffinity
from concerto.scheduling.filters.node_name import NodeName
from concerto.scheduling.filters.node_ports import NodePorts
from concerto.scheduling.filters.node_ready import NodeReady
from concerto.scheduling.filters.node_resources import NodeResources
from concerto.scheduling.filters.node_unschedulable import NodeUnschedulable
from concerto.scheduling.filters.pod_capacity import PodCapacity
from concerto.scheduling.filters.taint_toleration import TaintToleration
from concerto.scheduling.filters.unsupported_constraints import UnsupportedConstraints
from concerto.scheduling.filters.workload_aware import WorkloadAware
from concerto.scheduling.plugin import Filter, Score
from concerto.scheduling.scores.capacity import Capacity
from concerto.scheduling.scores.load_variation_risk_balancing import LoadVariationRiskBalancing
from concerto.scheduling.scores.low_risk_over_commitment import LowRiskOverCommitment
from concerto.scheduling.scores.node_affinity import NodeAffinity as PreferredNodeAffinity
from concerto.scheduling.scores.node_resources_balanced_allocation import NodeResourcesBalancedAllocation
from concerto.scheduling.scores.node_resources_fit import NodeResourcesFit
from concerto.scheduling.scores.taint_toleration import TaintToleration as PreferredTaintToleration
from concerto.scheduling.scores.target_load_packing import TargetLoadPacking
from concerto.scheduling.scores.workload_aware import WorkloadAware as WorkloadAwareScore

FILTERS: dict[str, type[Filter]] = {
    f.name: f
    for f in (
        NodeName,
        NodeUnschedulable,
        NodeReady,
        TaintToleration,
        NodeAffinity,
        NodeResources,
        NodePorts,
        UnsupportedConstraints,
        PodCapacity,
        WorkloadAware,
    )
}
SCORES: dict[str, Callable[[ScoreSettings], Score]] = {
    Capacity.name: lambda _: Capacity(),
    TargetLoadPacking.name: lambda s: TargetLoadPacking(s.target_load_packing),
    LoadVariationRiskBalancing.name: lambda s: LoadVariationRiskBalancing(s.load_variation_risk_balancing),
    LowRiskOverCommitment.name: lambda s: LowRiskOverCommitment(s.low_risk_over_commitment),
    NodeResourcesFit.name: lambda s: NodeResourcesFit(s.node_resources_fit),
    NodeResourcesBalancedAllocation.name: lambda _: NodeResourcesBalancedAllocation(),
    PreferredNodeAffinity.name: lambda _: PreferredNodeAffinity(),
    PreferredTaintToleration.name: lambda _: PreferredTaintToleration(),
    WorkloadAwareScore.name: lambda _: WorkloadAwareScore(),
}
