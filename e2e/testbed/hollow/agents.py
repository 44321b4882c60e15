"""The agents of simulated nodes: the production maths over all of them at once, published by the agent's own rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.nodecapacity import AgentInfo, NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.subspacesnapshot import CLUSTER_NAME, SubspaceSnapshot
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.node_status import Health, StatusContext, build_conditions, build_status, build_subspace
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.publish_rule import (
    Published,
    PublishedSubspace,
    PublishSettings,
    should_publish,
    should_publish_subspace,
)
from concerto.capacity.readings import cpu, non_pod_cpu
from concerto.capacity.report import WARMUP_BATCHES, CapacityReport
from concerto.capacity.subspace import Subspace
from concerto.capacity.windows import WindowStatistics
from concerto.kube import Reflector, Resource, Session
from concerto.kube.resources import NODE_CAPACITIES, SUBSPACE_SNAPSHOTS
from concerto.simulation.scheduling.node_fleet import NodeFleet
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto_agent.writer import NodeMissing, Writer, build_object
from e2e.testbed.hollow.kinds import PodKinds
from e2e.testbed.hollow.objects import HollowNode, Object
from e2e.testbed.hollow.owned import create_owned
from e2e.testbed.hollow.writes import WriteQueue


@dataclass
class _Agent:
    """What one node's agent remembers.

    Attributes:
        started: when each counted pod's cgroup appeared, monotonic seconds, by UID.
        generation: of the NodeCapacity's spec.
        published: the status last written for the node.
        subspace: the status last written for its model.
    """

    started: dict[str, float] = field(default_factory=dict)
    generation: int = 1
    published: Published | None = None
    subspace: PublishedSubspace | None = None


Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

_SLOW_LOOK_SECONDS = 5
# In large fleets the turns come later, as one process has them all: no more often than real agents write settled kinds
_LOOKS_A_SECOND = 250
_KINDS_LOOKS_A_SECOND = 50
# Statuses are rounded: what is compared here may differ from what they say by this much.
_ROUNDING = 1e-3


class Known:
    """What has been published of each node, as arrays: enough to see that a status need not be built."""

    def __init__(self, nodes: int, resources: int) -> None:
        self.capacity = np.full(nodes, np.nan)
        self.usage = np.full((nodes, resources), np.nan)
        self.due = np.full(nodes, -np.inf)
        self.at = np.full(nodes, -np.inf)
        self.subspace_at = np.full(nodes, -np.inf)
        self.pods_changed = np.zeros(nodes, dtype=bool)

    def published(self, node: int, report: CapacityReport, now: float, due: float) -> None:
        """A status of the node has gone out."""
        self.capacity[node], self.usage[node] = report.capacity[node], report.usage[node]
        self.at[node], self.due[node], self.pods_changed[node] = now, due, False

    def may_be_news(self, report: CapacityReport, settings: PublishSettings, now: float) -> Bools:
        """(N,) False where `should_publish` would surely say no, windows apart; an unknown number may be news."""
        capacity = np.abs(report.capacity - self.capacity) + _ROUNDING
        deadband = np.maximum(settings.capacity_pods, settings.capacity_share * np.abs(self.capacity))
        usage = np.abs(report.usage - self.usage) + _ROUNDING
        quiet = (capacity < deadband) & (usage < settings.usage).all(axis=1) & (now < self.due) & ~self.pods_changed
        early = (now - self.at < settings.steady_interval_seconds) & (now < self.due)
        # Its conditions change while a node warms up.
        return ~(quiet | early) | (report.batches <= WARMUP_BATCHES)


def _spread(windows: Mapping[str, WindowStatistics], nodes: Ints, count: int) -> dict[str, WindowStatistics]:
    """Statistics of some nodes in rows of all, as `build_status` wants them."""

    def rows(some: np.ndarray) -> np.ndarray:
        full = np.zeros((count, some.shape[1]), dtype=some.dtype)
        full[nodes] = some
        return full

    return {
        name: WindowStatistics(rows(w.average), rows(w.standard_deviation), rows(w.latest), rows(w.covered_seconds))
        for name, w in windows.items()
    }


class Agents:
    """One agent for each node of a fleet."""

    def __init__(
        self,
        session: Session,
        nodes: Sequence[HollowNode],
        writes: WriteQueue,
        *,
        max_pods: int,
        rng: np.random.Generator,
        wall: Callable[[float], float],
        capacity: CapacitySettings | None = None,
        publish: PublishSettings | None = None,
        kinds: PodKinds | None = None,
    ) -> None:
        """Nothing measured yet.

        Args:
            session: the way to the API server.
            nodes: whose agents these are.
            writes: what they publish goes through it.
            max_pods: pods that each kubelet takes.
            rng: source of chance for the heartbeats' jitter.
            wall: turns monotonic seconds into seconds since the epoch.
            capacity: how all nodes are measured; they do not look at each NodeCapacity's spec.
            publish: deadbands.
            kinds: what pods cost by kind; None: it is not measured.
        """
        self.settings = capacity or CapacitySettings()
        if self.settings.resources != ("cpu", "memory"):
            raise ValueError(f"simulated nodes have cpu and memory to measure, not {self.settings.resources}")
        self._session = session
        self._nodes = nodes
        self._writes = writes
        self._rng = rng
        self._wall = wall
        self._by_unit = publish or PublishSettings()
        self._publish = self._by_unit
        self._kinds = kinds
        self._pipeline = NodePipeline(self.settings, len(nodes), allocatable_pods=max_pods)
        self._agents = [_Agent() for _ in nodes]
        self._known = Known(len(nodes), len(self.settings.resources))
        self._info = AgentInfo("hollow", f"hollow-{rng.integers(2**32):08x}", "Machine", "Inotify")
        self._cluster: Subspace | None = None
        self._reflector = Reflector(
            session, SUBSPACE_SNAPSHOTS, field_selector=f"metadata.name={CLUSTER_NAME}", on_change=self._on_cluster
        )

    async def create(self, node: HollowNode) -> None:
        """Makes the node's objects, empty, as its agent would: owned by the Node."""
        made = await create_for(self._session, NODE_CAPACITIES, node)
        self._agents[node.index].generation = made["metadata"]["generation"]
        await create_for(self._session, SUBSPACE_SNAPSHOTS, node)

    async def run(self) -> None:
        """Follows the cluster's model until cancelled."""
        await self._reflector.run()

    def _on_cluster(self, old: Object | None, new: Object | None) -> None:
        status = SubspaceSnapshot.from_raw(new).status if new is not None else None
        by_kind = status is not None and status.placement == "ByKind"
        self._publish = self._by_unit.by_kind() if by_kind else self._by_unit
        self._cluster = (
            None
            if status is None
            else Subspace(
                np.array(status.directions).T, np.array(status.sigma), status.nodes or 1, resources=status.resources
            )
        )

    def pod_started(self, node: int, pod: PodView, at: float) -> None:
        """The cgroup of a pod that counts has appeared."""
        uid, started = pod.uid, self._agents[node].started
        if uid not in started:  # a container that is started again keeps its pod's cgroup
            started[uid] = at
            if self._kinds is not None:
                self._kinds.pod_started(node, uid, pod.kind)
            self._known.pods_changed[node] = True
            self._pipeline.pod_started(node, at)

    def pod_ended(self, node: int, uid: str, at: float, measured: PodMeasurement | None = None) -> None:
        """The cgroup of a pod is gone; ``measured`` is what it has used, if its work is done."""
        if self._kinds is not None:
            self._kinds.pod_ended(node, uid, at, measured)
        started = self._agents[node].started.pop(uid, None)
        if started is not None:
            self._known.pods_changed[node] = True
            self._pipeline.pod_ended(node, started, at, uid)

    def sample(self, readings: Readings, now: float, model: NodeFleet) -> None:
        """Takes one reading of every node, and once a batch says what is worth saying."""
        y, non_pod = usage(readings, self.settings)
        alive = np.array([node.alive for node in self._nodes])
        valid = np.repeat(alive[:, None], y.shape[1], axis=1)
        utilisation = np.stack([readings.utilisation, readings.memory], axis=1)
        if self._pipeline.sample(
            now, y, valid=valid, non_pod=non_pod, utilisation=utilisation, runnable=readings.runnable
        ):
            for node, agent in enumerate(self._agents):
                if len(agent.started) > 1:  # one alone is not above the others
                    self._pipeline.pods_used(node, model.pods_used(node, agent.started, now))
            self._publish_changes(self._pipeline.fold(now, self._cluster), now, model)

    def _publish_changes(self, report: CapacityReport, now: float, model: NodeFleet) -> None:
        """Write the statuses that the agents' own rules find worth a write."""
        if self._kinds is not None:
            self._kinds.measured(report, model)
        nodes = self._worth_a_look(report, now)
        if not len(nodes):
            return
        windows = _spread(self._pipeline.windows(now, nodes), nodes, len(self._nodes))
        observed_at = self._wall(report.now)
        for index in map(int, nodes):
            node, agent = self._nodes[index], self._agents[index]
            context = context_of(report, index, self._info, tuple(agent.started), observed_at, agent)
            status = build_status(report, index, self.settings, context, windows)
            if should_publish(agent.published, status, report.now, self._publish, now):
                jitter = 1.0 + self._publish.jitter * (2.0 * self._rng.random() - 1.0)
                due = now + self.settings.heartbeat_seconds * jitter
                agent.published = Published(status, report.now, now, due)
                self._known.published(index, report, now, due)
                self._write(NODE_CAPACITIES, node, status.to_raw())
            self._publish_subspace(index, report, now, model)

    def _publish_subspace(self, index: int, report: CapacityReport, now: float, model: NodeFleet) -> None:
        node, agent, kinds = self._nodes[index], self._agents[index], self._kinds
        # A kind that nobody knows is published at once; to look at the others costs as much as a status
        has_news = kinds is not None and index in kinds.with_news
        interval = max(self._publish.subspace_interval_seconds, len(self._nodes) / _KINDS_LOOKS_A_SECOND)
        if not has_news and now - self._known.subspace_at[index] < interval:
            return
        self._known.subspace_at[index] = now
        observed_at = self._wall(report.now)
        before = agent.subspace.status.conditions if agent.subspace else ()
        context = StatusContext(self._info, (), observed_at, 1, observed_at, before=before)
        entries = () if kinds is None else kinds.entries(index, model.pod_measurements(index, agent.started, now), now)
        status = build_subspace(report, index, self.settings, context, entries)
        if should_publish_subspace(agent.subspace, status, self._publish, now):
            agent.subspace = PublishedSubspace(status, now)
            self._write(SUBSPACE_SNAPSHOTS, node, status.to_raw())

    def _worth_a_look(self, report: CapacityReport, now: float) -> Ints:
        """Nodes for which it pays to build a status and ask: an agent has one to look at each second, this has all.

        All that moves fast is compared as arrays. What moves slowly, windows and models, is looked at for a share of
        the nodes each second, so that every node's turn comes within `_SLOW_LOOK_SECONDS`, or later in large fleets.
        """
        turns = max(_SLOW_LOOK_SECONDS, len(self._nodes) // _LOOKS_A_SECOND)
        slow = (np.arange(len(self._nodes)) - int(now)) % turns == 0
        if self._kinds is not None:
            slow[list(self._kinds.with_news)] = True
        return np.flatnonzero(report.fresh & (slow | self._known.may_be_news(report, self._publish, now)))

    def _write(self, resource: Resource, node: HollowNode, status: dict[str, Any]) -> None:
        writer = Writer(self._session, node.name)

        async def write() -> None:
            with suppress(NodeMissing):  # somebody has deleted the Node: there is nothing to say any more
                await writer.write_status(resource, status)

        self._writes.put((resource.plural, node.name), write)


def context_of(
    report: CapacityReport,
    node: int,
    info: AgentInfo,
    pod_uids: Sequence[str],
    observed_at: float,
    agent: _Agent | None = None,
) -> StatusContext:
    """What the status of a node on which all is well states beside the measurement."""
    conditions = build_conditions(
        Health(
            batches=int(report.batches[node]),
            fresh=True,
            silent_seconds=0.0,
            problems=(),
            pods_known=True,
            another=None,
            refused_spec=None,
        )
    )
    before = agent.published.status.conditions if agent and agent.published else ()
    generation = agent.generation if agent else 1
    return StatusContext(info, tuple(pod_uids), observed_at, generation, observed_at, conditions, before)


def usage(readings: Readings, settings: CapacitySettings) -> tuple[np.ndarray, np.ndarray]:
    """Y and its non-pod part, (N, 2) each, of the readings of N nodes."""
    y_cpu = cpu(readings.utilisation, readings.pressure, settings.cpu_formula)
    pods = np.clip(readings.utilisation - readings.system_cpu, 0.0, 1.0)
    other_cpu = non_pod_cpu(y_cpu, readings.utilisation, pods)
    return (
        np.stack([y_cpu, readings.memory], axis=1),
        np.stack([other_cpu, np.minimum(readings.system_memory, readings.memory)], axis=1),
    )


async def create_for(session: Session, resource: Resource, node: HollowNode) -> Object:
    """The agent's object of the node, empty, made if it is not there."""
    return await create_owned(
        session, resource, build_object(resource, {"metadata": {"name": node.name, "uid": node.uid}})
    )


def idle_status(readings: Readings, settings: CapacitySettings, max_pods: int) -> NodeCapacityStatus:
    """What the agent of an idle node says, but that it can take all the pods it may by number: it is said only once."""
    pipeline = NodePipeline(settings, 1, allocatable_pods=max_pods)
    y, non_pod = usage(readings, settings)
    report, now = None, 0.0
    while now < 60.0:
        now += 0.1
        if pipeline.sample(now, y[:1], non_pod=non_pod[:1]):
            report = pipeline.fold(now)
    assert report is not None
    context = context_of(report, 0, AgentInfo("hollow", "hollow-idle", "Machine", "Inotify"), (), time.time())
    status = build_status(report, 0, settings, context, pipeline.windows(now))
    return replace(status, capacity=float(max_pods))
