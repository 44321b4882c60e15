"""Carry out a decision on one PredictiveHPA: reserve room, write the target's scale, and write the status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from concerto.api.conditions import Condition, find_condition, merge_conditions
from concerto.api.predictivehpa import Pause
from concerto.api.selector_text import parse_selector
from concerto.api.timestamps import format_timestamp
from concerto.autoscaling.behavior import Memory
from concerto.autoscaling.decision import Decision, Floor, carried_out, decide, failed, paused, rescaled, stopped
from concerto.autoscaling.forecast_influence import ForecastResult, with_hold
from concerto.autoscaling.settings import Bounds
from concerto.controllers.autoscaling.capacity_reservation import build_reservation, reserve
from concerto.controllers.autoscaling.forecast_metrics import ForecastMetrics, ShownLoad
from concerto.controllers.autoscaling.measurements import load_of
from concerto.controllers.autoscaling.observation import Observation
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.state import fallback_replicas, write_events, write_state
from concerto.controllers.autoscaling.status import (
    all_conditions,
    explain,
    forecast_status,
    last_decision,
    merge_patch,
    metric_statuses,
    no_decision,
    selector_status,
    waiting_status,
    window_status,
)
from concerto.controllers.autoscaling.status_writes import StatusWriter
from concerto.controllers.autoscaling.targets import Scale, Targets
from concerto.controllers.autoscaling.tracked import HISTORY_LOADED, SCALED_TO_ZERO, ObjectEvents, TrackedObject
from concerto.kube import ApiError, KubeError, Session
from concerto.kube.confirmed_writes import NotWritten

_DEFAULT_SCHEDULER = "default-scheduler"
_SCALES_TO_ZERO = Condition(
    SCALED_TO_ZERO, "True", SCALED_TO_ZERO, "the HPA controller is about to scale the workload to zero"
)


@dataclass(frozen=True)
class _Plan:
    """One observation's decision, with what it was made from.

    Attributes:
        observed: the observation.
        scale: of the target, as observed.
        bounds: with the hold that applies.
        forecast: the result, if there is one.
        floor: what the forecast asks for, if it is active.
        decision: what to do.
        pause: what the object's annotations ask for.
    """

    observed: Observation
    scale: Scale
    bounds: Bounds
    forecast: ForecastResult | None
    floor: Floor | None
    decision: Decision
    pause: Pause | None


@dataclass(frozen=True)
class _Outcome:
    """Outcome of a decision: whether the scale was written, why not, and the conditions."""

    written: bool
    refused: str | None
    conditions: tuple[Condition, ...]


class Actuator:
    """Decides on observed objects, and carries the decisions out."""

    def __init__(
        self,
        session: Session,
        targets: Targets,
        events: ObjectEvents,
        metrics: ForecastMetrics,
        settings: PredictiveHPASettings,
        statuses: StatusWriter,
    ) -> None:
        self._session = session
        self._targets = targets
        self._events = events
        self._metrics = metrics
        self._settings = settings
        self._statuses = statuses

    async def act(self, observed: Observation, forecast: ForecastResult | None, is_current: Callable[[], bool]) -> None:
        """Decide on an observed object, scale its target, and write its status.

        Args:
            observed: what one sync observed.
            forecast: its forecast; None without one.
            is_current: whether the object still exists with the spec that was observed.
        """
        if observed.scale is None:
            await self._report_error(observed)
            return
        plan = self._plan(observed, observed.scale, forecast)
        tracked, decision = observed.tracked, plan.decision
        self._show(plan)
        if decision.error is not None:
            self._events.warning(tracked, "FailedComputeMetricsReplicas", "Computing", decision.error)
        outcome: _Outcome | None = _Outcome(False, None, decision.conditions)
        if decision.rescale and observed.spec.prediction.mode != "Preview":
            outcome = await self._carry_out(plan, is_current)
        if outcome is not None:
            self._remember(plan, outcome)
            await self._write(tracked, self._status(plan, outcome), observed.now)

    def _plan(self, observed: Observation, scale: Scale, forecast: ForecastResult | None) -> _Plan:
        bounds, floor = observed.bounds, None
        prediction = observed.spec.prediction
        if forecast is not None:
            bounds = with_hold(
                bounds, forecast, self._settings.action, prediction.downscale_stabilization_seconds, scale.replicas
            )
            floor = forecast.floor(
                bounds, scale.replicas, self._settings.action, replaces=prediction.decision == "Predictive"
            )
        memory = _confirmed(observed.tracked, bounds, scale, observed.now)
        observed.tracked.note_answer(observed.combined, observed.now)
        pause = observed.tracked.pause
        if pause is not None and pause.error:
            self._events.warning(observed.tracked, "InvalidPause", "Pausing", pause.error)
        if observed.conflict is not None:
            decision = stopped(memory, current=scale.replicas, why=observed.conflict, now=observed.now)
        elif pause is not None:
            decision = paused(
                memory,
                current=scale.replicas,
                annotation=pause.annotation,
                replicas=pause.replicas,
                now=observed.now,
            )
        else:
            decision = decide(
                bounds,
                memory,
                current=scale.replicas,
                metrics=observed.combined,
                floor=floor,
                now=observed.now,
                fallback=self._fallback(observed),
            )
        return _Plan(observed, scale, bounds, forecast, floor, decision, pause)

    def _show(self, plan: _Plan) -> None:
        """Set the object's series in Prometheus."""
        observed, settings = plan.observed, self._settings.initialisation
        learned = observed.tracked.state.initialisation
        shown = ShownLoad(
            demand=load_of(observed.measured.outcomes, observed.now).demand,
            replicas=plan.scale.replicas,
            desired=plan.decision.replicas,
            waiting_pods=sum(pod.waiting for pod in observed.pods),
            start_seconds=learned.typical(settings) if learned.seconds else None,
            wait_seconds=learned.typical_wait(settings) if learned.waits else None,
        )
        self._metrics.observe(observed.tracked.key, plan.forecast, shown)

    def _fallback(self, observed: Observation) -> int | None:
        """Replicas of ``spec.fallback``, once no metric has had an answer for long enough."""
        tracked, fallback = observed.tracked, observed.spec.fallback
        if fallback is None or tracked.failing_since is None:
            return None
        if observed.now - tracked.failing_since < fallback.after_seconds:
            return None
        ahead = observed.spec.prediction.horizon_seconds
        if ahead is None:
            ahead = tracked.state.initialisation.ahead(self._settings.initialisation)
        return fallback_replicas(observed.spec, tracked.state, ahead, observed.now)

    async def _carry_out(self, plan: _Plan, is_current: Callable[[], bool]) -> _Outcome | None:
        """Write the scale; None if the object changed meanwhile, and nothing may be done for it."""
        observed, scale, decision = plan.observed, plan.scale, plan.decision
        tracked, now = observed.tracked, observed.now
        if plan.floor is not None and plan.floor.replicas > (decision.metrics_replicas or 0):
            await self._reserve(plan)
        # Recorded before it is made: an operator that goes on after a crash must not allow as much again, nor take
        # the zero for somebody else's
        ahead: dict[str, Any] = {}
        if plan.bounds.behavior is not None:
            made = carried_out(decision.memory, plan.bounds, before=scale.replicas, after=decision.replicas, now=now)
            ahead["scaleEvents"] = write_events(made)
        if decision.replicas == 0:
            ahead["conditions"] = merge_conditions(
                tracked.status.get("conditions") or (),
                [_SCALES_TO_ZERO],
                now=format_timestamp(now),
                observed_generation=tracked.obj["metadata"].get("generation", 0),
            )
            tracked.scaled_to_zero = True
        if ahead:
            await self._statuses.write(tracked, {**tracked.status, **ahead}, now)
        if not is_current() or tracked.pause != plan.pause:
            return None
        tracked.unconfirmed = (scale.replicas, decision.replicas, now)
        written, condition = await self._rescale(observed, scale, decision)
        rest = (c for c in decision.conditions if c.type != "AbleToScale")
        return _Outcome(written, None if written else condition.message, (*rest, condition))

    async def _rescale(self, observed: Observation, scale: Scale, decision: Decision) -> tuple[bool, Condition]:
        spec, tracked = observed.spec, observed.tracked
        # autoscaling/v2 gives no reason for a rise that was asked for earlier and limited then
        reason = decision.reason or "a recent recommendation was higher"
        new_size = f"New size: {decision.replicas}; reason: {reason}"
        try:
            await self._targets.write(spec.namespace, spec.target.name, scale, decision.replicas)
        except KubeError as error:
            self._events.warning(tracked, "FailedRescale", "Rescaling", f"{new_size}; error: {error}")
            if decision.replicas == 0 and isinstance(error, ApiError | NotWritten):  # else it may still come to zero
                tracked.scaled_to_zero = False
            return False, failed("FailedUpdateScale", "update the target scale", str(error))
        self._events.normal(tracked, "SuccessfulRescale", "Rescaling", new_size)
        self._metrics.rescaled(scale.replicas, decision.replicas)
        return True, rescaled(decision.replicas)

    async def _reserve(self, plan: _Plan) -> None:
        """Reserve room for the pods of a rise that the forecast asks for, if the object wants that."""
        observed, forecast = plan.observed, plan.forecast
        added = plan.decision.replicas - plan.scale.replicas
        if added <= 0 or forecast is None or not observed.spec.prediction.reserve_capacity:
            return
        tracked = observed.tracked
        if observed.pods and all(pod.scheduler_name == _DEFAULT_SCHEDULER for pod in observed.pods):
            note = f"Nothing is reserved: pods of {_DEFAULT_SCHEDULER} do not use what Concerto's scheduler reserves"
            self._events.warning(tracked, "FailedReservation", "Reserving", note)
            return
        reservation = build_reservation(
            observed.spec,
            parse_selector(plan.scale.selector),
            count=added,
            horizon_seconds=forecast.horizon_seconds,
            now=observed.now,
        )
        wrong = await reserve(self._session, reservation, now=observed.now)
        name = reservation["metadata"]["name"]
        if wrong is None:
            note = f"Reserved room for {added} pods that {forecast.model} expects ({name})"
            self._events.normal(tracked, "ReservedCapacity", "Reserving", note)
        else:
            self._events.warning(tracked, "FailedReservation", "Reserving", f"{name}: {wrong}")

    def _remember(self, plan: _Plan, outcome: _Outcome) -> None:
        tracked, memory = plan.observed.tracked, plan.decision.memory
        if outcome.written:
            before, after = plan.scale.replicas, plan.decision.replicas
            memory = carried_out(memory, plan.bounds, before=before, after=after, now=plan.observed.now)
            # Meanwhile the object may have got another target
            of_present_target = tracked.spec is not None and tracked.spec.target == plan.observed.spec.target
            tracked.unconfirmed, tracked.scaled_to_zero = None, after == 0 and of_present_target
        tracked.state = replace(tracked.state, memory=memory)

    def _status(self, plan: _Plan, outcome: _Outcome) -> dict[str, Any]:
        observed, decision, floor, forecast = plan.observed, plan.decision, plan.floor, plan.forecast
        tracked, spec, now = observed.tracked, observed.spec, observed.now
        asked, old = floor.replicas if floor else None, tracked.status
        message = explain(
            decision,
            plan.scale.replicas,
            forecast,
            asked,
            carried_out=spec.prediction.mode != "Preview",
            refused=outcome.refused,
        )
        replaces = floor is not None and floor.replaces and decision.error is None
        decided = last_decision(old.get("lastDecision"), decision, message, asked, now=now, replaces=replaces)
        status: dict[str, Any] = {
            "observedGeneration": spec.generation,
            "currentReplicas": plan.scale.replicas,
            "desiredReplicas": decision.replicas,
            **selector_status(plan.scale.selector),
            "currentMetrics": metric_statuses(spec.metrics, observed.measured.outcomes),
            "historyOf": tracked.digest,
            "lastDecision": decided,
            "conditions": _conditions(observed, (*outcome.conditions, *_zero(plan, outcome)), forecast),
            **waiting_status(observed.pods),
            **window_status(plan.bounds),
            **write_state(tracked.state, self._settings.initialisation),
        }
        if tracked.failing_since is not None:
            status["metricsFailingSince"] = format_timestamp(tracked.failing_since)
        if observed.open_schedules:
            status["openSchedules"] = list(observed.open_schedules)
        if observed.schedules_error:
            status["schedulesMessage"] = observed.schedules_error[:1024]
        if (readings := observed.measured.readings) is not None:
            status["metricsSource"] = readings.source
            if readings.trouble:
                status["metricsSourceMessage"] = readings.trouble[:1024]
        if outcome.written:
            status["lastScaleTime"] = format_timestamp(now)
        elif "lastScaleTime" in old:
            status["lastScaleTime"] = old["lastScaleTime"]
        expires_at = now + self._settings.stale_seconds
        if forecast and (shown := forecast_status(forecast, asked, now=now, expires_at=expires_at)):
            status["forecast"] = shown
        return status

    async def save(self, tracked: TrackedObject) -> None:
        """Write at once the samples, recommendations and times that an object's status does not have yet."""
        if not tracked.digest:
            return  # its status could not be read yet, and has all that there is
        remembered = write_state(tracked.state, self._settings.initialisation)
        # Without a status there was no sync, and a status needs more than this
        if tracked.status and (patch := merge_patch(tracked.status, {**tracked.status, **remembered})):
            await self._statuses.patch(tracked, patch, tracked.written_at)

    async def _report_error(self, observed: Observation) -> None:
        """Write the status of an object whose target's scale cannot be read."""
        assert observed.error is not None
        tracked = observed.tracked
        old = tracked.status
        self._metrics.observe(tracked.key, None, None)
        status = {
            **{k: v for k, v in old.items() if k not in ("conditions", "forecast")},
            "observedGeneration": tracked.obj["metadata"].get("generation", 0),
            "lastDecision": no_decision(old.get("lastDecision"), observed.error, now=observed.now),
            "conditions": _conditions(observed, [observed.error], None),
        }
        await self._write(tracked, status, observed.now)

    async def _write(self, tracked: TrackedObject, status: dict[str, Any], now: float) -> None:
        """Write a whole status; its condition Ready is a metric, too."""
        ready = find_condition(status["conditions"], "Ready")
        self._metrics.observe_ready(tracked.key, ready=ready is not None and ready["status"] == "True")
        await self._statuses.write(tracked, status, now)


