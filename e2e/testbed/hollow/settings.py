"""Settings of a fleet of simulated nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling.node_model import NodeModelSettings
from e2e.testbed.hollow.objects import NodeShape
from e2e.testbed.hollow.pinning import MachineShape

# A node is given up after the controller manager's grace, 20 s in our control planes. Small fleets renew their Leases
# well within it; the Leases of large ones would alone fill the API server, so that the grace has to be longer.
_SMALL_FLEET = 100
_SMALL_FLEET_LEASE_SECONDS = 8.0
_LARGE_FLEET_LEASE_SECONDS = 60.0
CONTROLLER_MANAGER_FLAGS = ("--node-monitor-grace-period=180s", "--node-monitor-period=5s")


@dataclass(frozen=True)
class HollowSettings:
    """A fleet.

    Attributes:
        count: how many nodes.
        prefix: of their names (``PREFIX-0000`` on), and the fleet's own name in their label.
        shape: what each of them has.
        model: constants of the node model. Simulated kubelets take pods down at once: they write no status between
            Running and the terminal phase.
        seed: of all chance.
        lease_seconds: how often each Lease is renewed; None: 8 s, or 60 s from 101 nodes on, which needs a controller
            manager with `CONTROLLER_MANAGER_FLAGS`.
        writes_in_flight: writes of kubelets at a time, at most.
        publications_in_flight: writes of agents at a time, at most; few, as all agents of a fleet decide at one instant
            and are not to keep the kubelets' writes waiting.
        capacity: how the nodes are measured.
        measures_kinds: whether agents measure what pods cost by kind. Without it, operators count pods as units.
        api_only: the nodes are API objects only: pods bound to them never start, and each node's status is written
            once, with room for as many pods as a kubelet takes.
        machine: the nodes' CPUs, for pods that get their own; None: no NodeCPUTopology is written.
    """

    count: int = 100
    prefix: str = "hollow"
    shape: NodeShape = field(default_factory=NodeShape)
    model: NodeModelSettings = field(default_factory=lambda: NodeModelSettings(teardown_seconds=0.0))
    seed: int = 0
    lease_seconds: float | None = None
    writes_in_flight: int = 32
    publications_in_flight: int = 8
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    measures_kinds: bool = False
    api_only: bool = False
    machine: MachineShape | None = None

    @property
    def renew_seconds(self) -> float:
        """How often each Lease is renewed."""
        if self.lease_seconds is not None:
            return self.lease_seconds
        return _SMALL_FLEET_LEASE_SECONDS if self.count <= _SMALL_FLEET else _LARGE_FLEET_LEASE_SECONDS
