"""The scheduling loop: keeps the cluster from what is watched, decides in cycles, stores each cycle's intent, binds.

All of it runs on one event loop. What the reflectors call is synchronous, and a cycle has no await in it, so a cycle
decides on one state of the cluster; its decisions are assumed before anything else can run.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from concerto.api.node import NodeView, trim_node
from concerto.api.nodecapacity import NodeCapacity
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.api.podreservation import Assignment
from concerto.api.schedulingprofile import WorkloadAwareSettings
from concerto.controllers.pinning.preparation import PinningPreparation, PreparationSettings
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.scheduling.binder import BinderSettings, BindResult, bind
from concerto.controllers.scheduling.placement_records import PlacementRecord, discard, store
from concerto.controllers.scheduling.unschedulable import UnschedulableReporter
from concerto.kube import Object, Session
from concerto.kube.events import EventRecorder
from concerto.scheduling.coverage import Coverage, coverage
from concerto.scheduling.cycle import CycleResult, Decision, schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState

logger = logging.getLogger(__name__)

_LONGEST_HOUSEKEEPING_SECONDS = 30.0


@dataclass(frozen=True)
class SchedulerSettings:
    """The pace of the loop.

    Attributes:
        least_cycle_interval_seconds: no two cycles start closer together, so that a burst becomes one batch.
        concurrent_bindings: bindings in flight at most.
        most_waiting_bindings: stored decisions that wait for their binding, beyond which no new cycle starts.
        housekeeping_seconds: how often batches are released.
        telling_seconds: how often it is looked for what has been waited for too long.
        binding_timeout_seconds: for one POST of a binding; see `BinderSettings`.
        farewell_seconds: how long bindings under way get when it ends.
        avoid_unprepared_factor: how long no pinned pod is sent to a node whose agent did not get ready for one, as a
            multiple of the time that it had for that.
    """

    least_cycle_interval_seconds: float = 0.05
    concurrent_bindings: int = 48
    most_waiting_bindings: int = 250
    housekeeping_seconds: float = 0.5
    telling_seconds: float = 5.0
    binding_timeout_seconds: float = 4.0
    farewell_seconds: float = 2.0
    avoid_unprepared_factor: float = 3.0


@dataclass(frozen=True)
class ProfileCounts:
    """What was done for the pods of one scheduler name since the start.

    Attributes:
        decisions: pods placed.
        unschedulable: attempts that found no node.
        fallbacks: pods placed by requests, for want of a measurement.
        abstentions: by plugin, how often it had no opinion on a node for want of a metric.
    """

    decisions: int = 0
    unschedulable: int = 0
    fallbacks: int = 0
    abstentions: Mapping[str, int] = field(default_factory=dict)

    def plus(self, decisions: int = 0, unschedulable: int = 0, fallbacks: int = 0) -> ProfileCounts:
        """The counts after some more."""
        return ProfileCounts(
            self.decisions + decisions,
            self.unschedulable + unschedulable,
            self.fallbacks + fallbacks,
            self.abstentions,
        )

    def plus_abstentions(self, plugin: str, count: int) -> ProfileCounts:
        """The counts after that many more nodes on which a plugin abstained."""
        return replace(self, abstentions={**self.abstentions, plugin: self.abstentions.get(plugin, 0) + count})


class Scheduler:
    """One scheduling loop over the whole cluster.

    Attributes:
        cluster: the cluster as scheduling sees it; kept in a standby, too.
        owners: owner references of its batches.
        pins: the PodCPUBindings of pods that get CPUs of their own.
        on_consumed: told the namespace and name of a standing reservation of which a unit was used.
    """

    def __init__(
        self,
        session: Session,
        namespace: str,
        identity: str,
        recorder: EventRecorder,
        metrics: Metrics,
        clock: Callable[[], float],
        settings: SchedulerSettings | None = None,
        *,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Nothing is decided before `run`.

        Args:
            session: the way to the API server.
            namespace: the operator's own, where batches are kept.
            identity: of this process; part of its batches' names.
            recorder: where events go.
            metrics: where outcomes are counted.
            clock: seconds since the epoch, never jumping.
            settings: pace.
            may_write: whether this process still leads; asked last thing before a batch or a binding is sent.
        """
        self.cluster = ClusterState()
        self.owners: Sequence[Object] = ()
        self.on_consumed: Callable[[str, str], None] = lambda namespace, name: None
        self._session = session
        self._namespace = namespace
        self._instance = identity.rpartition("_")[2]
        self._storing = ""  # name of the batch whose storing is under way
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._settings = settings or SchedulerSettings()
        self._may_write = may_write
        self.pins = PinningPreparation(
            session,
            self.cluster.is_bound,
            PreparationSettings(self._settings.binding_timeout_seconds),
            may_write,
        )
        self._preparing: set[asyncio.Task[None]] = set()  # pinned pods, whose waiting keeps nobody else's place
        self._reporter = UnschedulableReporter(session, recorder, clock)
        self._queue = Queue()
        self._profiles: dict[str, Profile] = {}
        self._counts: dict[str, ProfileCounts] = {}
        self._pending: dict[str, PodView] = {}  # unbound pods of every scheduler, by UID
        self._first_seen: dict[str, float] = {}
        self._found: dict[str, PlacementRecord] = {}  # batches as the API server has them
        self._stored: dict[str, PlacementRecord] = {}  # batches the ledger knows of
        self._generator = np.random.default_rng()
        self._told_overdue: set[str] = set()
        self._told_silent: set[str] = set()
        self._capacity_uids: dict[str, str] = {}  # by node: kubectl describe finds events by UID alone
        self._wake = asyncio.Event()
        self._sequence = count(1)
        self._slots = asyncio.Semaphore(self._settings.concurrent_bindings)
        self._binding: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None]
        self._room = asyncio.Event()
        self._room.set()

    @property
    def busy(self) -> bool:
        """Whether bindings wait for their turn, so that what can wait should."""
        return len(self._binding) > self._settings.concurrent_bindings

    # --- what the reflectors call

    trim_pod = staticmethod(trim_pod)
    trim_node = staticmethod(trim_node)

    def on_node(self, old: Object | None, new: Object | None) -> None:
        """A Node appeared, changed or went."""
        if new is None:
            if old is not None:
                self._helped(self.cluster.remove_node(old["metadata"]["name"]))
            return
        try:
            node = NodeView.from_raw(new)
        except Exception:
            self._unreadable("Node", new)
            self._helped(self.cluster.remove_node(new["metadata"]["name"]))
            return
        self._helped(self.cluster.set_node(node))

    def on_pod(self, old: Object | None, new: Object | None) -> None:
        """A pod that has not ended appeared or changed; or it ended or went."""
        if new is None:
            if old is not None:
                uid = old["metadata"]["uid"]
                self._helped(self.cluster.remove_pod(uid))
                self.pins.on_pod(uid, "")
                self._drop_pending(uid)
            return
        try:
            pod = PodView.from_raw(new)
        except Exception:
            # What was known of it goes on counting; it is not placed as long as it reads like this
            self._unreadable("Pod", new)
            self._drop_pending(new["metadata"]["uid"])
            return
        self._helped(self.cluster.set_pod(pod, self._clock()))
        if pod.node_name or pod.terminal or pod.deleting:
            self.pins.on_pod(pod.uid, "" if pod.terminal else pod.node_name)
            self._drop_pending(pod.uid)
            return
        self._pending[pod.uid] = pod
        self._first_seen.setdefault(pod.uid, self._clock())
        if pod.scheduler_name in self._profiles:
            self._enqueue(pod)

    def on_capacity(self, old: Object | None, new: Object | None) -> None:
        """A NodeCapacity appeared, changed or went."""
        if new is None:
            if old is not None:
                self._capacity_uids.pop(old["metadata"]["name"], None)
                self._helped(self.cluster.remove_capacity(old["metadata"]["name"]))
            return
        self._capacity_uids[new["metadata"]["name"]] = new["metadata"].get("uid", "")
        try:
            capacity = NodeCapacity.from_raw(new)
        except Exception:
            # Half a status tells less than none: the node takes part as one without telemetry
            self._unreadable("NodeCapacity", new)
            self._helped(self.cluster.remove_capacity(new["metadata"]["name"]))
            return
        self._helped(self.cluster.set_capacity(capacity, self._clock()))

    def on_topology(self, old: Object | None, new: Object | None) -> None:
        """A NodeCPUTopology appeared, changed or went."""
        if new is None:
            if old is not None:
                self._helped(self.cluster.remove_topology(old["metadata"]["name"]))
            return
        try:
            topology = NodeCPUTopology.from_raw(new)
        except Exception:
            self._unreadable("NodeCPUTopology", new)
            self._helped(self.cluster.remove_topology(new["metadata"]["name"]))
            return
        self._helped(self.cluster.set_topology(topology))

    def on_binding(self, old: Object | None, new: Object | None) -> None:
        """A PodCPUBinding appeared, changed or went."""
        metadata = (new or old or {})["metadata"]
        key = (metadata["namespace"], metadata["name"])
        try:
            self._helped(self.cluster.remove_cpu_binding(key) if new is None else self.cluster.set_cpu_binding(new))
        except Exception:
            self._unreadable("PodCPUBinding", new or old or {})
            self._helped(self.cluster.remove_cpu_binding(key))
        self.pins.on_cpu_binding(old, new)

    def on_batch(self, old: Object | None, new: Object | None) -> None:
        """An in-flight PodReservation appeared, changed or went."""
        if new is None:
            if old is not None:
                self._forget_batch(old["metadata"]["name"])
            return
        metadata = new["metadata"]
        if metadata["name"] in self._stored:
            return  # one of ours: what it holds never changes, and `discard` asks for its version where that matters
        try:
            assignments = tuple(Assignment.from_raw(a) for a in new["spec"].get("assignments") or ())
        except Exception:
            self._unreadable("PodReservation", new)
            return
        self._found[metadata["name"]] = PlacementRecord(
            metadata["name"], metadata["uid"], metadata["resourceVersion"], assignments
        )

    # --- what other controllers call

    def set_profile(self, scheduler_name: str, profile: Profile | None) -> None:
        """Pods of that scheduler name are placed by this profile from now on (None: no longer by us)."""
        if profile is None:
            self._profiles.pop(scheduler_name, None)
            for uid in [u for u, p in self._pending.items() if p.scheduler_name == scheduler_name]:
                self._queue.remove(uid)
                self._reporter.forget(uid)
            return
        self._profiles[scheduler_name] = profile
        for pod in self._pending.values():
            if pod.scheduler_name == scheduler_name:
                self._enqueue(pod)
        self._queue.requeue_all()
        self._wake.set()

    def counts(self, scheduler_name: str) -> ProfileCounts:
        """What was done for the pods of that scheduler name."""
        return self._counts.get(scheduler_name, ProfileCounts())

    def coverage(self, scheduler_name: str) -> Coverage:
        """What is known now of the load that the scheduler name's profile asks for."""
        profile = self._profiles.get(scheduler_name)
        return Coverage() if profile is None else coverage(self.cluster, profile, self._clock())

    def reservation_limits(self) -> tuple[int, float]:
        """Most units of standing reservations in a namespace, and the age up to which telemetry is good for them.

        Reservations belong to no profile, so the strictest of all profiles in use holds.
        """
        profiles = [p.settings for p in self._profiles.values()]
        return (
            min((p.max_units_per_namespace for p in profiles), default=0),
            min((p.stale_after_seconds for p in profiles), default=0.0),
        )

    def assignment_of(self, uid: str) -> Assignment | None:
        """The stored decision on a pod, while its batch is there."""
        return next((a for b in self._stored.values() for a in b.assignments if a.uid == uid), None)

    def changed(self, change: Change) -> None:
        """Something was done to the cluster that may let a waiting pod find a node."""
        self._helped(change)

    # --- the loop

    async def run(self) -> None:
        """Decide and bind until cancelled; only the leader does, and only after every reflector was refreshed."""
        self._broken = asyncio.get_running_loop().create_future()
        self._adopt_late()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._decide())
                group.create_task(self._keep_house())
                group.create_task(self._reporter.run())
                group.create_task(self.pins.run())
                await self._broken
        finally:
            # What is stored is bound by us, who still lead, rather than found and decided again by a successor
            if self._binding:
                await asyncio.wait(self._binding, timeout=self._settings.farewell_seconds)
            for task in self._binding | self._preparing:
                task.cancel()

    async def _decide(self) -> None:
        while True:
            await self._room.wait()
            now = self._clock()
            heads = self._queue.heads(now)
            if not heads:
                await self._sleep_until_work(now)
                continue
            started = asyncio.get_running_loop().time()
            # No await from here to the end of the cycle: it decides on one state of the cluster
            with self._metrics.cycle_seconds.time():
                result = schedule(self.cluster, heads, self._profiles, now=now, generator=self._generator)
                self._take(result, now)
            if result.decisions:
                await self._carry_out(result.decisions)
            spent = asyncio.get_running_loop().time() - started
            await asyncio.sleep(max(0.0, self._settings.least_cycle_interval_seconds - spent))

    async def _sleep_until_work(self, now: float) -> None:
        self._wake.clear()
        due = self._queue.next_ready()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _take(self, result: CycleResult, now: float) -> None:
        """What a cycle's result means for the queue and the metrics."""
        for decision in result.decisions:
            self._queue.take(decision.pod.uid)
            self._reporter.forget(decision.pod.uid)
            self._metrics.decisions.labels(decision.assignment.basis.lower()).inc()
            by_requests = decision.assignment.basis == "Requests" or decision.by_allocation
            self._count(decision.pod, decisions=1, fallbacks=int(by_requests))
        for failure in result.unschedulable:
            self._queue.mark_unschedulable(
                failure.pod.uid, failure.diagnosis.requeue_on, now, always_considered=failure.always_considered
            )
            self._reporter.note(failure.pod, failure.diagnosis.message)
            self._count(failure.pod, unschedulable=1)
        for (scheduler_name, plugin), nodes in result.abstentions.items():
            self._metrics.abstentions.labels(plugin).inc(nodes)
            self._counts[scheduler_name] = self.counts(scheduler_name).plus_abstentions(plugin, nodes)
        self._metrics.decisions.labels("unschedulable").inc(len(result.unschedulable))
        self._metrics.pending.set(len(self._queue))

    async def _carry_out(self, decisions: Sequence[Decision]) -> None:
        """Store the intent, then start the bindings; what the API server would not store is taken back."""
        by_uid = {d.pod.uid: d for d in decisions}
        name = self._storing = f"cycle-{self._instance}-{next(self._sequence):06d}"
        if not self._may_write():
            await asyncio.Event().wait()  # a process that slept through its Lease ends before it says another word
        stored, refused = await store(
            self._session,
            self._namespace,
            name,
            [d.assignment for d in decisions],
            owners=self.owners,
            may_write=self._may_write,
        )
        for batch in stored:
            self._stored[batch.name] = batch
            self.cluster.ledger.open_record(batch.name, batch.assignments)
        self._storing = ""
        for batch in stored:
            for assignment in batch.assignments:
                if assignment.reservation is not None:
                    self.on_consumed(*assignment.reservation)
                decision = by_uid[assignment.uid]
                if assignment.pin is None:
                    self._start_binding(decision)
                else:
                    self.pins.begin(assignment, batch.name)
                    task = asyncio.create_task(self._prepare(decision))
                    self._preparing.add(task)
                    task.add_done_callback(self._prepared)
        for refusal in refused:
            logger.error("%s/%s: %s", refusal.assignment.namespace, refusal.assignment.name, refusal.message)
            self._give_back(by_uid[refusal.assignment.uid], f"The placement could not be stored: {refusal.message}")
        self._metrics.placement_records.set(len(self._stored))
        if len(self._binding) > self._settings.most_waiting_bindings:
            self._room.clear()

    async def _prepare(self, decision: Decision) -> None:
        """Have the pod's CPUs ready on its node before it is bound; give them back if they are not to be had."""
        pod, node = decision.pod, decision.assignment.node
        profile = self._profiles.get(pod.scheduler_name)
        settings = profile.settings.workload_aware if profile else WorkloadAwareSettings()
        timeout = settings.prepare_timeout_seconds
        problem = await self.pins.prepare(pod, timeout)
        if problem is None:
            self._start_binding(decision)
            return
        self._metrics.bindings.labels("unprepared").inc()
        await self.pins.release(pod.uid)
        if problem.agent_late:
            self.cluster.avoid_cpus(node, self._clock() + self._settings.avoid_unprepared_factor * timeout)
        self._give_back(decision, problem.message)

    def _prepared(self, task: asyncio.Task[None]) -> None:
        self._preparing.discard(task)
        self._note_end(task)

    def _start_binding(self, decision: Decision) -> None:
        task = asyncio.create_task(self._bind(decision))
        self._binding.add(task)
        task.add_done_callback(self._bound)

    async def _bind(self, decision: Decision) -> None:
        pod, node = decision.pod, decision.assignment.node
        profile = self._profiles.get(pod.scheduler_name)
        give_up = profile.settings.unbound_ttl_seconds if profile else BinderSettings.give_up_after_seconds
        async with self._slots:
            outcome = await bind(
                self._session,
                pod,
                node,
                BinderSettings(self._settings.binding_timeout_seconds, give_up_after_seconds=give_up),
                may_write=self._may_write,
            )
        self._metrics.bindings.labels(outcome.result.value).inc()
        if outcome.result is BindResult.BOUND:
            self.cluster.confirm(pod.uid)
            self.pins.confirm(pod.uid)
            self._metrics.scheduling_seconds.observe(self._clock() - self._first_seen.get(pod.uid, self._clock()))
            self._recorder.record(
                pod_reference(pod), reason="Scheduled", action="Binding", note=scheduled_note(decision)
            )
            return
        if decision.assignment.pin is not None:
            await self.pins.release(pod.uid)
        if outcome.result is BindResult.REFUSED:
            self._give_back(decision, f"Binding to {node} was rejected: {outcome.message}")
        else:
            # Its end, or its node, is about to be told by the watch; should that not come, it is looked at again
            self._try_later(decision)

    def _bound(self, task: asyncio.Task[None]) -> None:
        self._binding.discard(task)
        if len(self._binding) <= self._settings.most_waiting_bindings:
            self._room.set()
        self._note_end(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nobody knows what has become of that pod: whoever starts afresh reads it from the API server
            logger.error("a binding ended by an error of ours", exc_info=error)
            if not self._broken.done():
                self._broken.set_exception(error)

    def _give_back(self, decision: Decision, note: str) -> None:
        """The placement did not come about, and the pod is known to be unbound: it is decided afresh, later."""
        if decision.pod.uid not in self._pending:
            self._try_later(decision)  # it has gone meanwhile, or somebody else has bound it
            return
        self._recorder.record(
            pod_reference(decision.pod), type="Warning", reason="FailedScheduling", action="Binding", note=note
        )
        self._try_later(decision)

    def _try_later(self, decision: Decision) -> None:
        pod = decision.pod
        self._helped(self.cluster.forget(pod.uid))
        if pod.uid in self._pending:
            self._queue.set(self._pending[pod.uid])
            self._queue.retry(pod.uid, self._clock())
            self._wake.set()

    async def _keep_house(self) -> None:
        """Delete the batches that nothing is waited for any more; say what has been waited for too long."""
        wait = self._settings.housekeeping_seconds
        tell_at = 0.0
        while True:
            await asyncio.sleep(wait)
            if self._clock() >= tell_at:
                self._tell_overdue()
                self._tell_silent()
                tell_at = self._clock() + self._settings.telling_seconds
            self._adopt_late()
            self._helped(self.cluster.end_cpu_avoidance(self._clock()))
            released = self.cluster.ledger.closable_records()
            gone = await asyncio.gather(
                *(discard(self._session, self._namespace, self._stored[n]) for n in released if n in self._stored)
            )
            for name, done in zip([n for n in released if n in self._stored], gone):
                if done:
                    self._forget_batch(name)
            # What could not be deleted (a right that is missing, say) is not asked for twice a second for ever
            wait = self._settings.housekeeping_seconds if all(gone) else min(2 * wait, _LONGEST_HOUSEKEEPING_SECONDS)
            self._metrics.placement_records.set(len(self._stored))
            self._metrics.bring_up_to(self._metrics.events_dropped, self._recorder.dropped)
            self._metrics.bring_up_to(self._metrics.rejected_metrics, self.cluster.load.rejected)

    # --- inside

    def _unreadable(self, kind: str, obj: Object) -> None:
        """Called while handling what reading an object raised: one such object must not keep all others waiting."""
        metadata = obj["metadata"]
        key = "/".join(part for part in (metadata.get("namespace"), metadata["name"]) if part)
        error = sys.exception()
        logger.warning("%s %s is not usable, and is left out: %s: %s", kind, key, type(error).__name__, error)
        self._metrics.unreadable.labels(kind).inc()

    def _tell_overdue(self) -> None:
        """Bound pods that no agent has counted for long: they keep their unit, and somebody should know why."""
        profiles = [p.settings for p in self._profiles.values()]
        ttl = min((p.unbound_ttl_seconds for p in profiles), default=0.0)
        overdue = {o.uid: o for o in self.cluster.ledger.overdue(self._clock(), ttl) if o.bound} if ttl else {}
        self._told_overdue &= overdue.keys()
        for uid in overdue.keys() - self._told_overdue:
            assignment = self.assignment_of(uid)
            if assignment is not None:
                self._told_overdue.add(uid)
                self._recorder.record(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {"namespace": assignment.namespace, "name": assignment.name, "uid": uid},
                    },
                    type="Warning",
                    reason="NotObserved",
                    action="Observing",
                    note=f"Bound to {assignment.node} more than {ttl:.0f} s ago, and its agent has not counted it yet: "
                    "it has not started, or the agent is silent. It goes on taking one unit of the node's capacity.",
                )

    def _tell_silent(self) -> None:
        """Nodes whose agent has missed its heartbeats: an event on their NodeCapacity, and a gauge."""
        profiles = [p.settings for p in self._profiles.values()]
        if not profiles:
            return
        missed = min(p.heartbeats_missed for p in profiles)
        stale_after = min(p.stale_after_seconds for p in profiles)
        silent = set(self.cluster.ledger.nodes_with_stale_agent(self._clock(), missed))
        self._metrics.silent_nodes.set(len(silent))
        for node in silent - self._told_silent:
            self._recorder.record(
                {
                    "apiVersion": "concerto.dev/v1alpha1",
                    "kind": "NodeCapacity",
                    "metadata": {"name": node, "uid": self._capacity_uids.get(node, "")},
                },
                type="Warning",
                reason="AgentSilent",
                action="Observing",
                note=f"Nothing was heard from the node's agent for {missed} heartbeats. Its last status, less what is "
                f"placed since, is used until it is {stale_after:.0f} s old. Look at the agent's pod on that node.",
            )
        self._told_silent = silent

    def _count(self, pod: PodView, **more: int) -> None:
        self._counts[pod.scheduler_name] = self.counts(pod.scheduler_name).plus(**more)

    def _adopt_late(self) -> None:
        """Take over batches that are there and nobody sees to.

        They are of a process before this one, whose last write may have come true long after its end; or of this one,
        which was refused what it had asked for a second time.
        """
        for batch in self._found.values():
            if batch.name not in self._stored and not (self._storing and batch.name.startswith(self._storing)):
                self.cluster.ledger.adopt_record(batch.name, batch.assignments)
                self._stored[batch.name] = batch

    def _forget_batch(self, name: str) -> None:
        self._found.pop(name, None)
        if self._stored.pop(name, None) is not None:
            self.cluster.ledger.close_record(name)

    def _enqueue(self, pod: PodView) -> None:
        if not self.cluster.is_placed(pod.uid):
            self._queue.set(pod)
            self._wake.set()

    def _drop_pending(self, uid: str) -> None:
        if self._pending.pop(uid, None) is not None:
            self._queue.remove(uid)
            self._reporter.forget(uid)
            self._first_seen.pop(uid, None)

    def _helped(self, change: Change) -> None:
        if change:
            self._queue.requeue(change)
            self._wake.set()


def pod_reference(pod: PodView) -> Object:
    """The pod as an event's subject."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
    }


_NOTE_MOST_BYTES = 1024
"""What the API server takes as an event's note."""


def scheduled_note(decision: Decision) -> str:
    """What the Scheduled event says: kube-scheduler's words, what the decision was based on, and the best nodes."""
    assignment = decision.assignment
    text = f"Successfully assigned {assignment.namespace}/{assignment.name} to {assignment.node}"
    if assignment.basis == "Capacity":
        text += f", which could take {assignment.available:.1f} more pods by its measured capacity"
    else:
        text += ", by its requests: it has no recent measurement"
    if assignment.pin is not None:
        text += f"; it has CPUs {assignment.pin.cpus}, exclusiveness {assignment.pin.level}"
    if decision.by_allocation:
        text += "; no score had a metric of any node, so requests stood in for load"
    separator = ". Best nodes: "
    for ranked in decision.top:
        plugins = ", ".join(f"{name} {score:.0f}" for name, score in ranked.by_plugin) or "no score"
        more = f"{separator}{ranked.node} {ranked.score:.0f} ({plugins})"
        if len(text) + len(more) > _NOTE_MOST_BYTES:
            break
        text, separator = text + more, "; "
    return text
