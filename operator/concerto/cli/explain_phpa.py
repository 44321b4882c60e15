"""`concerto explain phpa NAMESPACE/NAME`: how many replicas metrics, forecast and bounds require, and which decides.

Everything is read from the object: its spec, its annotations, and what the autoscaler has written in its status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.conditions import find_condition
from concerto.api.predictivehpa import MetricSpec, Pause, PredictiveHPA
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.initialisation import InitialisationSettings
from concerto.autoscaling.settings import ControllerSettings
from concerto.cli.top_node import aligned
from concerto.controllers.autoscaling.state import State, fallback_replicas, read_state
from concerto.kube import ClusterConfig, Object, Session
from concerto.kube.resources import PREDICTIVE_HPAS


@dataclass(frozen=True)
class _Requirement:
    """What requires a number of replicas.

    Attributes:
        source: its name.
        replicas: the number; None where it is not known.
        detail: where the number comes from.
    """

    source: str
    replicas: int | None
    detail: str


async def fetch(config: ClusterConfig, namespace: str, name: str) -> Object:
    """The object as the API server holds it.

    Raises:
        KubeError: it cannot be read.
    """
    async with await Session.open(config) as session:
        return await session.get(PREDICTIVE_HPAS.path(namespace, name))


def explain_phpa(obj: Object, now: float) -> str:
    """The decision on one object in words and as a table; ``now`` is in seconds.

    Raises:
        ValueError: spec or status cannot be read.
    """
    spec, status = PredictiveHPA.from_raw(obj), obj.get("status") or {}
    head = f"PredictiveHPA {spec.namespace}/{spec.name} scales {spec.target.kind} {spec.target.name}"
    if "lastDecision" not in status:
        return f"{head}.\nNothing was decided yet: is the autoscaler running (Deployment concerto-autoscaler)?"
    decided = status["lastDecision"]
    able = find_condition(status.get("conditions"), "AbleToScale") or {}
    bounds, desired = f"between {spec.min_replicas} and {spec.max_replicas}", status.get("desiredReplicas")
    if able.get("reason") == "FailedGetScale":  # what the status shows was true when the scale could be read
        lines, desired = [f"{head}, whose replicas are not known: {bounds}."], None
    else:
        lines = [f"{head}: {status.get('currentReplicas', 0)} replicas, {desired} desired, {bounds}."]
    lines.append(f"Since {_ago(decided['at'], now)}: {decided['message']}")
    lines += _starting(status, now)
    if (pause := Pause.from_metadata(obj["metadata"])) is not None:
        lines.append(f"Scaling is paused by annotation {pause.annotation}.")
    lines += ["", aligned(_rows(_requirements(spec, status, read_state(spec, status), now), desired))]
    if condition := [c for c in status.get("conditions") or () if _is_wrong(c)]:
        lines += ["", *(f"{c['type']} is {c['status']} ({c['reason']}): {c['message']}" for c in condition)]
    return "\n".join(lines)


def _starting(status: Object, now: float) -> list[str]:
    """How long pods wait for a node and take to start, as far as that is known."""
    learned, waiting = status.get("initialization") or {}, status.get("waitingPods")
    lines = []
    if learned.get("pods"):
        lines.append(f"Pods take {learned['seconds']:.0f} s from their binding to Ready.")
    if (wait := learned.get("waitSeconds", 0.0)) >= 1.0:
        lines.append(f"Before that they wait {wait:.0f} s for a node.")
    if waiting:
        count, ago = waiting["count"], _ago(waiting["since"], now)
        who = "1 pod waits" if count == 1 else f"{count} pods wait"
        lines.append(f"{who} for a node, the oldest for {ago}. kubectl describe pod shows why.")
    return [" ".join(lines)] if lines else []


def _is_wrong(condition: Object) -> bool:
    if condition["type"] == "ScaledToZero":  # right either way
        return False
    expected = "False" if condition["type"] in ("ScalingLimited", "Reconciling", "Stalled") else "True"
    return bool(condition["status"] != expected) and condition["type"] not in ("Ready", "Stalled")


def _rows(requirements: list[_Requirement], desired: int | None) -> list[list[str]]:
    rows = [["SOURCE", "REPLICAS", "", "DETAIL"]]
    for each in requirements:
        # There are not fewer because of those that require as many as were decided on
        decides = "<" if each.replicas is not None and each.replicas == desired else ""
        rows.append([each.source, "-" if each.replicas is None else str(each.replicas), decides, each.detail])
    return rows


def _requirements(spec: PredictiveHPA, status: Object, state: State, now: float) -> list[_Requirement]:
    decided = status["lastDecision"]
    found = [_metrics(spec, status), _forecast(status)]
    found += _held(spec, status, state, now)
    found.append(_Requirement("spec.minReplicas", spec.min_replicas, "the lower bound"))
    for each in spec.schedules:
        if each.name in (status.get("openSchedules") or ()):
            number = each.replicas if each.min_replicas is None else each.min_replicas
            kind = "at least" if each.replicas is None else "exactly"
            found.append(_Requirement(f"schedule {each.name}", number, f"{kind}, until {each.end} in {each.time_zone}"))
    if spec.fallback is not None and decided["reason"] == "Fallback":
        found.append(_fallback(spec, state, now))
    return found


def _fallback(spec: PredictiveHPA, state: State, now: float) -> _Requirement:
    ahead = spec.prediction.horizon_seconds
    if ahead is None:
        ahead = state.initialisation.ahead(InitialisationSettings())
    replicas = fallback_replicas(spec, state, ahead, now)
    by_days = spec.fallback is not None and replicas > spec.fallback.replicas
    text = "no metric has an answer" + ("; earlier days needed this many at this time" if by_days else "")
    return _Requirement("spec.fallback", replicas, text)


def _metrics(spec: PredictiveHPA, status: Object) -> _Requirement:
    decided, texts = status["lastDecision"], []
    for current in status.get("currentMetrics") or ():
        # A metric that failed is not in the status
        metric = next((m for m in spec.metrics if _is_of(current, m)), None)
        if metric is not None and (text := _value(metric, current[metric.member]["current"])):
            texts.append(text)
    known = decided["reason"] not in ("NoAnswer", "ScalingDisabled", "Paused", "Bounds", "Fallback")
    replicas = decided.get("reactiveReplicas") if known else None
    return _Requirement("current metrics", replicas, "; ".join(texts) or "no reading")


def _is_of(current: Object, metric: MetricSpec) -> bool:
    """Whether an item of ``status.currentMetrics`` is this metric's."""
    shown = {k: v for k, v in (current.get(metric.member) or {}).items() if k != "current"}
    return bool(current["type"] == metric.type and shown == metric.identity)


