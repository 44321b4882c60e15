"""Concerto itself: the production agent pipeline, deadband, state, ledger, queue and cycle, called and not copied.

What is modelled here is only what lies between them: when a status reaches the operator, and when a pod's events do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.node import NodeView
from concerto.api.nodecapacity import AgentInfo, NodeCapacity, NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.capacity import readings as formulas
from concerto.capacity.node_status import StatusContext, build_status
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.publishing import Published, PublishSettings, should_publish
from concerto.capacity.report import CapacityReport
from concerto.capacity.subspace import Subspace, cluster_model, has_moved
from concerto.capacity.windows import WindowStatistics
from concerto.scheduling.cycle import MAX_DECISIONS, schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import Change as PodChange
from concerto.simulation.scheduling.node_model import Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.workloads import JobSpec, SimPod

SCHEDULER_NAME = "concerto"
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
        windows: tell means and deviations over minutes, too, for scores that read them.
    """

    def __init__(self, settings: CapacitySettings, deadband: PublishSettings | None, *, windows: bool = False) -> None:
        self.settings = settings
        self.deadband = deadband
        self._with_windows = windows
        self._windows: Mapping[str, WindowStatistics] = {}

    def attach(self, world: World, on_status: Callable[[int, NodeCapacityStatus, int], None]) -> None:
        """Begin to measure; `on_status` gets node, status and version once a status has reached the operator."""
        self.world = world
        self._on_status = on_status
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
        self._agent = AgentInfo("simulated", "simulated", "Machine", "Inotify")
        self.report: CapacityReport | None = None

    def transition(self, change: Transition) -> None:
        """A pod's cgroup has come or gone."""
        node, uid = change.node, str(change.pod)
        if change.change is PodChange.CGROUP_CREATED:
            self.running[node][uid] = change.at
            self.pipeline.pod_started(node, change.at)
        elif change.change is PodChange.TERMINATED:
            started = self.running[node].pop(uid, None)
            if started is not None:
                self.pipeline.pod_ended(node, started, change.at, uid)

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
        for node in range(len(self.names)):
            if not self.world.agent_dead(node):
                self._publish(node, report, now)

    def status(self, node: int, report: CapacityReport, now: float) -> NodeCapacityStatus:
        """What the agent could say of its node now."""
        context = StatusContext(self._agent, tuple(self.running[node]), now, 1, now)
        return build_status(report, node, self.settings, context, self._windows)

    def _publish(self, node: int, report: CapacityReport, now: float) -> None:
        status = self.status(node, report, now)
        before = self.published[node]
        if self.deadband is not None and should_publish(before, status, now, self.deadband, now) is None:
            return
        self._version += 1
        version = self._version
        if self.world.write(lambda: self.world.watch(lambda: self._on_status(node, status, version))):
            self.published[node] = Published(status, now, now, now + self.settings.heartbeat_seconds)


