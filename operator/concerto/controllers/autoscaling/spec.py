"""From the spec of a PredictiveHPA to the settings of the pure rules."""

from __future__ import annotations

from concerto.api.predictivehpa import PredictiveHPA, RulesSpec
from concerto.autoscaling.exceptions import Span, exception_spans
from concerto.autoscaling.forecast_influence import MODELS
from concerto.autoscaling.schedules import Schedule
from concerto.autoscaling.settings import (
    DEFAULT_SCALE_DOWN,
    DEFAULT_SCALE_UP,
    Behavior,
    Bounds,
    ControllerSettings,
    Policy,
    ScalingRules,
)


def bounds_of(spec: PredictiveHPA, controller: ControllerSettings) -> Bounds:
    """Replica bounds and behaviour; a behaviour that names one direction takes the defaults for the other."""
    if spec.scale_up is None or spec.scale_down is None:
        return Bounds(spec.max_replicas, spec.min_replicas, None, controller)
    behavior = Behavior(_rules(spec.scale_up, DEFAULT_SCALE_UP), _rules(spec.scale_down, DEFAULT_SCALE_DOWN))
    return Bounds(spec.max_replicas, spec.min_replicas, behavior, controller)


def schedules_of(spec: PredictiveHPA) -> tuple[tuple[Schedule, ...], str]:
    """The valid schedules, and why others are not; empty without errors."""
    valid, errors = [], []
    for each in spec.schedules:
        schedule = Schedule(each.name, each.start, each.end, each.time_zone, each.min_replicas, each.replicas)
        try:
            schedule.check()
        except ValueError as error:
            errors.append(str(error))
        else:
            valid.append(schedule)
    return tuple(valid), "; ".join(errors)


def exceptions_of(spec: PredictiveHPA) -> tuple[tuple[Span, ...], str]:
    """The times that do not follow seasons, and why others that are given do not count; empty without errors."""
    return exception_spans(spec.prediction.season_exceptions, spec.prediction.season_time_zone)


def models_of(spec: PredictiveHPA) -> tuple[str, ...]:
    """Candidates that the backtest chooses from."""
    return MODELS if spec.prediction.model == "Auto" else (spec.prediction.model,)


def _rules(spec: RulesSpec, default: ScalingRules) -> ScalingRules:
    policies = spec.policies
    return ScalingRules(
        default.policies if policies is None else tuple(Policy(p.type, p.value, p.period_seconds) for p in policies),
        spec.select_policy or default.select_policy,
        default.stabilization_seconds if spec.stabilization_seconds is None else float(spec.stabilization_seconds),
        spec.tolerance,
    )
