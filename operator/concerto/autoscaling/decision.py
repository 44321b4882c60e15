"""Decide on one object: from its metrics' outcomes to the replicas, the conditions and the reason.

The order is autoscaling/v2's: a target scaled to zero is left alone; bounds come before metrics; then metrics, limits.
A forecast can raise the metrics' answer, or replace it where the object wants that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from concerto.api.conditions import Condition
from concerto.autoscaling.behavior import Memory, Normalised, longest_period, longest_window, normalise
from concerto.autoscaling.replicas import Proposal
from concerto.autoscaling.settings import Bounds


@dataclass(frozen=True)
class Failure:
    """A metric without an answer: ``reason`` is the condition's (FailedGetResourceMetric, ...)."""

    reason: str
    message: str


@dataclass(frozen=True)
class Floor:
    """What a forecast asks for.

    Attributes:
        replicas: enough for the forecast load.
        source: the model's name, for the reason of a rescale.
        replaces: the forecast stands instead of the metrics' answer, not only above it, while no metric is broken.
    """

    replicas: int
    source: str
    replaces: bool = False


@dataclass(frozen=True)
class Combined:
    """All metrics together.

    Attributes:
        replicas: the largest proposal; None when nothing may be decided.
        metric: which one that was.
        active: condition ScalingActive.
        error: what was wrong, also where the valid metrics still decided.
        some_known: whether one metric at least has an answer: it may ask for too little for the others to be left out.
    """

    replicas: int | None
    metric: str
    active: Condition
    error: str | None = None
    some_known: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        replicas: what the target should have.
        rescale: whether that must be written.
        reason: why, as in event SuccessfulRescale.
        conditions: AbleToScale, ScalingActive and ScalingLimited, as far as they are known.
        memory: what the next decision must know; `carried_out` adds a rescale once it has succeeded.
        metrics_replicas: the metrics' own answer; None where they were not asked or had none.
        error: for event FailedComputeMetricsReplicas.
        cause: reason of ``status.lastDecision`` where metrics, forecast and bounds did not decide: Paused or Fallback.
    """

    replicas: int
    rescale: bool
    reason: str
    conditions: tuple[Condition, ...]
    memory: Memory
    metrics_replicas: int | None = None
    error: str | None = None
    cause: str = ""


GOT_SCALE = Condition(
    "AbleToScale", "True", "SucceededGetScale", "the HPA controller was able to get the target's current scale"
)


def combine(outcomes: Sequence[Proposal | Failure], current: int) -> Combined:
    """The largest valid proposal; broken metrics may hold replicas up but never let them fall."""
    failures = [o for o in outcomes if isinstance(o, Failure)]
    best: Proposal | None = None
    for outcome in outcomes:
        if isinstance(outcome, Proposal) and (best is None or best.replicas == 0 or outcome.replicas > best.replicas):
            best = outcome
    error = None
    if failures:
        error = (
            f"invalid metrics ({len(failures)} invalid out of {len(outcomes)}), first error is: {failures[0].message}"
        )
    if best is None or (failures and best.replicas < current):
        first = failures[0] if failures else Failure("InvalidMetricSourceType", "no metrics are given")
        message = f"the HPA was unable to compute the replica count: {first.message}"
        active = Condition("ScalingActive", "False", first.reason, message)
        return Combined(None, "", active, error or first.message, some_known=best is not None)
    message = f"the HPA was able to successfully calculate a replica count from {best.metric}"
    active = Condition("ScalingActive", "True", "ValidMetricFound", message)
    return Combined(best.replicas, best.metric, active, error, some_known=True)


def needs_metrics(bounds: Bounds, current: int) -> bool:
    """Whether the metrics decide at all: not when the target is at zero on purpose or outside of its bounds."""
    return not bounds.is_disabled(current) and bounds.min_replicas <= current <= bounds.max_replicas


def decide(
    bounds: Bounds,
    memory: Memory,
    *,
    current: int,
    metrics: Combined | None,
    floor: Floor | None,
    now: float,
    fallback: int | None = None,
) -> Decision:
    """Decide on one object.

    Args:
        bounds: what it may scale to.
        memory: what earlier decisions left behind.
        current: ``spec.replicas`` of the target's scale.
        metrics: their combined answer; None exactly where `needs_metrics` is false.
        floor: the forecast's answer, if it has one that counts.
        now: seconds.
        fallback: replicas to have at least where no metric has an answer; None: the present ones stay.
    """
    memory = memory.until(now).seeded(now, current)
    if bounds.is_disabled(current):
        message = "scaling is disabled since the replica count of the target is zero"
        disabled = Condition("ScalingActive", "False", "ScalingDisabled", message)
        return Decision(0, False, "", (GOT_SCALE, disabled), memory)
    if bounds.keep_at_zero(current):
        message = f"scaling is disabled while {bounds.max_source} are zero"
        asleep = Condition("ScalingActive", "False", "ScalingDisabled", message)
        return Decision(0, False, message, (GOT_SCALE, asleep), memory)
    if current > bounds.max_replicas:
        reason = f"Current number of replicas above {bounds.max_source}"
        return Decision(bounds.max_replicas, True, reason, (GOT_SCALE,), memory)
    if current < bounds.min_replicas:
        reason = f"Current number of replicas below {bounds.min_source}"
        return Decision(bounds.min_replicas, True, reason, (GOT_SCALE,), memory)
    if metrics is not None and not metrics.some_known and fallback is not None:
        return _fallback(bounds, memory, current, metrics, fallback, now)
    if metrics is None or metrics.replicas is None:
        active = (metrics.active,) if metrics else ()
        error = metrics.error if metrics else None
        return Decision(current, False, "", (GOT_SCALE, *active), memory, error=error)

    if floor is not None and metrics.error is not None:
        floor = replace(floor, replaces=False)  # it does not know what the broken metric would ask for
    desired, said_by = _wanted(metrics, floor)
    limited = normalise(bounds, memory, current=current, desired=desired, now=now)
    # With a behavior, old recommendations hold replicas and never raise them
    if bounds.release is not None and bounds.behavior is None and limited.stabilized < current:
        memory = memory.at_most(limited.stabilized)
    memory = memory.recommended(now, desired, longest_window(bounds))
    reason = ""
    if desired > current:
        reason = f"{said_by} above target"
    elif desired < current:
        reason = "All metrics below target" if desired == (metrics.replicas or 0) else f"{said_by} below target"
    conditions = (*_limit_conditions(limited), metrics.active)
    rescale = limited.replicas != current
    return Decision(limited.replicas, rescale, reason, conditions, memory, metrics.replicas, metrics.error)


def stopped(memory: Memory, *, current: int, why: Condition, now: float) -> Decision:
    """What is decided where another autoscaler scales the same target: nothing, bounds included."""
    return Decision(current, False, "", (GOT_SCALE, why), memory.until(now).held(now, current), error=why.message)


def paused(memory: Memory, *, current: int, annotation: str, replicas: int | None, now: float) -> Decision:
    """What is decided while scaling is paused: nothing, or exactly that number of replicas; bounds do not apply."""
    message = f"scaling is paused by annotation {annotation}"
    conditions = (GOT_SCALE, Condition("ScalingActive", "False", "Paused", message))
    wanted = current if replicas is None else replicas
    memory = memory.until(now).held(now, current)
    return Decision(wanted, wanted != current, message, conditions, memory, cause="Paused")


def _fallback(bounds: Bounds, memory: Memory, current: int, metrics: Combined, fallback: int, now: float) -> Decision:
    """While no metric has an answer, replicas rise to the fallback, within rates and bounds, and never fall."""
    # What metrics asked for before neither raises them further, nor does it delay the rise
    alone = replace(memory, recommendations=())
    limited = normalise(bounds, alone, current=current, desired=max(current, fallback), now=now)
    replicas = max(limited.replicas, current)
    if current <= fallback:  # else the first reading after an outage would take back at once what was raised
        memory = memory.recommended(now, replicas, longest_window(bounds))
    return Decision(
        replicas,
        replicas != current,
        "no metric has an answer, and spec.fallback asks for more",
        (*_limit_conditions(limited), metrics.active),
        memory,
        error=metrics.error,
        cause="Fallback" if current <= fallback else "",
    )


def carried_out(memory: Memory, bounds: Bounds, *, before: int, after: int, now: float) -> Memory:
    """The memory once a rescale was accepted; only behaviours ask about past changes."""
    if bounds.behavior is None or before == after:
        return memory
    return memory.scaled(now, after - before, longest_period(bounds))


def rescaled(replicas: int) -> Condition:
    """AbleToScale after a rescale was accepted."""
    message = f"the HPA controller was able to update the target scale to {replicas}"
    return Condition("AbleToScale", "True", "SucceededRescale", message)


def failed(reason: str, doing: str, why: str) -> Condition:
    """AbleToScale after the scale could not be read (FailedGetScale) or written (FailedUpdateScale)."""
    return Condition("AbleToScale", "False", reason, f"the HPA controller was unable to {doing}: {why}")


def _wanted(metrics: Combined, floor: Floor | None) -> tuple[int, str]:
    asked = metrics.replicas or 0
    if floor is None or (floor.replicas <= asked and not floor.replaces):
        return asked, metrics.metric
    return floor.replicas, f"forecast ({floor.source}) of {metrics.metric}"


def _limit_conditions(limited: Normalised) -> tuple[Condition, Condition]:
    is_limited: Literal["True", "False"] = "True" if limited.limited else "False"
    return (
        Condition("AbleToScale", "True", limited.able_reason, limited.able_message),
        Condition("ScalingLimited", is_limited, limited.limited_reason, limited.limited_message),
    )
