"""A NodeCPUTopology has room for the odd shapes that kernels of virtual machines say that their CPUs have."""

from __future__ import annotations

import pytest

from concerto.api.nodecputopology import CPUTopology
from concerto.linux.cpu_topology import KubeletCPUs, TopologyReading
from concerto_agent.topology_publisher import build_topology_status
from support.crd_schemas import problems
from support.topologies import machine

SHAPES = {
    "each CPU a socket, as OpenStack has it by default": CPUTopology(
        machine(512, 1, 1).cores, {0: frozenset(range(512))}
    ),
    "each CPU a thread of one core": machine(1, 1, 4096),
    "each CPU a core of one socket": machine(1, 4096, 1),
    "cores of many speeds": CPUTopology(
        machine(1, 64, 1).cores,
        {0: frozenset(range(64))},
        (),
        {f"capacity-{1000 + n}": frozenset({n}) for n in range(64)},
    ),
}


@pytest.mark.parametrize("topology", SHAPES.values(), ids=SHAPES)
def test_every_shape_of_cpus_can_be_published(topology):
    status = build_topology_status({}, TopologyReading(topology), KubeletCPUs(), 1e9)
    made = {"apiVersion": "concerto.dev/v1alpha1", "kind": "NodeCPUTopology", "spec": {"nodeName": "n"}}
    assert problems(made | {"status": status}) == []
