"""Concerto itself: the production state, ledger, queue and cycle, called and not copied, over simulated agents.

What is modelled here is only what lies between them: when a pod's events reach the operator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacity, NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey, PodGroup
from concerto.api.schedulingprofile import ProfileSettings
from concerto.capacity.kinds.settings import KindSettings
from concerto.capacity.kinds.table import Table
from concerto.capacity.publish_rule import PublishSettings
from concerto.scheduling.cycle import MAX_DECISIONS, schedule
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.queue_marks import mark_failures
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import Transition
from concerto.simulation.scheduling.node_telemetry import Readings
from concerto.simulation.scheduling.policies.agents import Agents, node_names
from concerto.simulation.scheduling.policies.making_room import MakesRoom
from concerto.simulation.scheduling.policies.raw_pods import (
    SCHEDULER_NAME,
    earlier_run,
    in_one_column,
    raw_ended_pod,
    raw_pod,
)
from concerto.simulation.scheduling.workloads import SimPod

_ROOM = Change.ENDED | Change.CAPACITY | Change.CPUS | Change.PLACED | Change.VOLUMES
"""What may let pods find nodes that did not get the room which a gang held."""


class Concerto:
    """The system under test.

    Args:
        settings: NodeCapacity.spec of every node.
        profile: SchedulingProfile.spec.
        publish: the agents' deadbands.
        kinds: place by what pods cost by kind; without it every pod is one unit, as while nothing is measured of kinds.
        known: whether the kinds' costs are known, as from an earlier run on nodes that had nothing else to do.
        learned: what the cluster knows of kinds from before, as an earlier run's agents have measured it.
        law: constants of placement by kind; None for production's.
        leaves_out_stalls: whether agents leave out the time in which a pod's tasks waited for a CPU.
        one_column: know one number of each kind, the part of a node that it takes of what it takes most of. It is
            counted as CPU, whichever resource it is, so that pods which take little of the same are not seen to fit
            together. Memory is not filled beyond what there is.
    """

    def __init__(
        self,
        settings: CapacitySettings | None = None,
        profile: ProfileSettings | None = None,
        publish: PublishSettings | None = None,
        *,
        kinds: bool = True,
        known: bool = False,
        learned: Table | None = None,
        law: KindSettings | None = None,
        leaves_out_stalls: bool = True,
        one_column: bool = False,
    ) -> None:
        self._one_column = one_column
        self._with_kinds, self._known, self._learned = kinds, known, learned
        self._law, self._leaves_out_stalls = law or KindSettings(), leaves_out_stalls
        self.settings = settings or CapacitySettings()
        self.profile = Profile.build(profile or ProfileSettings(SCHEDULER_NAME))
        deadband = publish or PublishSettings(jitter=0.0)
        self._deadband = deadband

    def attach(self, world: World) -> None:
        """See Policy."""
        self.world = world
        self.names = node_names(len(world.nodes))
        learned = earlier_run(world.setup) if self._known else self._learned
        self.agents = Agents(
            self.settings,
            self._deadband,
            windows=self.profile.reads_load,
            kinds=self._with_kinds,
            learned=learned,
            leaves_out_stalls=self._leaves_out_stalls,
        )
        self.state = ClusterState()
        self.state.kinds.loads.settings = self._law
        self.queue = Queue()
        self.agents.attach(world, self._on_status, self._learn)
        self._woken_at = -math.inf  # when time alone next makes pods ready
        self._shapes: dict[tuple[str, bool, bool], PodView] = {}
        for node in range(len(self.names)):
            self.state.set_node(self._node_view(node, True))
        for job in world.setup.jobs:
            for gang in job.gang_names:
                self.state.pod_groups.set_group(PodGroup("default", gang, gang, 1, job.gang))
        self._making_room = MakesRoom(world, self.state, self.profile)
        self._postponed = ""
        self._holder: GroupKey | None = None

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
        ended = pod.ended and pod.phase in ("Pending", "Running")
        key = pod.job.name, ended, ended and pod.deleting
        template = self._shapes.get(key)
        if template is None:
            raw = raw_ended_pod(pod.job, deleting=pod.deleting) if ended else raw_pod(pod.job)
            template = self._shapes[key] = PodView.from_raw(raw)
        return dataclasses.replace(
            template,
            name=pod.uid,
            uid=pod.uid,
            created=pod.created_at,
            phase=pod.phase if pod.phase != "Deleted" else "Failed",
            node_name="" if pod.node is None else self.names[pod.node],
            group=pod.gang,
            started=pod.bound_at,
        )

    def _on_status(self, node: int, status: NodeCapacityStatus, version: int) -> None:
        name = self.names[node]
        capacity = NodeCapacity(name, name, str(version), 1, self.settings, status)
        if self._with_kinds:
            self.world.recorder.measured(node, self.world.nodes[node].cores)
        else:
            self.world.recorder.status(node, status.capacity, status.observed_pod_uids)
        self._helped(self.state.set_capacity(capacity, self.world.now))

    def _learn(self, table: Table) -> None:
        if self._one_column:
            cores = sum(node.cores for node in self.world.nodes)
            table = in_one_column(table, cores / sum(node.memory_bytes for node in self.world.nodes))
        self._helped(self.state.kinds.set_table(table))

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

    def containers_ended(self, pod: SimPod, now: float) -> None:
        """See Policy: what is measured of it is free, and what it requests is not."""
        self._helped(self.state.set_pod(self._view(pod), now))

    def pod_ended(self, pod: SimPod, now: float) -> None:
        """See Policy."""
        self.queue.remove(pod.uid)
        self._making_room.pod_ended(pod.uid, now)
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
        if self.state.kinds or np.isnan(available).any():
            return MAX_DECISIONS
        return min(MAX_DECISIONS, int(np.floor(np.maximum(available, 0.0)).sum()) + 1)

    def schedule(self, now: float) -> Sequence[tuple[SimPod, int]]:
        """See Policy: one production cycle."""
        groups = self.state.pod_groups
        if groups.held_room.is_overdue(now):
            self.queue.requeue(_ROOM)
        for key in groups.take_changed():
            self.queue.requeue_pod_group(key)
        heads, postponed = list(self.queue.heads(now, self._room())), self.queue.get(self._postponed)
        if not heads and postponed is None:
            self._wake_in_time(now)
            return []
        result = schedule(
            self.state,
            heads,
            {SCHEDULER_NAME: self.profile},
            now=now,
            generator=self.world.rng,
            postponed=postponed,
            parked=self.queue.parked(Change.CAPACITY),
        )
        self._postponed = result.postponed.uid if result.postponed else ""
        self._note_held_room(result, now)
        self.queue.note_turns(result.turns)
        mark_failures(self.queue, result, now)
        placed = []
        for decision in result.decisions:
            self.queue.remove(decision.pod.uid)
            placed.append((self.world.pods[decision.pod.uid], self.state.row_of[decision.assignment.node]))
        self._making_room.after(result, now)
        if result.has_more or placed:
            self.world.wake()
        if math.isfinite(result.look_again_at):
            self.world.after(max(0.05, result.look_again_at - now), lambda: self._helped(Change.CAPACITY))
        self._wake_in_time(now)
        return placed

    def _note_held_room(self, result: CycleResult, now: float) -> None:
        """A gang holds room until its time is over: all of its pods are taken to wait, though it holds less."""
        if result.released:
            self._helped(_ROOM)
        holder = self.state.pod_groups.held_room.holder
        if self._holder not in (None, holder):
            for pod in self._pods_of(self._holder):
                self.world.gangs.lets_go(pod, now)
        if holder is not None and holder != self._holder:
            self.world.after(max(0.05, self.state.pod_groups.held_room.until - now), lambda: self._look_at(holder))
            for pod in self._pods_of(holder):
                self.world.gangs.holds(pod, now)
        self._holder = holder

    def _pods_of(self, key: GroupKey) -> list[SimPod]:
        return [self.world.pods[uid] for uid in self.state.pod_groups.members(key)]

    def _look_at(self, key: GroupKey) -> None:
        self.queue.requeue_pod_group(key)
        self.world.wake()

    def _wake_in_time(self, now: float) -> None:
        """Parked pods are looked at again after a while, whether or not anything happens."""
        due = self.queue.next_ready()
        if due is not None and not now < self._woken_at <= due:
            self._woken_at = due
            self.world.after(max(0.0, due - now), self.world.wake)