def _confirmed(tracked: TrackedObject, bounds: Bounds, scale: Scale, now: float) -> Memory:
    """The memory, with the last scale write in it if its outcome was unknown and the scale now shows it."""
    memory = tracked.state.memory
    if tracked.unconfirmed is not None:
        before, after, at = tracked.unconfirmed
        if scale.replicas == after:
            memory = carried_out(memory, bounds, before=before, after=after, now=at)
        tracked.unconfirmed = None
    if not tracked.decided:
        memory, tracked.decided = memory.resumed(now, scale.replicas, bounds.down_window_seconds), True
    return memory


def _zero(plan: _Plan, outcome: _Outcome) -> tuple[Condition, ...]:
    """Condition ScaledToZero, with autoscaling/v2's words; none for an object that never scaled its target to zero."""
    tracked = plan.observed.tracked
    if tracked.scaled_to_zero and (outcome.written or plan.scale.replicas == 0):
        return (Condition(SCALED_TO_ZERO, "True", SCALED_TO_ZERO, "the HPA controller scaled the workload to zero"),)
    if tracked.scaled_to_zero:  # the outcome of the write is unknown
        return (_SCALES_TO_ZERO,)
    if find_condition(tracked.status.get("conditions"), SCALED_TO_ZERO) is None:
        return ()
    message = "the HPA controller did not scale the workload to zero"
    return (Condition(SCALED_TO_ZERO, "False", "NotScaledToZero", message),)


def _conditions(
    observed: Observation, decided: tuple[Condition, ...] | list[Condition], forecast: ForecastResult | None
) -> list[dict[str, Any]]:
    tracked = observed.tracked
    history = tracked.history_condition
    old = tracked.status.get("conditions") or ()
    return all_conditions(
        [*decided, *([history] if history else [])],
        forecast,
        off=observed.spec.prediction.mode == "Off",
        generation=tracked.obj["metadata"].get("generation", 0),
        old=old if history else [c for c in old if c["type"] != HISTORY_LOADED],
        now=format_timestamp(observed.now),
    )