class Concerto:
    """The system under test.

    Args:
        settings: NodeCapacity.spec of every node.
        profile: SchedulingProfile.spec.
        publish: the agents' deadbands.
    """

    def __init__(
        self,
        settings: CapacitySettings | None = None,
        profile: ProfileSettings | None = None,
        publish: PublishSettings | None = None,
    ) -> None:
        self.settings = settings or CapacitySettings()
        self.profile = Profile.build(profile or ProfileSettings(SCHEDULER_NAME))
        deadband = publish or PublishSettings(jitter=0.0)
        self.agents = Agents(self.settings, deadband, windows=self.profile.reads_load)

    def attach(self, world: World) -> None:
        """See Policy."""
        self.world = world
        self.names = node_names(len(world.nodes))
        self.agents.attach(world, self._on_status)
        self.state = ClusterState()
        self.queue = Queue(signatures=self.state.signatures)
        self._woken_at = -math.inf  # when time alone next makes pods ready
        self._shapes: dict[str, PodView] = {}
        for node in range(len(self.names)):
            self.state.set_node(self._node_view(node, True))

    def sample(self, readings: Readings, now: float) -> None:
        """See Policy."""
        self.agents.sample(readings, now)

    def transition(self, change: Transition) -> None:
        """See Policy."""
        self.agents.transition(change)

    def _node_view(self, node: int, ready: bool) -> NodeView:
        spec = self.world.nodes[node]
        allocatable = {
            "cpu": int(spec.cores * 1000) - spec.reserved_millicores,
            "memory": int(spec.memory_bytes - spec.reserved_memory_bytes),
            "pods": spec.max_pods,
        }
        return NodeView(self.names[node], self.names[node], {}, allocatable, ready=ready)

    def _view(self, pod: SimPod) -> PodView:
        template = self._shapes.get(pod.job.name)
        if template is None:
            template = self._shapes[pod.job.name] = PodView.from_raw(_raw_pod(pod.job))
        return dataclasses.replace(
            template,
            name=pod.uid,
            uid=pod.uid,
            created=pod.created_at,
            phase=pod.phase if pod.phase != "Deleted" else "Failed",
            node_name="" if pod.node is None else self.names[pod.node],
        )

    def _on_status(self, node: int, status: NodeCapacityStatus, version: int) -> None:
        name = self.names[node]
        capacity = NodeCapacity(name, name, str(version), 1, self.settings, status)
        self.world.recorder.status(node, status.capacity, status.observed_pod_uids)
        self._helped(self.state.set_capacity(capacity, self.world.now))

    def _helped(self, change: Change) -> None:
        if change:
            self.queue.requeue(change)
            self.world.wake()

    def pod_pending(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        view = self._view(pod)
        self.state.set_pod(view, now)
        self.queue.set(view)

    def pod_bound(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.queue.remove(pod.uid)
        self._helped(self.state.set_pod(self._view(pod), now))

    def pod_running(self, pod: SimPod, now: float) -> None:
        """See Policy."""

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.queue.remove(pod.uid)
        self._helped(self.state.set_pod(self._view(pod), now))

    def bind_failed(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self._helped(self.state.forget(pod.uid))
        self.queue.set(self._view(pod))
        self.world.after(self.queue.retry(pod.uid, now) - now, self.world.wake)

    def node_ready(self, node: int, ready: bool, now: float) -> None:
        """See Policy."""
        self._helped(self.state.set_node(self._node_view(node, ready)))

    def _room(self) -> int:
        """Pods that a cycle can place at most: more heads of one group would be looked at for nothing."""
        available = self.state.measured.available[: self.state.size]
        if np.isnan(available).any():
            return MAX_DECISIONS
        return min(MAX_DECISIONS, int(np.floor(np.maximum(available, 0.0)).sum()) + 1)

    def schedule(self, now: float) -> Sequence[tuple[SimPod, int]]:
        """See Policy: one production cycle."""
        heads = list(self.queue.heads(now, self._room()))
        if not heads:
            self._wake_in_time(now)
            return []
        result = schedule(self.state, heads, {SCHEDULER_NAME: self.profile}, now=now, generator=self.world.rng)
        for failure in result.unschedulable:
            self.queue.mark_unschedulable(
                failure.pod.uid, failure.diagnosis.requeue_on, now, always_considered=failure.always_considered
            )
        placed = []
        for decision in result.decisions:
            self.queue.remove(decision.pod.uid)
            placed.append((self.world.pods[decision.pod.uid], self.state.row_of[decision.assignment.node]))
        if result.has_more or placed:
            self.world.wake()
        self._wake_in_time(now)
        return placed

    def _wake_in_time(self, now: float) -> None:
        """Parked pods are looked at again after a while, whether or not anything happens."""
        due = self.queue.next_ready()
        if due is not None and not now < self._woken_at <= due:
            self._woken_at = due
            self.world.after(max(0.0, due - now), self.world.wake)


def _raw_pod(job: JobSpec) -> dict[str, object]:
    """A pod of the job as the API server would hold it."""
    requests = {}
    if job.cpu_request_millicores:
        requests["cpu"] = f"{job.cpu_request_millicores}m"
    if job.memory_request_bytes:
        requests["memory"] = str(int(job.memory_request_bytes))
    return {
        "metadata": {"namespace": "default", "name": job.name, "uid": job.name, "labels": {"job": job.name}},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "priority": job.priority,
            "containers": [{"name": "main", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Pending"},
    }
