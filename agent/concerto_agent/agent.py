"""The node agent: one task measures, others talk to the API server, and measuring never waits for them.

Tasks: ``measure`` takes a sample every 100 ms by a monotonic deadline. The pod watcher follows the cgroups. Three
reflectors keep the node's pods, its NodeCapacity and the cluster's model. The status publisher writes the result of the
last batch. While the API server is away only the first two tasks go on; when it is back the newest numbers are written.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from concerto.api.nodecapacity import AgentInfo, MetricsEndpoint, PodEvents
from concerto.api.subspacesnapshot import CLUSTER_NAME, SubspaceSnapshot
from concerto.capacity.subspace import Subspace
from concerto.kube import Reflector, Session
from concerto.kube.reflector import Decoding
from concerto.kube.reflector_settings import ONE_OF_MANY
from concerto.kube.resources import NODE_CAPACITIES, PODS, SUBSPACE_SNAPSHOTS
from concerto_agent.cgroups import Hierarchies
from concerto_agent.container_exits import ContainerExits
from concerto_agent.held_cpus import HeldCPUs
from concerto_agent.large_objects import decode_pods
from concerto_agent.law_trace import LawTrace
from concerto_agent.measurement import Measurement
from concerto_agent.metrics import Gauges
from concerto_agent.node_files import NodeFiles
from concerto_agent.node_follower import NodeFollower
from concerto_agent.pod_census import Containers, limits_of, trim_pod
from concerto_agent.pod_metrics import PodMetrics
from concerto_agent.pod_reader import PodReader, PodReading
from concerto_agent.pod_watcher import PodWatcher
from concerto_agent.quotas import PodLimits
from concerto_agent.status_publisher import PublisherSettings, Sources, StatusPublisher, Timing
from concerto_agent.steady_calls import call_steadily
from concerto_agent.topology_publisher import TopologyPublisher, TopologySettings
from concerto_agent.writer import Object, Writer

if TYPE_CHECKING:  # what pins is imported where it is asked for: it is a MiB
    from concerto_agent.kubelet_configz import KubeletConfigz
    from concerto_agent.pinner import Pinner
    from concerto_agent.pinning_settings import PinningSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentSettings:
    """The agent's own settings, not the CRD's.

    Attributes:
        sample_period_seconds: time between two samples.
        stuck_seconds: time without a sample after which the process counts as unhealthy.
        node_seconds: mean time between two reads of the Node.
        trace_batches: batches whose numbers are kept for /debug/trace, one a second.
        publishing: when and how often the agent writes.
        topology: where kubelet's files are, and how often the CPUs are read.
        pinning: how pods are pinned to CPUs; None: pods are not pinned.
    """

    sample_period_seconds: float = 0.1
    stuck_seconds: float = 30.0
    node_seconds: float = 300.0
    trace_batches: int = 600
    publishing: PublisherSettings = field(default_factory=PublisherSettings)
    topology: TopologySettings = field(default_factory=TopologySettings)
    pinning: PinningSettings | None = None


class Agent:
    """One node's agent.

    Attributes:
        measurement: what is measured and learned.
        gauges: how things are, for the metrics.
        trace: the control law's numbers over the last minutes.
    """

    def __init__(
        self,
        session: Session,
        node_name: str,
        where: NodeFiles,
        version: str,
        settings: AgentSettings,
        *,
        configz: KubeletConfigz | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """An agent that does nothing before ``run``.

        Args:
            session: the way to the API server.
            node_name: the node's name, which its objects bear as well.
            where: the node's files.
            version: of the agent.
            settings: how it works.
            configz: reads kubelet's settings; None: only its configuration file is read.
            clock: monotonic time, seconds.
            wall: seconds since the epoch; only for timestamps.
            rng: for jitter, and for the name of this start.
        """
        rng = rng or random.Random()
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self.measurement = Measurement(where, clock())
        self.counters = self.measurement.counters
        self.gauges = Gauges()
        self.trace = LawTrace(node_name, settings.trace_batches)
        self._writer = Writer(session, node_name)
        self._publisher = StatusPublisher(
            self._writer,
            AgentInfo(version, f"{rng.getrandbits(48):012x}", where.scope, "Scan"),
            settings.publishing,
            self.counters,
            Sources(
                pods_known=lambda: self._reflect_pods.synced.is_set(),
                pod_events=self._pod_events,
                kinds=lambda: self.measurement.kinds(clock()),
                kinds_news=lambda: self.measurement.costs.has_news,
                recall_kinds=lambda kinds, age: self.measurement.costs.recall(kinds, age, clock()),
            ),
            Timing(clock, wall, rng),
        )
        self._session = session
        self._node_name = node_name
        pinner = self._pinner = self._make_pinner(where, settings.pinning)
        if pinner is not None:
            self.gauges.pins = pinner.counts
        seconds = settings.node_seconds, settings.publishing.max_backoff_seconds
        self._node = NodeFollower(session, node_name, configz, seconds, self.measurement.allow, rng)
        self._topology = TopologyPublisher(
            session,
            node_name,
            self._writer,
            where,
            settings.topology,
            wall,
            HeldCPUs if pinner is None else lambda: pinner.held,
            lambda: "None" if pinner is None else pinner.writer,
            lambda: self._node.reserved_count,
            lambda: None if configz is None else configz.reserved(),
        )
        self._looked_for_pods = False
        hierarchies = self._hierarchies = Hierarchies.detect(where.sys)
        self._pod_reader = PodReader(hierarchies, clock)
        self._exits = ContainerExits(hierarchies.pressure, self._container_exited)
        self._pods = (
            None
            if hierarchies.cpu is None
            else PodWatcher(
                hierarchies.cpu,
                where.cgroup,
                self._cgroup_changed,
                self._container_seen,
                self._containers_gone,
                exits=self._exits,
            )
        )
        own, cluster = f"metadata.name={node_name}", f"metadata.name={CLUSTER_NAME}"
        self._reflect_own = Reflector(
            session, NODE_CAPACITIES, field_selector=own, on_change=self._capacity_changed, settings=ONE_OF_MANY
        )
        self._reflect_pods = Reflector(
            session,
            PODS,
            field_selector=f"spec.nodeName={node_name}",
            trim=trim_pod,
            decoding=Decoding(decode_pods, decode_pods),
            settings=ONE_OF_MANY,
            on_change=self._pod_changed,
        )
        self._reflectors = (
            self._reflect_own,
            self._reflect_pods,
            Reflector(
                session,
                SUBSPACE_SNAPSHOTS,
                field_selector=cluster,
                on_change=self._cluster_changed,
                settings=ONE_OF_MANY,
            ),
        )
        self._cluster: Subspace | None = None
        self._early_at = -math.inf  # the next fold of a batch that is not full

    def _make_pinner(self, where: NodeFiles, settings: PinningSettings | None) -> Pinner | None:
        if settings is None:
            return None
        from concerto_agent.pinner import Pinner

        try:
            return Pinner(self._session, self._node_name, where, settings, self._wall, self._limits, self._names)
        except OSError as error:  # the node can be measured all the same
            log.error("pods can't be pinned to CPUs here: %s", error)
            return None

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        had_news = self.measurement.costs.has_news
        self.measurement.pod_changed(old, new, self._clock(), self._wall())
        if self.measurement.costs.has_news and not had_news:
            self._publisher.look_again()
        if self._pinner is not None and new is not None:
            running = new["status"]["running"]
            if old is None or old["status"]["running"] != running:
                self._pinner.containers_known(new["metadata"]["uid"])

    def _names(self, uid: str) -> dict[str, str]:
        pods = (pod for pod in self._reflect_pods.store.values() if pod["metadata"]["uid"] == uid)
        return {key: name for pod in pods for key, (name, _) in pod["status"]["running"].items()}

    def _limits(self) -> dict[str, PodLimits]:
        return limits_of(self._reflect_pods.store.values())

    async def release_on_uninstall(self) -> None:
        """After ``run`` was cancelled: release every pin if the agent's DaemonSet is being removed."""
        if self._pinner is not None:
            await self._pinner.release_on_uninstall()

    async def run(self) -> None:
        """Measure and publish until cancelled.

        Raises:
            ExceptionGroup: something that nobody expected; to start afresh is the only repair.
        """
        if self._pods is not None:
            self._pods.refresh()
        self._looked_for_pods = True
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._pods is not None:
                    tasks.create_task(self._pods.run())
                    tasks.create_task(self._exits.run())
                tasks.create_task(self.measure())
                tasks.create_task(self._publisher.run(self._reflect_own.synced))
                tasks.create_task(self._node.run())
                tasks.create_task(self._publish_topology())
                if self._pinner is not None:
                    tasks.create_task(self._pinner.run())
                for reflector in self._reflectors:
                    tasks.create_task(reflector.run())
        finally:
            self.measurement.close()
            self._pod_reader.close()

    def unwell(self) -> str | None:
        """Why the process is unhealthy; None if it is healthy. A node that can't be measured is not its fault."""
        silent = self._clock() - self.gauges.sampled_at
        return f"no sample for {silent:.0f} s" if silent > self._settings.stuck_seconds else None

    def pod_metrics(self) -> PodMetrics | None:
        """Readings of the node's pods; None where there are no cgroups to read."""
        if self._pods is None:
            return None
        return PodMetrics(self._hierarchies, self._pods.pods, self._reflect_pods.store, wall=self._wall)

    def serves_pod_metrics(self, at: MetricsEndpoint) -> None:
        """State in the next status that metrics of pods are served at ``at``."""
        self._publisher.serves_pod_metrics(at)

    # Measuring

    async def measure(self) -> None:
        """Sample at 10 Hz. A sample that comes too late takes the place of those missed; the grid stays."""
        await call_steadily(self._sample, self._settings.sample_period_seconds, self._clock, self._missed)

    def _missed(self, samples: int) -> None:
        self.counters.missed += samples

    def _sample(self) -> None:
        now = self._clock()
        self.gauges.sampled_at = now
        self._pod_reader.add_up_pressure()
        full = self.measurement.sample(now, self._wall(), self._uncounted_paths())
        # A pod that is newly observed frees what the operator holds for it: that can't wait for the batch to be full
        early = (
            now >= max(self._publisher.allowed_at, self._early_at)
            and self.measurement.pods_changed
            and self.measurement.warm
        )
        if early:
            self._early_at = now + self._settings.publishing.publish.min_interval_seconds
        if full or early:
            self.measurement.pods_read(self._pod_readings(), now)
            measured = self.measurement.fold(now, self._cluster)
            self.gauges.capacity = float(measured.report.capacity[0])
            self.gauges.pod_count = len(measured.pod_uids)
            latest = next(iter(measured.windows.values())).latest[0]
            self.gauges.usage = {r: float(v) for r, v in zip(measured.settings.resources, latest) if not math.isnan(v)}
            self.trace.keep(self._wall(), measured, self.gauges.usage.get("cpu"), self._publisher.published_capacity)
            self._publisher.offer(measured)

    def _pod_readings(self) -> dict[str, PodReading]:
        """What each counted pod has used, of those whose cgroup can be read."""
        if self._pods is None:
            return {}
        self._exits.follow()
        counted = self.measurement.census.counted
        return self._pod_reader.read({uid: path for uid in counted if (path := self._pods.pods.get(uid))})

    def _pod_events(self) -> PodEvents:
        return "Scan" if self._pods is None else self._pods.events

    def _uncounted_paths(self) -> list[str]:
        if self._pods is None:
            return []
        return [self._pods.pods[uid] for uid in self.measurement.census.uncounted() if uid in self._pods.pods]

    # Changes in the API and in the cgroups

    async def _publish_topology(self) -> None:
        # Not before it is known what kubelet reserves: pods would be given those CPUs, and lose them a moment later
        await self._node.looked_at.wait()
        await self._topology.run()

    def _cgroup_changed(self, uid: str, came: bool) -> None:
        census, now = self.measurement.census, self._clock()
        if came:
            census.appeared(uid, now, found=not self._looked_for_pods)
        else:
            census.vanished(uid, now)

    def _container_seen(self, uid: str) -> None:
        self.measurement.census.working(uid, self._clock())

    def _container_exited(self, uid: str) -> None:
        self.measurement.costs.exited(uid, self._clock())

    def _containers_gone(self, uid: str, left: Containers) -> None:
        # The pod's cgroup still has the CPU time of containers that are gone
        if self._pods is not None and uid in self.measurement.census.counted:
            reading = self._pod_reader.read_last(uid, self._pods.pods[uid])
            if reading is not None:
                self.measurement.last_reading(uid, reading)
        self.measurement.census.containers_gone(uid, left, self._clock())

    def _cluster_changed(self, _: Object | None, new: Object | None) -> None:
        self._cluster = read_cluster_model(new)
        self._publisher.placed_by_kind = ((new or {}).get("status") or {}).get("placement") == "ByKind"

    def _capacity_changed(self, _: Object | None, new: Object | None) -> None:
        settings = self._publisher.on_own_object(new)
        if settings is not None:
            generation = 0 if new is None else new["metadata"]["generation"]
            self.measurement.apply(settings, generation, self._clock())


def read_cluster_model(snapshot: Object | None) -> Subspace | None:
    """The cluster's model from its SubspaceSnapshot; None without a usable one."""
    try:
        status = None if snapshot is None else SubspaceSnapshot.from_raw(snapshot).status
        if status is None or not status.nodes or not status.sigma:
            return None
        directions = np.array(status.directions, dtype=float).T
        return Subspace(directions, np.array(status.sigma, dtype=float), status.nodes, status.resources)
    except (KeyError, TypeError, ValueError) as error:  # edited by hand: the node's own model will do
        log.warning("SubspaceSnapshot %s is not usable: %s", CLUSTER_NAME, error)
        return None
