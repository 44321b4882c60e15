"""Writes the node's NodeCapacity and SubspaceSnapshot: when a change is worth it, and with pauses after failures."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.conditions import merge_conditions
from concerto.api.doubling import doubled_wait
from concerto.api.nodecapacity import AgentInfo, MetricsEndpoint, NodeCapacityStatus, PodEvents
from concerto.api.subspacesnapshot import KindEntry, SubspaceSnapshot
from concerto.api.timestamps import format_timestamp
from concerto.capacity.node_status import Health, StatusContext, build_conditions, build_status, build_subspace
from concerto.capacity.publish_rule import (
    Published,
    PublishedSubspace,
    PublishSettings,
    condition_states,
    should_publish,
    should_publish_subspace,
)
from concerto.kube import KubeError
from concerto.kube.errors import seconds_asked
from concerto.kube.resources import NODE_CAPACITIES, SUBSPACE_SNAPSHOTS
from concerto_agent.measurement import Measured
from concerto_agent.metrics import Counters
from concerto_agent.writer import NodeMissing, Object, Writer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublisherSettings:
    """When and how often the agent writes.

    Attributes:
        publish: how large a change is worth a write.
        pods_patience_seconds: how long to wait for the list of the node's pods before the status states that the pods
            are unknown.
        another_heartbeats: heartbeats after which another agent that wrote our object is believed to be gone.
        first_backoff_seconds: mean pause after a first failed write; doubles with each further one.
        max_backoff_seconds: longest mean pause.
    """

    publish: PublishSettings = field(default_factory=PublishSettings)
    pods_patience_seconds: float = 20.0
    another_heartbeats: float = 3.0
    first_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 30.0


@dataclass(frozen=True)
class Sources:
    """What the publisher asks the rest of the agent.

    Attributes:
        pods_known: whether the API server has listed the node's pods.
        pod_events: how pods are seen to come and go.
        kinds: what was measured of each kind of pods.
        recall_kinds: takes what was published of each kind before this agent was started, and how many seconds ago.
        kinds_news: whether something is known of a kind for the first time since ``kinds`` was called.
    """

    pods_known: Callable[[], bool]
    pod_events: Callable[[], PodEvents]
    kinds: Callable[[], tuple[KindEntry, ...]]
    kinds_news: Callable[[], bool]
    recall_kinds: Callable[[tuple[KindEntry, ...], float], None]


@dataclass(frozen=True)
class Timing:
    """Time and chance, passed in.

    Attributes:
        clock: monotonic seconds.
        wall: seconds since the epoch; only for timestamps.
        rng: for jitter.
    """

    clock: Callable[[], float]
    wall: Callable[[], float]
    rng: random.Random


class StatusPublisher:
    """The publications of one node.

    Attributes:
        allowed_at: monotonic time from which the status may be written again.
        placed_by_kind: whether the operator places pods by kind: then fewer changes decide anything.
    """

    def __init__(
        self,
        writer: Writer,
        info: AgentInfo,
        settings: PublisherSettings,
        counters: Counters,
        sources: Sources,
        timing: Timing,
    ) -> None:
        """A publisher that writes nothing before `run`."""
        self.allowed_at = -math.inf
        self.placed_by_kind = False
        self._writer = writer
        self._info = info
        self._settings = settings
        self._counters = counters
        self._sources = sources
        self._timing = timing
        self._measured: Measured | None = None
        self._status_offered, self._subspace_offered = asyncio.Event(), asyncio.Event()
        self._published: Published | None = None
        self._published_uid: str | None = None
        self._published_subspace: PublishedSubspace | None = None
        self._written_states: set[tuple[str, str, str]] = set()  # conditions written before anything was measured
        self._conditions: list[Object] = []  # of our NodeCapacity, as the API server has them
        self._subspace_conditions: list[Object] = []
        self._recalled = False
        self._subspace_at = -math.inf  # the last look at the model
        self._subspace_due = -math.inf  # the next one, if there are no news
        self._seen_ours = False  # the watch has shown our instance's name in our object
        self._another: tuple[str, float] | None = None  # instance of another agent, and when it was last seen
        self._refused_spec: str | None = None

    def serves_pod_metrics(self, at: MetricsEndpoint) -> None:
        """State from the next status on that metrics of pods are served at ``at``."""
        self._info = replace(self._info, metrics=at)

    def offer(self, measured: Measured) -> None:
        """Take the result of a batch, which replaces one that has not been written yet."""
        self._measured = measured
        self.look_again()

    def look_again(self) -> None:
        """Something is known that others wait for: publish it now, and not with the next batch."""
        self._status_offered.set()
        self._subspace_offered.set()

    def on_own_object(self, new: Object | None) -> CapacitySettings | None:
        """Take the node's NodeCapacity as the API server has it now; None if it was deleted.

        Returns:
            The settings to measure with; None to go on with those in use, because the new spec cannot be used.
        """
        self._writer.saw(NODE_CAPACITIES, new)
        if new is None:
            self._forget_publication()  # somebody deleted it: the next batch makes it again
            self._conditions = []
            return CapacitySettings()
        status = new.get("status") or {}
        self._conditions = status.get("conditions") or []
        if self._published_uid not in (None, new["metadata"]["uid"]):
            self._forget_publication()
        self._look_for_another((status.get("agent") or {}).get("instance"))
        try:
            settings = CapacitySettings.from_raw(new.get("spec") or {})
        except (ValueError, TypeError, KeyError) as error:  # of a later version, which the CRD lets through
            self._refused_spec = str(error)
            return None
        self._refused_spec = None
        return settings

    @property
    def published_capacity(self) -> float | None:
        """Capacity in the status that was written last, pods; None before the first."""
        return None if self._published is None else self._published.status.capacity

    async def run(self, own_object_synced: asyncio.Event) -> None:
        """Write what is worth it, at most once a second; after a failure, pause and write the newest numbers.

        What becomes of one of the two objects does not keep the other waiting.

        Args:
            own_object_synced: set once `on_own_object` has had the object.
        """
        async with asyncio.TaskGroup() as tasks:
            for kind, publish, offered in (
                ("NodeCapacity", self._publish_status, self._status_offered),
                ("SubspaceSnapshot", self._publish_subspace, self._subspace_offered),
            ):
                tasks.create_task(self._keep_published(kind, publish, offered, own_object_synced))

    async def _keep_published(
        self,
        kind: str,
        publish: Callable[[Measured], Awaitable[bool]],
        offered: asyncio.Event,
        own_object_synced: asyncio.Event,
    ) -> None:
        failures, begun = 0, self._timing.clock()
        while True:
            await offered.wait()
            await asyncio.sleep(max(0.0, self.allowed_at - self._timing.clock()))
            offered.clear()
            waits_for_pods = self._timing.clock() - begun < self._settings.pods_patience_seconds
            pods_missing = waits_for_pods and not self._sources.pods_known()
            if self._measured is None or not own_object_synced.is_set() or pods_missing:
                continue  # it is not known yet what to measure, or which pods count
            try:
                if await publish(self._measured):
                    failures = 0
            except (KubeError, NodeMissing) as error:
                self._counters.failed[type(error).__name__] += 1
                if failures == 0:
                    log.warning("%s was not published: %s", kind, error)
                await asyncio.sleep(self._backoff(failures, error))
                failures += 1

    def _publish_settings(self) -> PublishSettings:
        publish = self._settings.publish
        return publish.by_kind() if self.placed_by_kind else publish

    def _backoff(self, failures: int, error: Exception) -> float:
        settings = self._settings
        wait = doubled_wait(settings.first_backoff_seconds, settings.max_backoff_seconds, failures)
        return max(wait * self._timing.rng.uniform(0.5, 1.5), seconds_asked(error))

    def _forget_publication(self) -> None:
        self._published = self._published_uid = None
        self._seen_ours = False
        self._written_states = set()

    def _look_for_another(self, instance: str | None) -> None:
        """A foreign name in our object, after ours has been there, belongs to a second agent of the same node."""
        if instance == self._info.instance:
            self._seen_ours = True
        elif instance is not None and self._seen_ours:
            if self._another is None or self._another[0] != instance:
                log.error("agent instance %s also writes this node's NodeCapacity; the last write wins", instance)
            self._another = (instance, self._timing.clock())

    def _another_now(self, heartbeat_seconds: float) -> str | None:
        if self._another is None:
            return None
        instance, seen = self._another
        if self._timing.clock() - seen > self._settings.another_heartbeats * heartbeat_seconds:
            self._another = None
            return None
        return instance

    def _health(self, measured: Measured) -> Health:
        return Health(
            batches=int(measured.report.batches[0]),
            fresh=measured.fresh,
            silent_seconds=measured.silent_seconds,
            problems=measured.problems,
            pods_known=self._sources.pods_known(),
            another=self._another_now(measured.settings.heartbeat_seconds),
            refused_spec=self._refused_spec,
        )

    def _status(self, measured: Measured) -> NodeCapacityStatus | list[Object]:
        """The status to write now; conditions alone while there is no measurement to go with them."""
        now = self._timing.wall()
        conditions = build_conditions(self._health(measured))
        if measured.fresh and measured.wall is not None and self._sources.pods_known():
            context = StatusContext(
                agent=replace(self._info, pod_events=self._sources.pod_events()),
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

    async def _publish_status(self, measured: Measured) -> bool:
        """Write the status if it is worth it; returns whether it was written."""
        status = self._status(measured)
        now = self._timing.clock()
        measured_at = -math.inf if measured.at is None else measured.at
        publish = self._publish_settings()
        if isinstance(status, NodeCapacityStatus):
            reason = should_publish(self._published, status, measured_at, publish, now)
        else:
            reason = "Conditions" if condition_states(status) != self._written_states else None
        if reason is None:
            return False
        self.allowed_at = now + publish.min_interval_seconds
        if isinstance(status, NodeCapacityStatus):
            written = await self._writer.write_status(NODE_CAPACITIES, status.to_raw())
        else:
            written = await self._writer.write_conditions(NODE_CAPACITIES, status)
        self._counters.published[reason] += 1
        self._conditions = written["status"]["conditions"]
        self._published_uid = written["metadata"]["uid"]
        if isinstance(status, NodeCapacityStatus):
            jitter = self._timing.rng.uniform(1 - publish.jitter, 1 + publish.jitter)
            self._published = Published(status, measured_at, now, now + measured.settings.heartbeat_seconds * jitter)
        else:
            self._written_states = condition_states(status)
        return True

    async def _recall(self) -> None:
        found = await self._writer.read(SUBSPACE_SNAPSHOTS)
        self._recalled = True
        try:
            status = None if found is None else SubspaceSnapshot.from_raw(found).status
        except (KeyError, TypeError, ValueError) as error:
            log.warning("the former model in SubspaceSnapshot is not usable, and a new one is learned: %s", error)
            return
        if status is not None:
            self._sources.recall_kinds(status.kinds, max(0.0, self._timing.wall() - status.observed_at))

    async def _publish_subspace(self, measured: Measured) -> bool:
        """The same for the model."""
        now, publish = self._timing.clock(), self._publish_settings()
        if not measured.fresh or measured.wall is None:
            return False
        # Pods of a kind that nobody knows wait for what the first of them shows
        due = self._subspace_at + publish.min_interval_seconds if self._sources.kinds_news() else self._subspace_due
        if now < due:
            return False
        if not self._recalled:
            # What is written replaces what is there: read it first, or a restart would forget what pods cost
            await self._recall()
        # Whether or not it is written: to look costs as much as the rest of a batch
        self._subspace_at, self._subspace_due = now, now + publish.subspace_interval_seconds
        context = StatusContext(self._info, (), measured.wall, 1, self._timing.wall(), before=self._subspace_conditions)
        status = build_subspace(measured.report, 0, measured.settings, context, self._sources.kinds())
        if not should_publish_subspace(self._published_subspace, status, publish, now):
            return False
        written = await self._writer.write_status(SUBSPACE_SNAPSHOTS, status.to_raw())
        self._counters.published["Subspace"] += 1
        self._subspace_conditions = written["status"]["conditions"]
        self._published_subspace = PublishedSubspace(status, now)
        return True
