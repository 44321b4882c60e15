"""What the scheduler's loop, its informers and the controllers of profiles and reservations work on together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from concerto.controllers.pinning.preparation import PinningPreparation, PreparationSettings
from concerto.controllers.runtime.context import Context
from concerto.controllers.scheduling.binding_load import BindingLoad, PipelineSettings
from concerto.controllers.scheduling.binding_steps import BindingStep, PinningStep
from concerto.controllers.scheduling.eviction import EvictionPlaces, EvictionSettings
from concerto.controllers.scheduling.outcome_counts import OutcomeCounts
from concerto.controllers.scheduling.pending import PendingPods
from concerto.controllers.scheduling.placement_records import PlacementRecords
from concerto.controllers.scheduling.pod_group_status import PodGroupStatus
from concerto.controllers.scheduling.profiles_in_use import ProfilesInUse
from concerto.controllers.scheduling.unschedulable import UnschedulableReporter
from concerto.controllers.volumes.binder import VolumeBinder
from concerto.controllers.volumes.claim_writes import ClaimWrites, ClaimWriteSettings
from concerto.controllers.volumes.step import VolumeStep
from concerto.kube import Object
from concerto.scheduling.gangs.recovery import is_unfinished
from concerto.scheduling.state.cluster import ClusterState


@dataclass(frozen=True)
class SchedulerParts:
    """The state that scheduling decides on and changes.

    Attributes:
        cluster: the cluster as scheduling sees it; up to date in a standby, too.
        profiles: in use.
        counts: what was done for the pods of each scheduler name.
        reporter: reports on pods that find no node.
        pending: pods that wait for a node.
        records: placement records.
        pins: the PodCPUBindings of pods that get CPUs of their own.
        volumes: binds the volumes that pods claim.
        steps: what has to be ready before a pod is bound, in order.
        load: what bindings and preemptions in flight hold back.
        eviction_places: how many pods are nominated and evicted at a time.
        group_status: writes the conditions of PodGroups.
    """

    cluster: ClusterState
    profiles: ProfilesInUse
    counts: OutcomeCounts
    reporter: UnschedulableReporter
    pending: PendingPods
    records: PlacementRecords
    pins: PinningPreparation
    volumes: VolumeBinder
    steps: Sequence[BindingStep]
    load: BindingLoad
    eviction_places: EvictionPlaces
    group_status: PodGroupStatus


def build_parts(
    context: Context,
    cluster: ClusterState,
    load: BindingLoad,
    *,
    instance: str,
    owners: Sequence[Object] = (),
    settings: PipelineSettings | None = None,
) -> SchedulerParts:
    """The parts, empty.

    Args:
        context: what they share.
        cluster: the cluster.
        load: what bindings and preemptions in flight hold back.
        instance: of this process; part of its placement records' names.
        owners: owner references of its placement records.
        settings: timeouts.
    """
    settings = settings or PipelineSettings()
    profiles = ProfilesInUse()
    reporter = UnschedulableReporter(context.session, context.recorder, context.clock, load=load)
    pinning = PreparationSettings(settings.binding_timeout_seconds)
    pins = PinningPreparation(context.session, cluster.is_bound, pinning, context.may_write, load.place_of_preparation)
    pending = PendingPods(cluster, profiles, reporter, context.clock)
    load.on_let_go = pending.work.set
    eviction_places = EvictionPlaces(EvictionSettings())
    load.are_slow = eviction_places.are_slow
    group_status = PodGroupStatus(context.session, cluster, context.clock, profiles, load)
    pending.on_pod_groups = group_status.note_changed
    claims_settings = ClaimWriteSettings(settings.binding_timeout_seconds)
    claims = ClaimWrites(context.session, context.may_write, claims_settings, load.place_of_preparation)
    volumes = VolumeBinder(cluster, claims, pending.__contains__)
    return SchedulerParts(
        cluster=cluster,
        profiles=profiles,
        counts=OutcomeCounts(),
        reporter=reporter,
        pending=pending,
        records=PlacementRecords(context, cluster.ledger, instance, owners, partial(is_unfinished, cluster)),
        pins=pins,
        volumes=volumes,
        # Claims may take minutes, for which no CPUs are to be kept free
        steps=(VolumeStep(volumes, profiles), PinningStep(cluster, pins, profiles, context.clock, settings)),
        load=load,
        eviction_places=eviction_places,
        group_status=group_status,
    )
