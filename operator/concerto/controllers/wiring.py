"""Builds the parts of one replica, leaves first, and lists what is to run.

Everything that reads runs in every replica, so that a standby is warm; everything that decides or writes runs in the
replica that holds the Lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from concerto.api.deviceclass import trim_device_class
from concerto.api.node import trim_node
from concerto.api.pod_trimming import trim_pod
from concerto.api.poddisruptionbudget import trim_budget
from concerto.api.podgroup import trim_pod_group
from concerto.api.podreservation import IN_FLIGHT_LABEL
from concerto.api.volume_trimming import trim_bare, trim_claim, trim_csi_node, trim_storage_class, trim_volume
from concerto.controllers.autoscaling.controller import AutoscaledKinds, PredictiveHPAController
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import AgentMetrics, AgentSettings, AgentTokens
from concerto.controllers.capacity.cluster_model import ClusterModelPublisher
from concerto.controllers.capacity.kinds_feed import KindsFeed
from concerto.controllers.capacity.kinds_trace import KindsTrace
from concerto.controllers.capacity.orphaned_objects import NodelessObjects
from concerto.controllers.pinning.resizes import PodResizes
from concerto.controllers.pinning.validation import PodCPUBindingController
from concerto.controllers.runtime.clock import SteadyClock
from concerto.controllers.runtime.context import Context
from concerto.controllers.runtime.health import Health
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.reconciler import Reconcile, Reconciler
from concerto.controllers.runtime.supervision import Run, Supervisor, keep_running
from concerto.controllers.runtime.watched_kinds import NOT_ENDED, FollowedKind, OnChange, Trim, WatchedKinds
from concerto.controllers.scheduling.binding_load import BindingLoad, PipelineSettings
from concerto.controllers.scheduling.binding_pipeline import BindingPipeline
from concerto.controllers.scheduling.gang_preemption import GangPreemptionController
from concerto.controllers.scheduling.housekeeping import Housekeeping, OverdueReports
from concerto.controllers.scheduling.informers import Informers, trim_namespace
from concerto.controllers.scheduling.load_providers import LoadProviders
from concerto.controllers.scheduling.parts import SchedulerParts, build_parts
from concerto.controllers.scheduling.preemption import PreemptionController
from concerto.controllers.scheduling.profiles import ProfileController
from concerto.controllers.scheduling.reservations import ReservationController
from concerto.controllers.scheduling.scheduler import Scheduler
from concerto.controllers.scheduling.workload_informers import SPREADING, follow_selectors, trim_to_selector
from concerto.controllers.volumes.informers import VolumeInformers
from concerto.kube import Object, Resource, Session
from concerto.kube.election import LeaderElection
from concerto.kube.events import EventRecorder
from concerto.kube.lease import Candidate, LeaseSettings
from concerto.kube.resources import (
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    DEVICE_CLASSES,
    NAMESPACES,
    NODE_CAPACITIES,
    NODE_CPU_TOPOLOGIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_CPU_BINDINGS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    POD_RESERVATIONS,
    PODS,
    SCHEDULING_PROFILES,
    STORAGE_CLASSES,
    SUBSPACE_SNAPSHOTS,
    VOLUME_ATTACHMENTS,
)
from concerto.scheduling.state.cluster import ClusterState

CONTROLLERS = ("scheduling", "pinning", "autoscaling")
"""What an operator can run. Pinning is a part of scheduling; autoscaling may run alone."""


@dataclass(frozen=True)
class OperatorSettings:
    """What the command line says.

    Attributes:
        namespace: the operator's own.
        controllers: what to run, of `CONTROLLERS`.
        service_account: the ServiceAccount that this runs as, if it is known.
        lease: durations of the election.
        autoscaling: of PredictiveHPAs.
        ask_agents: whether agents are asked for readings of their pods.
        costs_by_kind: whether pods are placed by what their kind was measured to cost.
    """

    namespace: str
    controllers: frozenset[str]
    service_account: str | None
    lease: LeaseSettings
    autoscaling: PredictiveHPASettings
    ask_agents: bool
    costs_by_kind: bool = True

    def __post_init__(self) -> None:
        """Check that the controllers can run together.

        Raises:
            ValueError: they cannot.
        """
        if "pinning" in self.controllers and "scheduling" not in self.controllers:
            raise ValueError("--controllers=pinning needs --controllers=scheduling: it pins the pods that are placed")

    @property
    def lease_name(self) -> str:
        """The Lease by which one replica leads: operators that run different controllers do not contend."""
        return "concerto-operator" if "scheduling" in self.controllers else "concerto-autoscaler"

    @property
    def account(self) -> str:
        """The ServiceAccount for which tokens to show to agents are requested; manifests/ names it like the Lease."""
        return self.service_account or self.lease_name


@dataclass(frozen=True)
class Replica:
    """What the process has before its parts are built.

    Attributes:
        identity: new at each start: what an earlier process of this pod held is not ours.
        session: the way to the API server.
        cluster: the cluster as scheduling sees it.
        metrics: where outcomes are counted.
        health: the probes' checks.
        supervisor: runs the tasks without which the process is of no use.
        clock: seconds since the epoch, never jumping.
        trace: keeps what placement by kind has committed on nodes.
        owners: owner references of the Lease and the placement records.
        on_lost: called when leadership is lost; ends the process.
    """

    identity: str
    session: Session
    cluster: ClusterState
    metrics: Metrics
    health: Health
    supervisor: Supervisor
    clock: SteadyClock
    trace: KindsTrace
    owners: Sequence[Object]
    on_lost: Callable[[], None]


@dataclass
class Plan:
    """What has been built so far.

    Attributes:
        kinds: that are followed, by name and group, in the order in which they start.
        reconcilers: work queues.
        loads: make what the reconciled objects hold known, before anything is decided.
        following: what runs in every replica, by name.
        leading: what runs while this replica leads, by name.
        essential: what runs while this replica leads, and whose error is the end of the process.
        recorders: writers of events, by name.
    """

    replica: Replica
    kinds: dict[str, FollowedKind] = field(default_factory=dict)
    reconcilers: list[Reconciler] = field(default_factory=list)
    loads: list[Callable[[], None]] = field(default_factory=list)
    following: list[tuple[str, Run]] = field(default_factory=list)
    leading: list[tuple[str, Run]] = field(default_factory=list)
    essential: list[Run] = field(default_factory=list)
    recorders: dict[str, EventRecorder] = field(default_factory=dict)

    def follow(
        self,
        resource: Resource,
        *handlers: OnChange,
        trim: Trim | None = None,
        field_selector: str = "",
        on_demand: bool = False,
    ) -> FollowedKind:
        """Follow a kind, once for everybody: one that is followed already is only given the handlers."""
        kind = self.kinds.get(resource.group_resource)
        if kind is None:
            kind = self.kinds[resource.group_resource] = FollowedKind(
                self.replica.session, resource, trim=trim, field_selector=field_selector, on_demand=on_demand
            )
            if not on_demand:
                self.replica.health.ready[resource.group_resource] = kind.problem
        for handler in handlers:
            kind.add(handler)
        return kind

    def reconcile(
        self,
        resource: Resource,
        reconcile: Reconcile,
        load: Callable[[list[Object]], None],
        selects: Callable[[Object], bool] = lambda obj: True,
    ) -> Reconciler:
        """Reconcile the objects of a kind that is followed."""
        kind = self.kinds[resource.group_resource]
        replica, recorder = self.replica, self.recorders["events"]
        made = Reconciler(
            replica.session, kind.reflector, reconcile, replica.metrics, selects=selects, recorder=recorder
        )
        kind.add(made.on_change)
        self.reconcilers.append(made)
        self.loads.append(lambda: load(made.objects()))
        self.leading.append((made.kind, made.run))
        return made

    def record(self, name: str, component: str, busy: Callable[[], bool] = lambda: False) -> EventRecorder:
        """A writer of events."""
        made = EventRecorder(self.replica.session, component=component, instance=self.replica.identity, busy=busy)
        self.recorders[name] = made
        self.replica.metrics.recorders.append(made)
        return made


def build(replica: Replica, settings: OperatorSettings) -> tuple[list[tuple[str, Run]], list[EventRecorder]]:
    """What is to run in this replica, by name, and the writers of events, to be drained at the end."""
    plan, election = plan_parts(replica, settings)
    watched = WatchedKinds(plan.kinds, replica.supervisor)

    leader = replica.metrics.leader.labels(settings.lease_name)  # 0 until then

    async def lead() -> None:
        leader.set(1)
        await watched.read_afresh()
        for reconciler in plan.reconcilers:
            reconciler.start()
        for each in plan.loads:
            each()
        async with asyncio.TaskGroup() as group:
            for run in plan.essential:
                group.create_task(run())
            for name, run in plan.leading:
                group.create_task(keep_running(name, run))

    async def elect() -> None:
        await election.run(lead)

    running: list[tuple[str, Run]] = [(name, recorder.run) for name, recorder in plan.recorders.items()]
    running += [(name, partial(keep_running, name, run)) for name, run in plan.following]
    return [*running, ("leader", elect), ("stand-by", watched.stand_by)], list(plan.recorders.values())


def plan_parts(replica: Replica, settings: OperatorSettings) -> tuple[Plan, LeaderElection]:
    """The parts of the controllers that the settings name, and the leader election that permits their writes."""
    plan = Plan(replica)
    candidate = Candidate(settings.namespace, settings.lease_name, replica.identity, replica.owners)
    election = LeaderElection(replica.session, candidate, settings.lease, on_lost=replica.on_lost)
    load = BindingLoad(pipeline := PipelineSettings(binding_timeout_seconds=binding_timeout_seconds(settings.lease)))
    context = Context(
        session=replica.session,
        namespace=settings.namespace,
        recorder=plan.record("events", "concerto-scheduler", busy=lambda: load.busy),
        metrics=replica.metrics,
        clock=replica.clock,
        may_write=lambda: election.remaining_seconds() > 0,
    )
    if "scheduling" in settings.controllers:
        replica.session.field_manager = lambda: election.field_manager
        parts = build_parts(
            context,
            replica.cluster,
            load,
            instance=replica.identity.rpartition("_")[2],
            owners=replica.owners,
            settings=pipeline,
        )
        informers = Informers(parts, context.metrics, context.clock)
        _add_scheduling(plan, context, parts, informers, pipeline)
        _add_volumes(plan, context, parts)
        if "pinning" in settings.controllers:
            _add_pinning(plan, context, parts, informers)
        else:
            replica.cluster.cpus.followed = False
        _add_capacity(plan, context, parts, settings.costs_by_kind)
    if "autoscaling" in settings.controllers:
        _add_autoscaling(plan, context, settings)
    return plan, election


def _add_scheduling(
    plan: Plan, context: Context, parts: SchedulerParts, informers: Informers, settings: PipelineSettings
) -> None:
    pipeline = BindingPipeline(context, parts, settings)
    housekeeping = Housekeeping(context, parts, OverdueReports(context, parts, informers.capacity_uids))
    providers = LoadProviders(
        context.session, context.namespace, parts.cluster, context.recorder, context.metrics, context.clock
    )
    profiles = ProfileController(context, parts, providers)
    reservations = ReservationController(context, parts)

    plan.follow(NODES, informers.nodes.on_change, trim=trim_node)
    plan.follow(PODS, informers.pods.on_change, trim=trim_pod, field_selector=NOT_ENDED)
    plan.follow(NAMESPACES, informers.namespaces.on_change, trim=trim_namespace)
    selectors = parts.cluster.signatures.workload_selectors
    for resource in SPREADING:
        plan.follow(resource, follow_selectors(resource, selectors, context.metrics), trim=trim_to_selector)
    plan.follow(NODE_CAPACITIES, informers.on_capacity)
    plan.follow(SCHEDULING_PROFILES)
    plan.follow(POD_RESERVATIONS, informers.on_reservation)
    groups = plan.follow(POD_GROUPS, informers.pod_groups.on_change, trim=trim_pod_group, on_demand=True)
    informers.on_first_group = groups.demand
    classes = plan.follow(DEVICE_CLASSES, informers.device_classes.on_change, trim=trim_device_class, on_demand=True)
    informers.on_extended_resource = classes.demand
    plan.follow(POD_DISRUPTION_BUDGETS, informers.budgets.on_change, trim=trim_budget)
    preemption = PreemptionController(context, parts)
    scheduler = Scheduler(context, parts, pipeline, housekeeping)
    scheduler.on_unschedulable = preemption.note_failure
    gang_preemption = GangPreemptionController(context, parts)
    scheduler.on_gang_unschedulable = gang_preemption.note_failure
    plan.essential.append(scheduler.run)
    plan.reconcile(SCHEDULING_PROFILES, profiles.reconcile, profiles.load)
    by_people = plan.reconcile(
        POD_RESERVATIONS,
        reservations.reconcile,
        reservations.load,
        selects=lambda obj: IN_FLIGHT_LABEL not in (obj["metadata"].get("labels") or {}),
    )
    pipeline.on_consumed = reservations.mark = by_people.mark
    reservations.objects, reservations.backs_off = by_people.objects, by_people.backs_off
    plan.leading += [
        ("profiles", profiles.run),
        ("reservations", reservations.run),
        ("metric providers", providers.run),
        ("preemption", preemption.run),
        ("preemption for gangs", gang_preemption.run),
    ]


def _add_volumes(plan: Plan, context: Context, parts: SchedulerParts) -> None:
    informers = VolumeInformers(parts.cluster.volumes, parts.volumes, context.metrics, parts.pending)
    plan.follow(PERSISTENT_VOLUMES, informers.on_volume, trim=trim_volume)
    plan.follow(PERSISTENT_VOLUME_CLAIMS, informers.on_claim, trim=trim_claim)
    plan.follow(STORAGE_CLASSES, informers.classes.on_change, trim=trim_storage_class)
    plan.follow(CSI_NODES, informers.csi_nodes.on_change, trim=trim_csi_node)
    plan.follow(CSI_DRIVERS, informers.drivers.on_change, trim=trim_bare)
    plan.follow(CSI_STORAGE_CAPACITIES, informers.capacities.on_change, trim=trim_bare)
    plan.follow(VOLUME_ATTACHMENTS, informers.attachments.on_change, trim=trim_bare)


def _add_pinning(plan: Plan, context: Context, parts: SchedulerParts, informers: Informers) -> None:
    topologies = plan.follow(NODE_CPU_TOPOLOGIES, informers.topologies.on_change)
    plan.follow(POD_CPU_BINDINGS, informers.on_cpu_binding)
    recorder = plan.record("binding events", "podcpubinding-controller")
    pods = plan.kinds[PODS.group_resource]
    bindings = PodCPUBindingController(context.session, recorder, pods.store, topologies.store)
    pods.add(bindings.on_pod)
    topologies.add(bindings.on_topology)
    resizes = PodResizes(context.session, parts.cluster, parts.profiles, pods.store, recorder, context.may_write)
    pods.add(resizes.on_pod)

    async def reconcile(key: tuple[str, str], obj: Object | None) -> float | None:
        waits = (await bindings.reconcile(key, obj), await resizes.reconcile(key, obj))
        return min((wait for wait in waits if wait is not None), default=None)

    reconciler = plan.reconcile(POD_CPU_BINDINGS, reconcile, bindings.load)
    bindings.mark = parts.pins.mark = resizes.mark = reconciler.mark
    bindings.back_off, bindings.assigned = reconciler.back_off, parts.pins.assigned


def _add_capacity(plan: Plan, context: Context, parts: SchedulerParts, costs_by_kind: bool) -> None:
    feed = KindsFeed(parts.cluster, parts.pending.requeue, places_by_kind=costs_by_kind)
    model = ClusterModelPublisher(
        context.session, context.metrics, context.clock, kinds=feed.kinds, placement=feed.placement
    )
    plan.follow(SUBSPACE_SNAPSHOTS, model.on_snapshot, feed.on_snapshot)
    nodes = plan.kinds[NODES.group_resource]
    plan.following.append(("costs of kinds", partial(feed.run, nodes.reflector.synced)))
    plan.leading.append(("trace of kinds", plan.replica.trace.run))
    plan.loads.append(feed.load)
    named_after_nodes = [
        plan.kinds[resource.group_resource].store
        for resource in (NODE_CAPACITIES, SUBSPACE_SNAPSHOTS, NODE_CPU_TOPOLOGIES)
        if resource.group_resource in plan.kinds
    ]
    nodeless = NodelessObjects(nodes.store, named_after_nodes, context.recorder, context.clock)
    plan.leading += [("cluster model", model.run), ("objects without a node", nodeless.run)]


def _add_autoscaling(plan: Plan, context: Context, settings: OperatorSettings) -> None:
    recorder = plan.record("scaling events", "concerto-autoscaler")
    agents = None
    if settings.ask_agents:
        tokens = AgentTokens(context.session, context.namespace, settings.account, context.clock)
        fresh = AgentSettings(fresh_seconds=min(5.0, settings.autoscaling.controller.sync_seconds / 3))
        agents = AgentMetrics(plan.follow(NODE_CAPACITIES).store, tokens, context.clock, fresh)
    kinds = AutoscaledKinds.followed_by(plan.follow)
    autoscaler = PredictiveHPAController(replace(context, recorder=recorder), kinds, settings.autoscaling, agents)
    plan.leading.append(("autoscaler", autoscaler.run))


def binding_timeout_seconds(lease: LeaseSettings) -> float:
    """How long one binding may take: over before a successor of a leader that lost its Lease can begin to decide."""
    return 0.8 * (lease.lease_duration_seconds - lease.renew_deadline_seconds)
