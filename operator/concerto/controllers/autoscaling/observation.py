"""Observe one PredictiveHPA: its target's scale and pods, other autoscalers of the target, and its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from concerto.api.conditions import Condition
from concerto.api.pod import PodView
from concerto.api.predictivehpa import PredictiveHPA
from concerto.api.selector_text import parse_selector
from concerto.api.selectors import LabelSelector
from concerto.autoscaling.decision import Combined, Failure, combine, failed, needs_metrics
from concerto.autoscaling.exceptions import Span
from concerto.autoscaling.pods import Gone
from concerto.autoscaling.schedules import Schedule, scheduled
from concerto.autoscaling.settings import Bounds, ControllerSettings
from concerto.controllers.autoscaling.measurements import Measured, Measurements, MetricRequest
from concerto.controllers.autoscaling.pods_by_label import PodsByLabel, SelectorIndex
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.spec import bounds_of, exceptions_of
from concerto.controllers.autoscaling.target_conflicts import TargetConflicts
from concerto.controllers.autoscaling.targets import Scale, Targets
from concerto.controllers.autoscaling.tracked import NO_SPEC, ObjectEvents, TrackedObject
from concerto.kube import KubeError, NotFound
from concerto.kube.discovery import UnknownKind
from concerto.kube.resources import PREDICTIVE_HPAS

_MAX_COMPARISONS, _OF_A_SYNC = 200_000, 20_000
"""Of selectors with pods: in one sync, and those that take as long as all else of a few syncs."""
_SEARCHES_OF_A_SYNC = 4
"""Times of schedules that are looked for in the time of a sync. An object has up to 64."""
_MAX_NAMED = 8


@dataclass(frozen=True)
class Observation:
    """What one sync observed of one object.

    Attributes:
        tracked: the object.
        spec: its spec at that time.
        bounds: replica bounds and behaviour.
        now: time of the observation, seconds.
        scale: of the target; None where it cannot be read.
        pods: of the target.
        gone: pods of the target that took load in the last minutes and are deleted.
        measured: outcomes of the metrics.
        combined: the metrics' common answer; None where they are not asked.
        error: condition AbleToScale where the scale cannot be read.
        open_schedules: names of the schedules whose window is open; ``bounds`` holds what they ask for.
        schedules_error: which schedules are not valid, and why; empty without errors.
        exceptions: times that do not follow the object's seasons.
        conflict: condition ScalingActive where another autoscaler scales the same target.
    """

    tracked: TrackedObject
    spec: PredictiveHPA
    bounds: Bounds
    now: float
    scale: Scale | None = None
    pods: Sequence[PodView] = ()
    gone: Sequence[Gone] = ()
    measured: Measured = field(default_factory=Measured)
    combined: Combined | None = None
    error: Condition | None = None
    conflict: Condition | None = None
    open_schedules: tuple[str, ...] = ()
    schedules_error: str = ""
    exceptions: tuple[Span, ...] = ()


class Observer:
    """Observes objects; holds the indexes of pods, selectors and targets that this needs."""

    def __init__(
        self,
        targets: Targets,
        measurements: Measurements,
        events: ObjectEvents,
        clock: Callable[[], float],
        settings: PredictiveHPASettings,
        charge: Callable[[str, int, float], None] = lambda namespace, syncs, now: None,
    ) -> None:
        """Nothing is observed yet.

        Args:
            targets: reads scales.
            measurements: reads metrics.
            events: records events.
            clock: seconds.
            settings: of the controller.
            charge: counts further syncs of a namespace for one that takes long (`SyncBudget.charge`).
        """
        self.pods = PodsByLabel()
        self.selectors = SelectorIndex(self.pods)
        self.conflicts = TargetConflicts()
        self._targets = targets
        self._measurements = measurements
        self._events = events
        self._clock = clock
        self._settings = settings
        self._charge = charge
        self._scheduling = asyncio.Lock()  # objects that are due together are observed at once

    async def observe(self, tracked: TrackedObject, is_current: Callable[[], bool]) -> Observation | None:
        """Observe an object.

        Args:
            tracked: the object.
            is_current: whether the object still exists with the spec it had when the observation began.

        Returns:
            None if the object is no longer current.
        """
        spec, now = tracked.spec, self._clock()
        if spec is None:
            error = failed("FailedGetScale", "read the object", tracked.complaint())
            return Observation(tracked, NO_SPEC, Bounds(1), now, error=error)
        now_open, schedules_error = await self._open_schedules(tracked, spec, now)
        if schedules_error:
            self._events.warning(tracked, "InvalidSchedule", "Scheduling", schedules_error)
        exceptions, wrong_exceptions = exceptions_of(spec)
        if wrong_exceptions:
            self._events.warning(tracked, "InvalidSeason", "Forecasting", wrong_exceptions)
        bounds = scheduled(bounds_of(spec, self._settings.controller), now_open)
        try:
            scale = await self._targets.read(spec.namespace, spec.target)
        except KubeError as error:
            if not is_current():
                return None
            if isinstance(error, NotFound | UnknownKind):
                self.selectors.put(tracked.key, None)
            self._events.warning(tracked, "FailedGetScale", "GettingScale", str(error))
            condition = failed("FailedGetScale", "get the target's current scale", str(error))
            return Observation(tracked, spec, bounds, now, error=condition)
        if not is_current():
            # Its selector must not be registered any more: nothing would remove it again
            return None
        if scale.replicas > 0:
            tracked.scaled_to_zero = False
        bounds = replace(bounds, starts_from_zero=bounds.starts_from_zero or tracked.scaled_to_zero)
        names = tuple(s.name for s in now_open)
        observed = Observation(
            tracked,
            spec,
            bounds,
            now,
            scale,
            open_schedules=names,
            schedules_error=schedules_error,
            exceptions=exceptions,
        )
        if (conflict := self._conflict(tracked, spec)) is not None:
            return replace(observed, conflict=conflict)
        selector, wrong = self._selector(tracked, spec, scale)
        if selector is not None:
            pods, gone = self.pods.select(spec.namespace, selector), self.pods.gone(spec.namespace, selector)
            observed = replace(observed, pods=pods, gone=gone)
            if spec.prediction.mode != "Preview":
                wrong = self._also_selected(tracked, spec, scale, pods)
        # While scaling is paused nothing depends on the metrics, but the history goes on
        is_paused = tracked.pause is not None and scale.replicas > 0
        if not (needs_metrics(bounds, scale.replicas) or is_paused):
            return observed
        if bounds.keep_at_zero(scale.replicas) and any(metric.needs_pods for metric in spec.metrics):
            return observed
        if wrong is not None:
            return replace(observed, combined=Combined(None, "", wrong, wrong.message))
        measured = await self._measure(observed, scale)
        return replace(observed, measured=measured, combined=combine(measured.outcomes, scale.replicas))

    async def _open_schedules(
        self, tracked: TrackedObject, spec: PredictiveHPA, now: float
    ) -> tuple[tuple[Schedule, ...], str]:
        """See `ScheduleWindows.open`. After each object for which that takes long, others get their turns."""
        if not spec.schedules:
            return (), ""
        async with self._scheduling:
            found = tracked.windows.open(spec, now)
            if tracked.windows.searched:
                self._charge(spec.namespace, tracked.windows.searched // _SEARCHES_OF_A_SYNC, now)
                await asyncio.sleep(0)
        return found

    def _conflict(self, tracked: TrackedObject, spec: PredictiveHPA) -> Condition | None:
        """The condition where others scale the same target: not even bounds apply then, as theirs may differ."""
        others, more = self.conflicts.of((PREDICTIVE_HPAS.kind, *tracked.key), _MAX_NAMED)
        if not others:
            return None
        names = _listed([f"{kind} {name}" for kind, _, name in others], more)
        message = f"{spec.target.kind} {spec.target.name} is also scaled by {names}: delete one of them"
        self._events.warning(tracked, "AmbiguousSelector", "Selecting", message)
        return Condition("ScalingActive", "False", "AmbiguousSelector", message)

    def _selector(
        self, tracked: TrackedObject, spec: PredictiveHPA, scale: Scale
    ) -> tuple[LabelSelector | None, Condition | None]:
        """The target's selector, and what is wrong with it."""
        if not scale.selector:
            self.selectors.put(tracked.key, None)
            self._events.warning(tracked, "SelectorRequired", "Selecting", "selector is required")
            message = "the HPA target's scale is missing a selector"
            return None, Condition("ScalingActive", "False", "InvalidSelector", message)
        try:
            selector = parse_selector(scale.selector)
        except ValueError as error:
            self._events.warning(tracked, "InvalidSelector", "Selecting", str(error))
            return None, Condition("ScalingActive", "False", "InvalidSelector", str(error))
        if spec.prediction.mode != "Preview":
            self.selectors.put(tracked.key, selector)
        comparisons = self.pods.comparisons(spec.namespace, selector)
        self._charge(spec.namespace, comparisons // _OF_A_SYNC, self._clock())
        if comparisons > _MAX_COMPARISONS:
            message = (
                f"it would take too long to compare the selector's {selector.parts} parts with the pods of the "
                "namespace: shorten the selector, or let it require a label that few other pods have"
            )
            self._events.warning(tracked, "InvalidSelector", "Selecting", message)
            return None, Condition("ScalingActive", "False", "InvalidSelector", message)
        return selector, None

    def _also_selected(
        self, tracked: TrackedObject, spec: PredictiveHPA, scale: Scale, pods: Sequence[PodView]
    ) -> Condition | None:
        """The condition where others select some of the target's pods, too."""
        labels = [pod.labels for pod in pods]
        keys, comparisons = self.selectors.claimants(spec.namespace, labels, _MAX_COMPARISONS)
        self._charge(spec.namespace, comparisons // _OF_A_SYNC, self._clock())
        if keys is not None and len(keys) < 2:
            return None
        message = (
            f"it would take too long to compare the pods by selector {scale.selector} with the selectors of other "
            "PredictiveHPAs: let each target's selector require a label that only its own pods have"
        )
        if keys is not None:
            names = _listed([f"{namespace}/{name}" for namespace, name in keys[:_MAX_NAMED]], len(keys) - _MAX_NAMED)
            message = f"pods by selector {scale.selector} are controlled by multiple PredictiveHPAs: {names}"
        self._events.warning(tracked, "AmbiguousSelector", "Selecting", message)
        return Condition("ScalingActive", "False", "AmbiguousSelector", message)

    async def _measure(self, observed: Observation, scale: Scale) -> Measured:
        tracked, spec = observed.tracked, observed.spec
        request = MetricRequest(
            spec.namespace,
            scale,
            observed.pods,
            observed.bounds.tolerances,
            self._start_up_aware(tracked, spec),
            observed.now,
            spec.prediction.metrics_source,
            observed.gone,
            can_be_zero=observed.bounds.min_replicas == 0,
        )
        measured = await self._measurements.measure(spec.metrics, request)
        for outcome in measured.outcomes:
            if isinstance(outcome, Failure):
                self._events.warning(tracked, outcome.reason, "Measuring", outcome.message)
        if measured.readings is not None and measured.readings.trouble:
            self._events.warning(tracked, "AgentMetricsUnavailable", "Measuring", measured.readings.trouble)
        return measured

    def _start_up_aware(self, tracked: TrackedObject, spec: PredictiveHPA) -> ControllerSettings:
        """With forecasts, start-up work does not count as load just because it takes longer than five minutes."""
        controller = self._settings.controller
        if spec.prediction.mode == "Off":
            return controller
        typical = tracked.state.initialisation.typical(self._settings.initialisation)
        longest = max(controller.cpu_initialization_seconds, 2 * typical)
        return replace(controller, cpu_initialization_seconds=longest, first_readiness=True)


def _listed(names: Sequence[str], more: int) -> str:
    """Some names: each of hundreds of objects would have the names of all others in its status."""
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
