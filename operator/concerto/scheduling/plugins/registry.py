"""Every filter and score there is: a new one is a file, a line here, a value of the CRD's enum, and a test."""

from __future__ import annotations

from collections.abc import Callable

from concerto.api.score_arguments import ScoreSettings
from concerto.scheduling.framework import Filter, Score
from concerto.scheduling.plugins.image_locality.score import ImageLocality
from concerto.scheduling.plugins.inter_pod_affinity.filter import InterPodAffinity
from concerto.scheduling.plugins.inter_pod_affinity.score import InterPodAffinity as PreferredInterPodAffinity
from concerto.scheduling.plugins.load.load_variation_risk_balancing import LoadVariationRiskBalancing
from concerto.scheduling.plugins.load.low_risk_over_commitment import LowRiskOverCommitment
from concerto.scheduling.plugins.load.target_load_packing import TargetLoadPacking
from concerto.scheduling.plugins.measured_capacity.filter import PodCapacity
from concerto.scheduling.plugins.measured_capacity.score import Capacity
from concerto.scheduling.plugins.node_affinity.filter import NodeAffinity
from concerto.scheduling.plugins.node_affinity.score import NodeAffinity as PreferredNodeAffinity
from concerto.scheduling.plugins.node_declared_features.filter import NodeDeclaredFeatures
from concerto.scheduling.plugins.node_name.filter import NodeName
from concerto.scheduling.plugins.node_ports.filter import NodePorts
from concerto.scheduling.plugins.node_ready.filter import NodeReady
from concerto.scheduling.plugins.node_resources.balanced_allocation_score import NodeResourcesBalancedAllocation
from concerto.scheduling.plugins.node_resources.filter import NodeResources
from concerto.scheduling.plugins.node_resources.fit_score import NodeResourcesFit
from concerto.scheduling.plugins.node_unschedulable.filter import NodeUnschedulable
from concerto.scheduling.plugins.node_volume_limits.filter import NodeVolumeLimits
from concerto.scheduling.plugins.pod_topology_spread.filter import PodTopologySpread
from concerto.scheduling.plugins.pod_topology_spread.score import PodTopologySpread as SoftTopologySpread
from concerto.scheduling.plugins.taint_toleration.filter import TaintToleration
from concerto.scheduling.plugins.taint_toleration.score import TaintToleration as PreferredTaintToleration
from concerto.scheduling.plugins.unsupported_constraints.filter import UnsupportedConstraints
from concerto.scheduling.plugins.volume_binding.filter import VolumeBinding
from concerto.scheduling.plugins.volume_binding.score import VolumeBinding as StorageCapacity
from concerto.scheduling.plugins.volume_restrictions.filter import VolumeRestrictions
from concerto.scheduling.plugins.volume_zone.filter import VolumeZone
from concerto.scheduling.plugins.workload_aware.filter import WorkloadAware
from concerto.scheduling.plugins.workload_aware.score import WorkloadAware as WorkloadAwareScore

FILTERS: dict[str, type[Filter]] = {
    f.name: f
    for f in (
        NodeName,
        NodeUnschedulable,
        NodeReady,
        TaintToleration,
        NodeAffinity,
        NodePorts,
        NodeResources,
        UnsupportedConstraints,
        PodCapacity,
        WorkloadAware,
    )
}
ALWAYS: tuple[type[Filter], ...] = (
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
    NodeDeclaredFeatures,
)
"""What every profile evaluates without naming it: claims, constraints between pods, and features of kubelets."""
SCORES: dict[str, Callable[[ScoreSettings], Score]] = {
    Capacity.name: lambda _: Capacity(),
    TargetLoadPacking.name: lambda s: TargetLoadPacking(s.target_load_packing, missing_metrics=s.missing_metrics),
    LoadVariationRiskBalancing.name: lambda s: LoadVariationRiskBalancing(
        s.load_variation_risk_balancing, missing_metrics=s.missing_metrics
    ),
    LowRiskOverCommitment.name: lambda s: LowRiskOverCommitment(
        s.low_risk_over_commitment, missing_metrics=s.missing_metrics
    ),
    NodeResourcesFit.name: lambda s: NodeResourcesFit(s.node_resources_fit),
    NodeResourcesBalancedAllocation.name: lambda _: NodeResourcesBalancedAllocation(),
    PreferredNodeAffinity.name: lambda _: PreferredNodeAffinity(),
    PreferredTaintToleration.name: lambda _: PreferredTaintToleration(),
    PreferredInterPodAffinity.name: lambda _: PreferredInterPodAffinity(),
    SoftTopologySpread.name: lambda _: SoftTopologySpread(),
    ImageLocality.name: lambda _: ImageLocality(),
    StorageCapacity.name: lambda _: StorageCapacity(),
    WorkloadAwareScore.name: lambda _: WorkloadAwareScore(),
}