def _value(metric: MetricSpec, values: Mapping[str, Any]) -> str:
    if (percent := values.get("averageUtilization")) is not None:
        return f"{metric.name} is {percent} % of requests, the target {metric.utilization} %"
    amount = values.get("averageValue", values.get("value"))
    return f"{metric.name} is {amount}" if amount else ""


def _forecast(status: Object) -> _Requirement:
    shown = status.get("forecast")
    if shown is None:
        reasons = [c["reason"] for c in status.get("conditions") or () if c["type"] == "Forecasting"]
        return _Requirement("forecast", None, f"none ({reasons[0]})" if reasons else "none")
    test = shown.get("backtest") or {}
    text = f"{shown['model']} expects a load of {shown['demand']:g}, at most {shown['upper']:g}, "
    text += f"within {shown['horizonSeconds']} s"
    if "errorPercent" in test:
        text += f"; its error was {test['errorPercent']} %"
    if "persistenceErrorPercent" in test:
        text += f" (of no change {test['persistenceErrorPercent']} %)"
    return _Requirement("forecast", shown.get("replicas"), text)


def _held(spec: PredictiveHPA, status: Object, state: State, now: float) -> list[_Requirement]:
    """The highest recommendation of the down window, which holds replicas up, and what is released before."""
    window = status.get("downscaleWindow") or {"seconds": ControllerSettings.downscale_stabilization_seconds}
    seconds, release = window["seconds"], window.get("release")
    holding = [r for r in state.memory.recommendations if r.at > now - seconds]
    if not holding:
        return []
    highest = max(holding, key=lambda r: (r.replicas, r.at))
    left = highest.at + seconds - now
    most = "at most " if release else ""
    text = f"made {now - highest.at:.0f} s ago; holds for {most}{left:.0f} s more "
    text += f"(window of {seconds:.0f} s, {_window_source(spec, seconds)})"
    found = [_Requirement("recent recommendation", highest.replicas, text)]
    if release:
        seconds = release["afterSeconds"]
        text = f"recommendations older than {seconds} s hold no more, if {release['minDrop']} or more replicas would "
        text += f"be released now, and not as many again within {seconds} s"
        found.append(_Requirement("early release", release["replicas"], text))
    return found


def _window_source(spec: PredictiveHPA, seconds: float) -> str:
    if spec.scale_down is not None and spec.scale_down.stabilization_seconds is not None:
        return "behavior.scaleDown"
    given = spec.prediction.downscale_stabilization_seconds
    return "by default" if given is None or round(given) != seconds else "prediction.downscaleStabilization"


def _ago(stamp: str, now: float) -> str:
    seconds = max(now - parse_timestamp(stamp), 0.0)
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
