"""Policies that use capacities published by agents: Concerto's pipeline with the settings of the source."""

from __future__ import annotations

import dataclasses

import numpy as np

from concerto.api.capacity_settings import CapacitySettings, EstimatorSettings, OverProvisionSettings, SignalSettings
from concerto.api.nodecapacity import NodeCapacityStatus
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.policies.agents import Agents
from concerto.simulation.scheduling.policies.base import QueueingPolicy
from concerto.simulation.scheduling.workloads import SimPod


class PublishedCapacity(QueueingPolicy):
    """What every such policy knows of a node: its last broadcast, once a second, and the pods it has placed since.

    Args:
        settings: of the agents.
    """

    def __init__(self, settings: CapacitySettings) -> None:
        self.agents = Agents(settings, deadband=None)

    def attach(self, world: World) -> None:
        """See Policy."""
        super().attach(world)
        count = len(world.nodes)
        self.capacity = np.zeros(count)
        self.rejects = np.ones(count, dtype=bool)
        self.reserved: list[set[str]] = [set() for _ in range(count)]
        self.reserved_on: dict[str, int] = {}
        self.agents.attach(world, self.on_status)

    def sample(self, readings: Readings, now: float) -> None:
        """See Policy."""
        self.agents.sample(readings, now)

    def transition(self, change: Transition) -> None:
        """See Policy."""
        self.agents.transition(change)

    def on_status(self, node: int, status: NodeCapacityStatus, version: int) -> None:
        """A broadcast has arrived."""
        self.capacity[node] = status.capacity
        self.rejects[node] = status.reject
        self.world.wake()

    def reserve(self, pod: SimPod, node: int) -> None:
        """The pod is on its way to the node."""
        self.reserved[node].add(pod.uid)
        self.reserved_on[pod.uid] = node

    def forget(self, pod: SimPod) -> None:
        """See QueueingPolicy: the pod is on its way no more."""
        node = self.reserved_on.pop(pod.uid, None)
        if node is not None:
            self.reserved[node].discard(pod.uid)

    def pod_running(self, pod: SimPod, now: float) -> None:
        """See Policy. A reservation ends once the pod is no longer Pending (Carico, section 3.6)."""
        self.forget(pod)

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.forget(pod)


class Carico(PublishedCapacity):
    """Carico as its source describes it (docs/references.md).

    Two Kalman filters over the signal, the mean of utilisation and pressure, filter pod capacity - reserved >= 1, score
    pod capacity - reserved (Carico, sections 3.5, 3.6 and 4.2).
    """

    SETTINGS = CapacitySettings(cpu_formula="Mean", estimator=EstimatorSettings(type="Signal"), merge="Streaming")

    def __init__(self, settings: CapacitySettings | None = None) -> None:
        super().__init__(settings or self.SETTINGS)

    def place(self, pod: SimPod, now: float) -> int | None:
        """See QueueingPolicy."""
        left = self.capacity - np.array([len(r) for r in self.reserved])
        left = np.where(self.ready, left, -np.inf)
        node = int(left.argmax())
        if left[node] < 1:
            return None
        self.reserve(pod, node)
        return node


def spazio(over_provision: bool) -> Carico:
    """Choteborsky's variant: expected load σ₁/Tr(Σ)·u₁ (eq. 3.10), optionally with its allowance (section 3.11)."""
    return Carico(
        dataclasses.replace(
            Carico.SETTINGS,
            signal=SignalSettings(form="Proportion"),
            over_provision=OverProvisionSettings(enabled=over_provision),
        )
    )


class Pronto(PublishedCapacity):
    """Pronto's reject-job signal: a node takes pods unless its projections spike.

    Source: Carico, section 2.3.8; Choteborsky, section 2.6 (docs/references.md, "Reject signal").

    The signal cannot be reserved and does not rank nodes, so a node that does not reject is chosen at random.
    """

    def __init__(self) -> None:
        super().__init__(CapacitySettings(cpu_formula="Mean"))

    def place(self, pod: SimPod, now: float) -> int | None:
        """See QueueingPolicy."""
        counts = np.array([len(r) for r in self.agents.running]) + np.array([len(r) for r in self.reserved])
        limits = np.array([n.max_pods for n in self.world.nodes])
        willing = np.flatnonzero(~self.rejects & np.array(self.ready) & (counts < limits))
        if not willing.size:
            return None
        node = int(willing[self.world.rng.integers(willing.size)])
        self.reserve(pod, node)
        return node
