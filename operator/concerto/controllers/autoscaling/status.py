"""The status of a PredictiveHPA, and the sentence in it that explains the last decision."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from concerto.api.conditions import Condition, merge_conditions, with_progress
from concerto.api.pod import PodView
from concerto.api.predictivehpa import MetricSpec, PredictiveHPA
from concerto.api.timestamps import format_timestamp
from concerto.autoscaling.decision import Decision, Failure
from concerto.autoscaling.forecast_influence import ForecastResult
from concerto.autoscaling.replicas import MAX_REPLICAS, Proposal
from concerto.autoscaling.settings import Bounds

_MAX_TEXT = 4096
"""Letters that the CRD has room for in `historyOf` and `selector`."""
_FORECASTING = {
    "ForecastActive": "The model did no worse over the history than the assumption that nothing changes, or all "
    "earlier seasons rose at this time. The comparison weighs a missing replica more than a surplus one "
    "(spec.prediction.shortage).",
    "WarmingUp": "There are too few samples yet. Until there are more, only current metrics decide.",
    "NotBetterThanNoChange": "Each model did worse over the history than the assumption that nothing changes, or the "
    "load has not changed, so only current metrics decide.",
    "Expired": "The newest sample is too old for a forecast, so only current metrics decide; see ScalingActive.",
    "Off": "spec.prediction.mode is Off.",
    "NotAsked": "Metrics are not read, so there is no forecast; see AbleToScale, ScalingActive and lastDecision.",
}


def metric_statuses(metrics: Sequence[MetricSpec], outcomes: Sequence[Proposal | Failure]) -> list[dict[str, Any]]:
    """``status.currentMetrics``: those that could be had (a list may hold no null)."""
    statuses = []
    for spec, outcome in zip(metrics, outcomes, strict=False):
        if isinstance(outcome, Proposal):
            current: dict[str, Any] = {}
            if outcome.average_utilization is not None:
                current["averageUtilization"] = min(outcome.average_utilization, MAX_REPLICAS)  # 32 bits, too
            if outcome.average_value is not None:
                current["averageValue"] = _quantity(outcome.average_value)
            if outcome.value is not None:
                current["value"] = _quantity(outcome.value)
            statuses.append({"type": spec.type, spec.member: {**(spec.identity or {}), "current": current}})
    return statuses


def selector_status(selector: str) -> dict[str, str]:
    """``status.selector``; left out where it is too long: a part of a selector selects other pods, or is invalid."""
    return {"selector": selector} if len(selector) <= _MAX_TEXT else {}


def waiting_status(pods: Sequence[PodView]) -> dict[str, Any]:
    """``status.waitingPods``; left out where no pod waits for a node."""
    since = [pod.created for pod in pods if pod.waiting]
    if not since:
        return {}
    # A time of somebody's own making, such as the year 1, could not be written again
    return {"waitingPods": {"count": len(since), "since": format_timestamp(max(min(since), 1.0))}}


def window_status(bounds: Bounds) -> dict[str, Any]:
    """``status.downscaleWindow``: how long recommendations hold replicas up, and what is released before that."""
    window: dict[str, Any] = {"seconds": round(bounds.down_window_seconds)}
    own = bounds.behavior is not None and bounds.behavior.scale_down.stabilization_seconds is not None
    if bounds.release is not None and not own:
        release = bounds.release
        window["release"] = {
            "afterSeconds": round(release.window_seconds),
            "replicas": release.replicas,
            "minDrop": math.ceil(release.min_drop),
        }
    return {"downscaleWindow": window}


def forecast_status(
    result: ForecastResult, replicas: int | None, *, now: float, expires_at: float
) -> dict[str, Any] | None:
    """``status.forecast``; None without a forecast."""
    if result.expected is None or result.upper is None:
        return None
    backtest = {
        "errorPercent": result.error_percent,
        "underPredictionPercent": result.under_percent,
        "persistenceErrorPercent": result.persistence_percent,
        "samples": result.samples,
    }
    status: dict[str, Any] = {
        "model": result.model,
        "horizonSeconds": round(result.horizon_seconds),
        "at": format_timestamp(now + result.horizon_seconds),
        "expiresAt": format_timestamp(expires_at),
        "demand": round(result.expected, 2),
        "upper": round(result.upper, 2),
        "backtest": {k: round(v) for k, v in backtest.items() if v is not None},
    }
    if replicas is not None:
        status["replicas"] = replicas
    return status


def explain(
    decision: Decision,
    current: int,
    result: ForecastResult | None,
    floor: int | None,
    *,
    carried_out: bool,
    refused: str | None = None,
) -> str:
    """The last decision in one sentence.

    Args:
        decision: what was decided.
        current: replicas before.
        result: of the forecast, if there is one.
        floor: what the forecast asks for, if it is active.
        carried_out: that decisions are (in a preview they are not).
        refused: why this one could not be; None if it was, or nothing had to be done.
    """
    if decision.error is not None and decision.metrics_replicas is None and not decision.rescale:
        return f"Kept {current} replicas: {decision.error.rstrip('.')}."
    if decision.metrics_replicas is None and not decision.rescale:
        return f"Left {current} replicas alone: {decision.reason or 'the target is scaled to zero'}."
    did = f"Kept {current} replicas"
    if decision.rescale:
        verb = "Scaled" if carried_out else "Would scale"
        if refused is not None:
            verb = "Could not scale"
        did = f"{verb} from {current} to {decision.replicas} replicas"
        did += f" ({refused.rstrip('.')})" if refused is not None else ""
    if decision.metrics_replicas is None:
        return f"{did}: {decision.reason}."
    parts = [f"current metrics ask for {decision.metrics_replicas}"]
    if result is not None and floor is not None and result.expected is not None:
        parts.append(
            f"{result.model} expects a load of {result.expected:.1f} replicas "
            f"within {result.horizon_seconds:.0f} s and asks for {floor}"
        )
    elif result is not None:
        parts.append(f"the forecast is not active ({result.reason})")
    if decision.error is not None:
        parts.append(decision.error.rstrip("."))
    limited = {c.type: c for c in decision.conditions}
    stable, limit = limited.get("AbleToScale"), limited.get("ScalingLimited")
    if stable is not None and stable.reason in ("ScaleUpStabilized", "ScaleDownStabilized"):
        parts.append(stable.message)
    if limit is not None and limit.status == "True":
        parts.append(limit.message)
    return f"{did}: {'; '.join(parts)}."


def why(decision: Decision, floor: int | None, *, replaces: bool) -> str:
    """What decided, as a word; ``replaces``: the forecast stands instead of the metrics' answer."""
    if decision.cause:
        return decision.cause
    if decision.metrics_replicas is None:
        return "Bounds" if decision.rescale else "NoAnswer" if decision.error else "ScalingDisabled"
    if floor is not None and (floor > decision.metrics_replicas or (replaces and floor < decision.metrics_replicas)):
        return "Forecast"
    return "Metrics"


