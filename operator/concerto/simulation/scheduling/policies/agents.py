"""The agents of all simulated nodes: the production measurement and publishing rules, called and not copied."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.nodecapacity import AgentInfo, NodeCapacityStatus
from concerto.api.pod_kind import Kind
from concerto.capacity import readings as formulas
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.start_cost import StartCost
from concerto.capacity.kinds.sums import PodMeasurement, recent_share
from concerto.capacity.kinds.table import NodeKinds, Table
from concerto.capacity.node_status import StatusContext, build_status
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.publish_rule import Published, PublishSettings, should_publish, should_publish_kinds
from concerto.capacity.report import CapacityReport
from concerto.capacity.subspace import Subspace, cluster_model, has_moved
from concerto.capacity.windows import WindowStatistics
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import Change, Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.policies.raw_pods import kind_of_job

_SUBSPACE_SECONDS = 5.0
_SIGMA_SHARE, _ANGLE_DEGREES = 0.02, 1.0


def node_names(count: int) -> list[str]:
    """Names of the nodes, in their order."""
    return [f"node-{i:05d}" for i in range(count)]


class Agents:
    """The agents of all nodes, as one production pipeline.

    Args:
        settings: NodeCapacity.spec of every node.
        deadband: change from which a status is written; None publishes every batch, as Carico does.
        windows: publish means and deviations over minutes, too, for scores that read them.
        kinds: measure what pods cost by kind.
        learned: what the cluster knows of kinds from before.
        leaves_out_stalls: leave out the time in which a pod's tasks waited for a CPU, as production does.

    Attributes:
        writes: of statuses and of what is known of kinds.
        busy_seconds: for which nodes had pods, over all nodes.
        cluster_kinds: what the cluster knows of kinds.
    """

    def __init__(
        self,
        settings: CapacitySettings,
        deadband: PublishSettings | None,
        *,
        windows: bool = False,
        kinds: bool = False,
        learned: Table | None = None,
        leaves_out_stalls: bool = True,
    ) -> None:
        self.settings = settings
        self.deadband = deadband
        self._with_windows = windows
        self._measures_kinds = kinds
        self._learned = learned or {}
        self._leaves_out_stalls = leaves_out_stalls
        self._windows: Mapping[str, WindowStatistics] = {}

    def attach(
        self,
        world: World,
        on_status: Callable[[int, NodeCapacityStatus, int], None],
        on_kinds: Callable[[Table], None] = lambda table: None,
    ) -> None:
        """Begin to measure.

        Args:
            world: the cluster.
            on_status: gets node, status and version once a status has reached the operator.
            on_kinds: gets what the cluster knows of kinds once it has changed.
        """
        self.world = world
        self._on_status = on_status
        self._on_kinds = on_kinds
        self._kinds = [NodeKinds() for _ in world.nodes]
        self._start_costs = [StartCost() for _ in world.nodes]
        self._measured: list[dict[str, PodMeasurement]] = [{} for _ in world.nodes]
        self._published_kinds: list[Table] = [{} for _ in world.nodes]
        self._kinds_at = [-math.inf] * len(world.nodes)
        self.cluster_kinds = ClusterKinds()
        self._kind_of = {job.name: kind_of_job(job) for job in world.setup.jobs}
        if self._learned:
            self.cluster_kinds.set_node("before", self._learned, math.inf)
        if self._measures_kinds:
            on_kinds(self.cluster_kinds.table())
        count = len(world.nodes)
        self.names = node_names(count)
        limits = np.array([n.max_pods for n in world.nodes])
        self.pipeline = NodePipeline(self.settings, count, allocatable_pods=limits)
        self.cluster = cluster_model(self.settings.merge, len(self.settings.resources))
        self.published_cluster: Subspace | None = None
        self._cluster_at = 0.0
        self.running: list[dict[str, float]] = [{} for _ in range(count)]
        self.published: list[Published | None] = [None] * count
        self._version = 0
        self.writes, self.busy_seconds, self._folded_at = 0, 0.0, 0.0
        self._wanted_by_ended = [0.0] * count  # seconds in which pods wanted a CPU
        self._wanted = [0.0] * count  # at the last fold
        self._agent = AgentInfo("simulated", "simulated", "Machine", "Inotify")
        self.report: CapacityReport | None = None

    def transition(self, change: Transition) -> None:
        """A pod's cgroups have come or gone, or its status has been seen.

        A pod counts until its container has ended, and holds its place until its status shows that.
        """
        node, uid = change.node, str(change.pod)
        if change.change is Change.CGROUP_CREATED:
            self.running[node][uid] = change.at
            self.pipeline.pod_started(node, change.at)
            self._start_costs[node].started_or_ended()
        elif change.change is Change.EXITED:
            started = self.running[node].pop(uid, None)
            self._wanted_by_ended[node] += self.world.fleet.pods_wanted(node, [uid], change.at)
            if started is not None:
                self.pipeline.pod_ended(node, started, change.at, uid)
                self._start_costs[node].started_or_ended()
        elif change.change is Change.ENDED and change.measured is not None and change.reason == "Completed":
            self._note_cost(node, self._kind_of_pod(uid), change.measured, change.at)

    def _note_cost(self, node: int, kind: Kind, pod: PodMeasurement, at: float) -> None:
        """A pod of the kind has done its work."""
        self._kinds[node].pod_ended(kind, self._start_costs[node].added_to(self._corrected(pod)), at)
        known = self._published_kinds[node].get(kind.key)
        is_news = self._measures_kinds and not (known is not None and known.ended)
        if is_news and not self.world.agent_dead(node):
            self._publish_kinds(node, at)

    def sample(self, readings: Readings, now: float) -> None:
        """One 10 Hz sample of all nodes."""
        cpu = formulas.cpu(readings.utilisation, readings.pressure, self.settings.cpu_formula)
        pods_utilised = readings.utilisation - readings.system_cpu
        full = self.pipeline.sample(
            now,
            np.stack([cpu, readings.memory], axis=1),
            non_pod=np.stack(
                [formulas.non_pod_cpu(cpu, readings.utilisation, pods_utilised), readings.system_memory], axis=1
            ),
            utilisation=np.stack([readings.utilisation, readings.memory], axis=1),
            runnable=readings.runnable,
        )
        if full:
            self._fold(round(now, 3))

    def _fold(self, now: float) -> None:
        for node, running in enumerate(self.running):
            self.pipeline.pods_used(node, self.world.fleet.pods_used(node, running, now))
            wanted = self._wanted_by_ended[node] + self.world.fleet.pods_wanted(node, running, now)
            if (elapsed := now - self._folded_at) > 0.0:
                cores = self.world.nodes[node].cores
                self.pipeline.pods_wanted(node, (wanted - self._wanted[node]) / elapsed / cores)
            self._wanted[node] = wanted
        self.busy_seconds += sum(map(bool, self.running)) * (now - self._folded_at)
        self._folded_at = now
        self.report = report = self.pipeline.fold(now, self.published_cluster)
        if self._with_windows:
            self._windows = self.pipeline.windows(now)
        if now - self._cluster_at >= _SUBSPACE_SECONDS and not self.world.api_down:
            self._cluster_at = now
            alive = [i for i in range(len(self.names)) if not self.world.agent_dead(i)]
            self.cluster.update_moments([self.names[i] for i in alive], report.local_moments[alive])
            merged = self.cluster.subspace()
            if merged is not None and (
                self.published_cluster is None
                or has_moved(self.published_cluster, merged, sigma_share=_SIGMA_SHARE, angle_degrees=_ANGLE_DEGREES)
            ):
                self.published_cluster = merged
        for node, spec in enumerate(self.world.nodes):
            self._start_costs[node].spent(float(report.cpu_for_pods[node]) * spec.cores)
            if not self.world.agent_dead(node):
                self._publish(node, report, now)
                if self._measures_kinds:
                    self._publish_kinds(node, now)

    def _corrected(self, pod: PodMeasurement) -> PodMeasurement:
        return pod if self._leaves_out_stalls else dataclasses.replace(pod, held=pod.life)

    def _kind_of_pod(self, uid: str) -> Kind:
        return self._kind_of[self.world.pods[uid].job.name]

    def _publish_kinds(self, node: int, now: float) -> None:
        before, read = self._measured[node], self.world.fleet.pod_measurements(node, self.running[node], now)
        measured = {uid: self._corrected(pod) for uid, pod in read.items()}
        for uid, pod in measured.items():
            if (earlier := before.get(uid)) is not None:
                measured[uid] = dataclasses.replace(pod, recent=recent_share(earlier, pod))
        self._measured[node] = measured
        table = self._kinds[node].table(((self._kind_of_pod(uid), pod) for uid, pod in measured.items()), now)
        if not should_publish_kinds(self._published_kinds[node], table, self._rules(), now - self._kinds_at[node]):
            return

        def seen() -> None:
            size = self.world.nodes[node]
            self.cluster_kinds.set_node(self.names[node], table, size.cores, size.memory_bytes)
            self._on_kinds(self.cluster_kinds.table())

        if self.world.write(lambda: self.world.watch(seen)):
            self._published_kinds[node], self._kinds_at[node] = table, now
            self.writes += 1

    def _rules(self) -> PublishSettings:
        """Where pods are placed by kind, what only units of capacity need is written less often."""
        rules = self.deadband or PublishSettings()
        return rules.by_kind() if self.cluster_kinds.table() else rules

    def status(self, node: int, report: CapacityReport, now: float) -> NodeCapacityStatus:
        """What the agent could say of its node now."""
        context = StatusContext(self._agent, tuple(self.running[node]), now, 1, now)
        return build_status(report, node, self.settings, context, self._windows)

    def _publish(self, node: int, report: CapacityReport, now: float) -> None:
        status = self.status(node, report, now)
        before = self.published[node]
        if self.deadband is not None and should_publish(before, status, now, self._rules(), now) is None:
            return
        self._version += 1
        version = self._version
        if self.world.write(lambda: self.world.watch(lambda: self._on_status(node, status, version))):
            self.writes += 1
            self.published[node] = Published(status, now, now, now + self.settings.heartbeat_seconds)
