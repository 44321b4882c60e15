"""A scheduler with its real parts, as `wiring.build` puts them together, over any session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.schedulingprofile import ProfileSettings
from concerto.controllers.runtime.context import Context
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.scheduling.binding_load import BindingLoad, PipelineSettings
from concerto.controllers.scheduling.binding_pipeline import BindingPipeline
from concerto.controllers.scheduling.housekeeping import Housekeeping, OverdueReports
from concerto.controllers.scheduling.informers import Informers
from concerto.controllers.scheduling.parts import SchedulerParts, build_parts
from concerto.controllers.scheduling.scheduler import Scheduler
from concerto.kube import Session
from concerto.kube.events import EventRecorder
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState

NAMESPACE = "concerto-system"


@dataclass
class Scheduling:
    context: Context
    parts: SchedulerParts
    informers: Informers
    pipeline: BindingPipeline
    scheduler: Scheduler

    def use(self, **spec: object) -> None:
        """Place pods of the scheduler name concerto by such a profile."""
        settings = ProfileSettings.from_raw({"schedulerName": "concerto"} | spec)
        self.parts.profiles.use("concerto", Profile.build(settings))
        self.parts.pending.on_profile("concerto")


def scheduling(
    session: Session, clock: Callable[[], float] = lambda: 1000.0, *, settings: PipelineSettings | None = None
) -> Scheduling:
    recorder = EventRecorder(session, component="c", instance="i")
    context = Context(session, NAMESPACE, recorder, Metrics(), clock)
    parts = build_parts(context, ClusterState(), BindingLoad(settings or PipelineSettings()), instance="me")
    informers = Informers(parts, context.metrics, clock)
    pipeline = BindingPipeline(context, parts, settings)
    housekeeping = Housekeeping(context, parts, OverdueReports(context, parts, informers.capacity_uids))
    made = Scheduling(context, parts, informers, pipeline, Scheduler(context, parts, pipeline, housekeeping))
    made.use()
    return made