def all_conditions(
    decided: Sequence[Condition],
    result: ForecastResult | None,
    *,
    off: bool,
    generation: int,
    old: Sequence[Mapping[str, Any]],
    now: str,
) -> list[dict[str, Any]]:
    """The conditions of autoscaling/v2, Forecasting, and those that kstatus reads."""
    reason = result.reason if result else "Off" if off else "NotAsked"
    forecasting = Condition(
        "Forecasting", "True" if reason == "ForecastActive" else "False", reason, _FORECASTING[reason]
    )
    wrong = next((c for c in decided if c.type in ("AbleToScale", "ScalingActive") and c.status == "False"), None)
    asleep = wrong is not None and wrong.reason in ("ScalingDisabled", "Paused")
    if wrong is None or asleep:
        ready = Condition("Ready", "True", wrong.reason if wrong else "Scaling", wrong.message if wrong else "The target is scaled.")  # fmt: skip # noqa: E501
    else:
        ready = Condition("Ready", "False", wrong.reason, wrong.message)
    conditions = [*decided, forecasting, *with_progress(ready)]
    return merge_conditions(old, conditions, now=now, observed_generation=generation)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch that makes a status of ``old`` into ``new``: removed members become null."""
    patch: dict[str, Any] = {k: None for k in old if k not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch


def spoken(decision_status: Mapping[str, Any]) -> dict[str, Any]:
    """A decision without its time, to compare it with another."""
    return {k: v for k, v in decision_status.items() if k != "at"}


def last_decision(
    old: Mapping[str, Any] | None,
    decision: Decision,
    message: str,
    floor: int | None,
    *,
    now: float,
    replaces: bool = False,
) -> dict[str, Any]:
    """``status.lastDecision``; its time is that of its last change."""
    new: dict[str, Any] = {
        "reason": why(decision, floor, replaces=replaces),
        "message": message[:1024],
        "replicas": decision.replicas,
    }
    if decision.metrics_replicas is not None:
        new["reactiveReplicas"] = decision.metrics_replicas
    if floor is not None:
        new["predictedReplicas"] = floor
    return _since_new(old, new, now)


def no_decision(old: Mapping[str, Any] | None, wrong: Condition, *, now: float) -> dict[str, Any]:
    """``status.lastDecision`` where the target's scale could not even be read: no number of replicas is known."""
    new = {"reason": "NoAnswer", "message": f"Scaled nothing: {wrong.message.rstrip('.')}."[:1024]}
    return _since_new(old, new, now)


def _since_new(old: Mapping[str, Any] | None, new: Mapping[str, Any], now: float) -> dict[str, Any]:
    return dict(old) if old is not None and spoken(old) == new else {"at": format_timestamp(now), **new}


def target_digest(spec: PredictiveHPA) -> str:
    """What demand, counted in replicas, is of and relative to: with another, old history means something else."""
    metrics = ";".join(",".join("" if part is None else str(part) for part in m.target_key) for m in spec.metrics)
    text = f"{_target_text(spec)};{metrics}"
    return text if len(text) <= _MAX_TEXT else hashlib.sha256(text.encode()).hexdigest()


def is_of_other_target(digest: str, spec: PredictiveHPA) -> bool:
    """Whether ``target_digest`` gave that for an object with another target; a hash does not show it."""
    return ";" in digest and not digest.startswith(f"{_target_text(spec)};")


def _target_text(spec: PredictiveHPA) -> str:
    return f"{spec.target.group},{spec.target.kind},{spec.target.name}"


def _quantity(milli: int) -> str:
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
