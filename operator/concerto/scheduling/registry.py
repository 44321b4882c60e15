"""Every filter and score there is: a new one is a file, a line here, a value of the CRD's enum, and a test."""

from __future__ import annotations

from concerto.scheduling.filters.node_affinity import NodeAffinity
from concerto.scheduling.filters.node_name import NodeName
from concerto.scheduling.filters.node_ports import NodePorts
from concerto.scheduling.filters.node_ready import NodeReady
from concerto.scheduling.filters.node_resources import NodeResources
from concerto.scheduling.filters.node_unschedulable import NodeUnschedulable
from concerto.scheduling.filters.pod_capacity import PodCapacity
from concerto.scheduling.filters.taint_toleration import TaintToleration
from concerto.scheduling.filters.unsupported_constraints import UnsupportedConstraints
from concerto.scheduling.plugin import Filter, Score
from concerto.scheduling.scores.capacity import Capacity

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
    )
}
SCORES: dict[str, type[Score]] = {s.name: s for s in (Capacity,)}
