"""The agent's loop: measuring on one side, talking to the API server on the other, and nothing that waits in between.

Tasks: ``measure`` takes a sample every 100 ms by a monotonic deadline; the watcher follows the cgroups; three
reflectors keep the node's pods, its NodeCapacity and the cluster's model; ``publish`` writes what the last batch gave.
With the API server away all but the first two only wait, and when it is back the newest numbers are written.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.conditions import merge_conditions
from concerto.api.nodecapacity import AgentInfo, MetricsEndpoint, NodeCapacityStatus
from concerto.api.quantities import whole
from concerto.api.subspacesnapshot import CLUSTER_NAME, SubspaceSnapshot
from concerto.api.timestamps import format_timestamp
from concerto.capacity.node_status import Health, StatusContext, build_conditions, build_status, build_subspace
from concerto.capacity.publishing import (
    Published,
    PublishedSubspace,
    PublishSettings,
    condition_states,
    should_publish,
    should_publish_subspace,
)
from concerto.capacity.subspace import Subspace
from concerto.kube import ApiError, KubeError, Reflector, Session
from concerto.kube.resources import NODE_CAPACITIES, NODES, PODS, SUBSPACE_SNAPSHOTS
from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.measurement import Measured, Measurement
from concerto_agent.metrics import Gauges
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinner import Pinner, PinningSettings
from concerto_agent.pod_metrics import PodMetrics
from concerto_agent.podmeta import limits_of, trim_pod
from concerto_agent.pods import PodWatcher
from concerto_agent.quotas import PodLimits
from concerto_agent.topology_publisher import TopologyPublisher, TopologySettings
from concerto_agent.writer import NodeMissing, Object, Writer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentSettings:
    """The agent's own settings, not the CRD's.

    Attributes:
        sample_period_seconds: time between two samples.
        stuck_seconds: without a sample for so long the process is not well.
        pods_patience_seconds: how long to wait for the node's pods before saying that they are not known.
        node_seconds: mean time between two reads of the Node.
        another_heartbeats: heartbeats after which another agent that wrote our object is believed to be gone.
        first_backoff_seconds: mean wait after a first failed write; doubles with each further one.
        longest_backoff_seconds: the wait never gets longer.
        publish: when a change is worth a write.
        topology: where kubelet's files are, and how often the CPUs are looked at.
        pinning: how pods are pinned to CPUs; None: they are not.
    """

    sample_period_seconds: float = 0.1
    stuck_seconds: float = 30.0
    pods_patience_seconds: float = 20.0
    node_seconds: float = 300.0
    another_heartbeats: float = 3.0
    first_backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 30.0
    publish: PublishSettings = field(default_factory=PublishSettings)
    topology: TopologySettings = field(default_factory=TopologySettings)
    pinning: PinningSettings | None = None


class Agent:
    """One node's agent.

    Attributes:
        measurement: what is measured and learned.
        gauges: how things are, for the metrics.
    """

    def __init__(
        self,
        session: Session,
        node_name: str,
        where: NodeFiles,
        version: str,
        settings: AgentSettings,
        *,
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
            clock: monotonic time, seconds.
            wall: seconds since the epoch; only for timestamps.
            rng: for jitter, and for the name of this start.
        """
        rng = rng or random.Random()
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._rng = rng
        self._info = AgentInfo(version, f"{rng.getrandbits(48):012x}", where.scope, "Scan")
        self.measurement = Measurement(where, clock())
        self.counters = self.measurement.counters
        self.gauges = Gauges()
        self._session = session
        self._node_name = node_name
        self._writer = Writer(session, node_name)
        self._pinner = self._make_pinner(where, settings.pinning)
        self._topology = TopologyPublisher(
            session,
            node_name,
            self._writer,
            where,
            settings.topology,
            wall,
            lambda: (frozenset(), frozenset()) if self._pinner is None else self._pinner.allocated,
        )
        self._looked_for_pods = False
        hierarchies = self._hierarchies = Hierarchies.detect(where.sys)
        self._pods = (
            None
            if hierarchies.cpu is None
            else PodWatcher(hierarchies.cpu, where.cgroup, self._cgroup_changed, self._container_seen)
        )
        own, cluster = f"metadata.name={node_name}", f"metadata.name={CLUSTER_NAME}"
        self._reflect_own = Reflector(session, NODE_CAPACITIES, field_selector=own, on_change=self._capacity_changed)
        self._reflect_pods = Reflector(
            session,
            PODS,
            field_selector=f"spec.nodeName={node_name}",
            trim=trim_pod,
            on_change=lambda old, new: self.measurement.census.heard(old, new, self._clock(), self._wall()),
        )
        self._reflectors = (
            self._reflect_own,
            self._reflect_pods,
            Reflector(session, SUBSPACE_SNAPSHOTS, field_selector=cluster, on_change=self._cluster_changed),
        )
        self._cluster: Subspace | None = None
        self._counted: dict[str, Cgroup] = {}
        self._measured: Measured | None = None
        self._folded = asyncio.Event()
        self._published: Published | None = None
        self._published_uid: str | None = None
        self._published_subspace: PublishedSubspace | None = None
        self._told: set[tuple[str, str, str]] = set()  # conditions written before anything was measured
        self._conditions: list[Object] = []  # of our NodeCapacity, as the API has them
        self._subspace_conditions: list[Object] = []
        self._allowed_at = -math.inf  # the next write of the status
        self._early_at = -math.inf  # the next fold of a batch that is not full
        self._seen_ours = False  # our instance's name, in our object, by the watch
        self._another: tuple[str, float] | None = None  # instance of another agent, and when it was last seen
        self._refused_spec: str | None = None

    def _make_pinner(self, where: NodeFiles, settings: PinningSettings | None) -> Pinner | None:
        if settings is None:
            return None
        try:
            return Pinner(self._session, self._node_name, where, settings, self._wall, self._limits)
        except OSError as error:  # the node can be measured all the same
            log.error("pods can't be pinned to CPUs here: %s", error)
            return None

    def _limits(self) -> dict[str, PodLimits]:
        return limits_of(self._reflect_pods.store.values())

    async def say_goodbye(self) -> None:
        """After ``run`` has been cancelled: leave nothing behind if the product is being removed."""
        if self._pinner is not None:
            await self._pinner.say_goodbye()

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
                tasks.create_task(self.measure())
                tasks.create_task(self.publish())
                tasks.create_task(self.follow_node())
                tasks.create_task(self._topology.run())
                if self._pinner is not None:
                    tasks.create_task(self._pinner.run())
                for reflector in self._reflectors:
                    tasks.create_task(reflector.run())
        finally:
            self.measurement.close()
            for cgroup in self._counted.values():
                cgroup.close()

    def unwell(self) -> str | None:
        """What is wrong with the process, None if nothing is: a node that can't be measured is not its fault."""
        silent = self._clock() - self.gauges.sampled_at
        return f"no sample for {silent:.0f} s" if silent > self._settings.stuck_seconds else None

    def pod_metrics(self) -> PodMetrics | None:
        """Readings of the node's pods; None where there are no cgroups to read."""
        if self._pods is None:
            return None
        return PodMetrics(self._hierarchies, self._pods.pods, self._reflect_pods.store, wall=self._wall)

    def serves_pod_metrics(self, at: MetricsEndpoint) -> None:
        """They are served there, which is published with the next status."""
        self._info = replace(self._info, metrics=at)

    # Measuring

    async def measure(self) -> None:
        """Sample at 10 Hz. A sample that comes too late takes the place of those missed; the grid stays."""
        period = self._settings.sample_period_seconds
        deadline = self._clock()
        while True:
            self._sample()
            deadline += period
            late = self._clock() - deadline
            if late > 0:
                missed = math.ceil(late / period)
                self.counters.missed += missed
                deadline += missed * period
            await asyncio.sleep(deadline - self._clock())

    def _sample(self) -> None:
        now = self._clock()
        self.gauges.sampled_at = now
        full = self.measurement.sample(now, self._wall(), self._uncounted_paths())
        # A pod that is newly observed frees what the operator holds for it: that can't wait for the batch to be full
        early = now >= max(self._allowed_at, self._early_at) and self.measurement.pods_changed and self.measurement.warm
        if early:
            self._early_at = now + self._settings.publish.minimum_interval_seconds
        if full or early:
            self.measurement.pods_used(self._cpu_seconds())
            measured = self.measurement.fold(now, self._cluster)
            self._measured = measured
            self.gauges.capacity = float(measured.report.capacity[0])
            self.gauges.pod_count = len(measured.pod_uids)
            latest = next(iter(measured.windows.values())).latest[0]
            self.gauges.usage = {r: float(v) for r, v in zip(measured.settings.resources, latest) if not math.isnan(v)}
            self._folded.set()

    def _cpu_seconds(self) -> dict[str, float]:
        """CPU time of each counted pod whose cgroup can be read."""
        if self._pods is None:
            return {}
        paths = {uid: path for uid in self.measurement.census.counted if (path := self._pods.pods.get(uid))}
        for uid in [uid for uid, cgroup in self._counted.items() if paths.get(uid, "").strip("/") != cgroup.path]:
            self._counted.pop(uid).close()
        for uid in paths.keys() - self._counted.keys():
            self._counted[uid] = Cgroup(self._hierarchies, paths[uid])
        read = ((uid, cgroup.cpu_seconds()) for uid, cgroup in self._counted.items())
        return {uid: seconds for uid, seconds in read if seconds is not None}

    def _uncounted_paths(self) -> list[str]:
        if self._pods is None:
            return []
        return [self._pods.pods[uid] for uid in self.measurement.census.uncounted() if uid in self._pods.pods]

    # What is heard

    async def follow_node(self) -> None:
        """Read now and then how many pods the kubelet takes: it changes with the kubelet's configuration only."""
        path = NODES.path(name=self._node_name)
        while True:
            wait = self._settings.node_seconds
            try:
                node = await self._session.get(path)
                pods = ((node.get("status") or {}).get("allocatable") or {}).get("pods")
                if pods is not None:
                    self.measurement.allow(allowed_pods(pods))
            except (KubeError, ValueError) as error:
                log.warning("not known how many pods the node takes: %s", error)
                wait = self._settings.longest_backoff_seconds
            await asyncio.sleep(wait * self._rng.uniform(0.5, 1.5))

    def _cgroup_changed(self, uid: str, came: bool) -> None:
        census, now = self.measurement.census, self._clock()
        if came:
            census.appeared(uid, now, found=not self._looked_for_pods)
        else:
            census.vanished(uid, now)

    def _container_seen(self, uid: str) -> None:
        self.measurement.census.working(uid, self._clock())

    def _cluster_changed(self, _: Object | None, new: Object | None) -> None:
        self._cluster = None
        try:
            status = None if new is None else SubspaceSnapshot.from_raw(new).status
            if status is not None and status.nodes and status.sigma:
                directions = np.array(status.directions, dtype=float).T
                self._cluster = Subspace(
                    directions, np.array(status.sigma, dtype=float), status.nodes, status.resources
                )
        except (KeyError, TypeError, ValueError) as error:  # somebody wrote it by hand: the node's own model will do
            log.warning("SubspaceSnapshot/%s is not usable: %s", CLUSTER_NAME, error)

    def _capacity_changed(self, _: Object | None, new: Object | None) -> None:
        if new is None:
            self._forget_publication()  # somebody deleted it: it is made again with the next batch
            self._conditions = []
            self.measurement.apply(CapacitySettings(), 0, self._clock())
            return
        status = new.get("status") or {}
        self._conditions = status.get("conditions") or []
        if self._published_uid not in (None, new["metadata"]["uid"]):
            self._forget_publication()
        try:
            settings = CapacitySettings.from_raw(new.get("spec") or {})
        except (ValueError, TypeError, KeyError) as error:  # a later version's, which the CRD lets through
            self._refused_spec = str(error)
        else:
            self._refused_spec = None
            self.measurement.apply(settings, new["metadata"]["generation"], self._clock())
        self._look_for_another((status.get("agent") or {}).get("instance"))

    def _forget_publication(self) -> None:
        self._published = self._published_uid = None
        self._seen_ours = False
        self._told = set()

    def _look_for_another(self, instance: str | None) -> None:
        """A name in our object that is not ours, after ours has been there, is a second agent's for the same node."""
        if instance == self._info.instance:
            self._seen_ours = True
        elif instance is not None and self._seen_ours:
            if self._another is None or self._another[0] != instance:
                log.error("agent instance %s writes this node's NodeCapacity, too; the last one wins", instance)
            self._another = (instance, self._clock())

    def _another_now(self, heartbeat_seconds: float) -> str | None:
        if self._another is None:
            return None
        instance, seen = self._another
        if self._clock() - seen > self._settings.another_heartbeats * heartbeat_seconds:
            self._another = None
            return None
        return instance

    # Publishing

    async def publish(self) -> None:
        """Write what is worth it, at most once a second; failures are waited out with ever newer numbers."""
        failures, begun = 0, self._clock()
        while True:
            await self._folded.wait()
            await asyncio.sleep(max(0.0, self._allowed_at - self._clock()))
            self._folded.clear()
            patient = self._clock() - begun < self._settings.pods_patience_seconds
            if self._measured is None or not self._reflect_own.synced.is_set() or (patient and not self._pods_known):
                continue  # neither what is to be measured nor which pods count is known yet
            try:
                await self._publish_status(self._measured)
                await self._publish_subspace(self._measured)
                failures = 0
            except (KubeError, NodeMissing) as error:
                kind = type(error).__name__
                self.counters.failed[kind] += 1
                if failures == 0:
                    log.warning("not published: %s", error)
                await asyncio.sleep(self._backoff(failures, error))
                failures += 1

    def _backoff(self, failures: int, error: Exception) -> float:
        settings = self._settings
        wait = min(settings.first_backoff_seconds * 2.0 ** min(failures, 16), settings.longest_backoff_seconds)
        asked = error.retry_after if isinstance(error, ApiError) else None
        return max(wait * self._rng.uniform(0.5, 1.5), asked or 0.0)

    @property
    def _pods_known(self) -> bool:
        return self._reflect_pods.synced.is_set()

    def _status(self, measured: Measured) -> NodeCapacityStatus | list[Object]:
        """What could be said now; only conditions while there is no measurement to go with them."""
        now = self._wall()
        conditions = build_conditions(
            Health(
                batches=int(measured.report.batches[0]),
                fresh=measured.fresh,
                silent_seconds=measured.silent_seconds,
                problems=measured.problems,
                pods_known=self._pods_known,
                another=self._another_now(measured.settings.heartbeat_seconds),
                refused_spec=self._refused_spec,
            )
        )
        if measured.fresh and measured.wall is not None and self._pods_known:
            context = StatusContext(
                agent=replace(self._info, pod_events="Scan" if self._pods is None else self._pods.events),
                pod_uids=measured.pod_uids,
                observed_at=measured.wall,
                observed_generation=measured.generation,
                now=now,
                conditions=conditions,
                before=self._conditions,
            )
            return build_status(measured.report, 0, measured.settings, context, measured.windows)
        merged = merge_conditions(
            self._conditions, conditions, now=format_timestamp(now), observed_generation=measured.generation
        )
        if self._published is not None:
            return replace(self._published.status, conditions=tuple(merged))
        return merged

    async def _publish_status(self, measured: Measured) -> None:
        status = self._status(measured)
        now = self._clock()
        measured_at = -math.inf if measured.at is None else measured.at
        if isinstance(status, NodeCapacityStatus):
            reason = should_publish(self._published, status, measured_at, self._settings.publish, now)
            raw = status.to_raw()
        else:
            reason = "Conditions" if condition_states(status) != self._told else None
            raw = {"conditions": status}
        if reason is None:
            return
        self._allowed_at = now + self._settings.publish.minimum_interval_seconds
        written = await self._writer.write_status(NODE_CAPACITIES, raw)
        self.counters.published[reason] += 1
        self._conditions = written["status"]["conditions"]
        self._published_uid = written["metadata"]["uid"]
        if isinstance(status, NodeCapacityStatus):
            jitter = self._rng.uniform(1 - self._settings.publish.jitter, 1 + self._settings.publish.jitter)
            self._published = Published(status, measured_at, now, now + measured.settings.heartbeat_seconds * jitter)
        else:
            self._told = condition_states(status)

    async def _publish_subspace(self, measured: Measured) -> None:
        if not measured.fresh or measured.wall is None:
            return
        context = StatusContext(self._info, (), measured.wall, 1, self._wall(), before=self._subspace_conditions)
        status = build_subspace(measured.report, 0, measured.settings, context)
        now = self._clock()
        if not should_publish_subspace(self._published_subspace, status, self._settings.publish, now):
            return
        written = await self._writer.write_status(SUBSPACE_SNAPSHOTS, status.to_raw())
        self.counters.published["Subspace"] += 1
        self._subspace_conditions = written["status"]["conditions"]
        self._published_subspace = PublishedSubspace(status, now)


def allowed_pods(allocatable: str) -> int:
    """``status.allocatable.pods`` of a Node: a quantity, so that 1,000 pods are ``1k``."""
    return whole(allocatable)
