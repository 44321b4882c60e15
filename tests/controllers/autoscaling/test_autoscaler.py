"""PredictiveHPA without a server: what is remembered, found and said."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from concerto.api.conditions import Condition
from concerto.api.pod_trimming import trim_target_pod
from concerto.api.predictivehpa import PredictiveHPA
from concerto.api.selector_text import parse_selector
from concerto.api.timestamps import format_timestamp
from concerto.autoscaling.behavior import Memory, Recommendation, ScaleEvent
from concerto.autoscaling.decision import Decision, Failure
from concerto.autoscaling.forecast_influence import ForecastResult
from concerto.autoscaling.history import Ring
from concerto.autoscaling.initialisation import Initialisation, InitialisationSettings
from concerto.autoscaling.pods import Gone
from concerto.autoscaling.replicas import Proposal
from concerto.autoscaling.settings import DEFAULT_SCALE_DOWN, ControllerSettings, Release
from concerto.controllers.autoscaling.capacity_reservation import OWNER_LABEL, build_reservation
from concerto.controllers.autoscaling.forecast_metrics import ForecastMetrics, ShownLoad
from concerto.controllers.autoscaling.measurements import load_of
from concerto.controllers.autoscaling.pods_by_label import PodsByLabel, SelectorIndex
from concerto.controllers.autoscaling.spec import bounds_of, models_of
from concerto.controllers.autoscaling.state import State, read_state, write_state
from concerto.controllers.autoscaling.status import (
    all_conditions,
    explain,
    forecast_status,
    last_decision,
    merge_patch,
    metric_statuses,
    target_digest,
    waiting_status,
    why,
    window_status,
)
from concerto.controllers.autoscaling.targets import scale_of
from concerto.kube import Resource
from support.crd_schemas import problems
from support.pod_views import target_pod

NOW = 1_772_366_400.0
STAMP = "2026-03-01T12:00:00Z"


def raw(**spec):
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PredictiveHPA",
        "metadata": {"namespace": "n", "name": "web", "uid": "u", "generation": 2, "creationTimestamp": STAMP},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 9}
        | spec,
    }


SPEC = PredictiveHPA.from_raw(raw())
STATE = State(
    Memory((Recommendation(NOW - 10.25, 4),), (ScaleEvent(NOW - 5.5, -2),)),
    Initialisation((30.0, 31.0), "abc", (90.0, 95.0), NOW - 60, (0.0, 2.0)),
    Ring(15, 240).add(NOW - 20, 2.5).add(NOW, 3.25),
    Ring(300, 864).add(NOW, 3.0),
)
LOAD = ShownLoad(4.5, 5, 6, 2, 30.0, 45.0)
RESULT = ForecastResult("ForecastActive", "Holt", 4.2, 5.1, 67.5, 12.4, 40.0, 19.0, 96)


def test_a_restart_forgets_nothing():
    assert read_state(SPEC, write_state(STATE, InitialisationSettings())) == STATE


def test_history_on_another_grid_begins_anew_and_the_rest_stays():
    spec = PredictiveHPA.from_raw(raw(prediction={"historyLength": "1344h"}))
    state = read_state(spec, write_state(STATE, InitialisationSettings()))
    assert state.coarse.values == ()
    assert state.fine == STATE.fine and state.memory == STATE.memory


def test_an_empty_status_is_an_empty_state():
    assert read_state(SPEC, {}) == State()


def decision(**kw):
    conditions = (
        Condition("AbleToScale", "True", "ReadyForNewScale", "recommended size matches current size"),
        Condition("ScalingLimited", "False", "DesiredWithinRange", "the desired count is within the acceptable range"),
        Condition("ScalingActive", "True", "ValidMetricFound", "it was"),
    )
    return replace(Decision(5, True, "cpu above target", conditions, Memory(), 4), **kw)


def test_a_whole_status_fits_the_crd():
    outcomes = [Proposal(4, "cpu", 3.5, average_value=71, average_utilization=71), Failure("FailedGetPodsMetric", "x")]
    status = {
        "observedGeneration": 2,
        "currentReplicas": 3,
        "desiredReplicas": 5,
        "selector": "app=web",
        "historyOf": target_digest(SPEC),
        "lastScaleTime": STAMP,
        "currentMetrics": metric_statuses([*SPEC.metrics, *SPEC.metrics], outcomes),
        "lastDecision": last_decision(None, decision(), "Scaled.", 5, now=NOW),
        "conditions": all_conditions(decision().conditions, RESULT, off=False, generation=2, old=(), now=STAMP),
        "forecast": forecast_status(RESULT, 5, now=NOW, expires_at=NOW + 120),
        **window_status(replace(bounds_of(SPEC, ControllerSettings()), release=Release(5, 1.25, 45.0))),
        **waiting_status([target_pod(ready=None, phase="Pending")]),
        **write_state(STATE, InitialisationSettings()),
    }
    assert problems(raw() | {"status": status}) == []
    assert len(status["currentMetrics"]) == 1  # the broken one is left out, not null


SENTENCES = {
    "a rise by the forecast": (
        decision(),
        RESULT,
        5,
        "Scaled from 3 to 5 replicas: current metrics ask for 4; Holt expects a load of 4.2 replicas within 68 s "
        "and asks for 5.",
    ),
    "nothing to do": (
        decision(replicas=3, rescale=False, metrics_replicas=3),
        replace(RESULT, reason="WarmingUp", expected=None),
        None,
        "Kept 3 replicas: current metrics ask for 3; the forecast is not active (WarmingUp).",
    ),
    "no answer": (
        decision(replicas=3, rescale=False, metrics_replicas=None, error="cpu is gone"),
        None,
        None,
        "Kept 3 replicas: cpu is gone.",
    ),
    "one metric is broken, and the others ask for more": (
        decision(error="invalid metrics (1 invalid out of 2), first error is: queue is gone"),
        None,
        None,
        "Scaled from 3 to 5 replicas: current metrics ask for 4; invalid metrics (1 invalid out of 2), first error "
        "is: queue is gone.",
    ),
    "out of bounds": (
        decision(replicas=9, metrics_replicas=None, reason="Current number of replicas above Spec.MaxReplicas"),
        None,
        None,
        "Scaled from 3 to 9 replicas: Current number of replicas above Spec.MaxReplicas.",
    ),
}


@pytest.mark.parametrize(("made", "result", "floor", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_last_decision_is_one_sentence(made, result, floor, sentence):
    assert explain(made, 3, result, floor, carried_out=True) == sentence


def test_a_preview_says_what_would_have_been_done():
    assert explain(decision(), 3, None, None, carried_out=False).startswith("Would scale from 3 to 5 replicas")


@pytest.mark.parametrize(
    ("observed_at", "window", "at"),
    [(NOW - 10, 30.0, NOW - 25), (NOW + 3600, 30.0, NOW), (-6e10, 30.0, 0.0), (NOW, 1e15, 0.0), (None, 0.0, NOW)],
    ids=["as it should be", "from the future", "from before all times", "over all times", "no time"],
)
def test_a_load_has_a_time_that_history_can_hold(observed_at, window, at):
    load = load_of([Proposal(4, "qps", 3.5, observed_at=observed_at, window=window)], NOW)
    assert (load.demand, load.observed_at) == (3.5, at)
    ring = Ring(15, 240).add(load.observed_at, load.demand)
    assert problems(raw() | {"status": write_state(replace(STATE, fine=ring), InitialisationSettings())}) == []


WORDS = {
    "the metrics": (4, 3, False, "Metrics"),
    "a forecast above them": (4, 5, False, "Forecast"),
    "a forecast that replaces them": (4, 3, True, "Forecast"),
    "no forecast": (4, None, False, "Metrics"),
}


@pytest.mark.parametrize(("metrics", "floor", "replaces", "word"), WORDS.values(), ids=WORDS)
def test_what_decided_in_a_word(metrics, floor, replaces, word):
    assert why(decision(metrics_replicas=metrics), floor, replaces=replaces) == word


def test_targets_are_distinguished_however_much_there_is_to_them():
    def of(last):
        names = [f"{i:02}-{'x' * 240}" for i in range(15)] + [last]
        target = {"type": "AverageValue", "averageValue": "1"}
        label = {"matchLabels": {"a": "y" * 63}}
        external = [{"metric": {"name": n, "selector": label}, "target": target} for n in names]
        return target_digest(
            PredictiveHPA.from_raw(raw(metrics=[{"type": "External", "external": e} for e in external]))
        )

    assert of("one") != of("two")
    assert len(of("one")) <= 4096


def test_what_the_metrics_ask_for_has_no_number_where_they_have_no_answer():
    made = last_decision(None, decision(metrics_replicas=None, error="gone"), "Kept.", None, now=NOW)
    assert made["replicas"] == 5 and "reactiveReplicas" not in made


def test_a_decision_that_says_nothing_new_keeps_its_time():
    first = last_decision(None, decision(), "Scaled.", 5, now=NOW)
    assert last_decision(first, decision(), "Scaled.", 5, now=NOW + 60) == first
    assert last_decision(first, decision(), "Kept.", 5, now=NOW + 60)["at"] != first["at"]


def not_so(kind, reason):
    return (Condition(kind, "False", reason, "why"),)


READY = {
    "all is well": ((), ("True", "Scaling"), "False"),
    "asleep on purpose": (not_so("ScalingActive", "ScalingDisabled"), ("True", "ScalingDisabled"), "False"),
    "no metric": (not_so("ScalingActive", "FailedGetPodsMetric"), ("False", "FailedGetPodsMetric"), "True"),
    "no target": (not_so("AbleToScale", "FailedGetScale"), ("False", "FailedGetScale"), "True"),
}


@pytest.mark.parametrize(("decided", "ready", "stalled"), READY.values(), ids=READY)
def test_what_kstatus_reads(decided, ready, stalled):
    found = {c["type"]: c for c in all_conditions(decided, None, off=True, generation=1, old=(), now=STAMP)}
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ready
    assert found["Stalled"]["status"] == stalled
    assert found["Forecasting"]["reason"] == "Off"


def test_a_forecast_without_influence_may_have_done_worse_or_have_had_nothing_to_forecast():
    inactive = ForecastResult("NotBetterThanNoChange", "Linear", 2.0, 2.0, 100.0)
    found = {c["type"]: c for c in all_conditions((), inactive, off=False, generation=1, old=(), now=STAMP)}
    assert found["Forecasting"]["reason"] == "NotBetterThanNoChange"
    assert "did worse" in found["Forecasting"]["message"]
    assert "or the load has not changed" in found["Forecasting"]["message"]


def test_a_patch_says_null_for_what_is_gone_and_nothing_for_what_stays():
    old = {"a": 1, "b": {"x": 1, "y": 2}, "c": [1]}
    assert merge_patch(old, {"a": 1, "b": {"x": 3}, "c": [1, 2]}) == {"b": {"y": None, "x": 3}, "c": [1, 2]}
    assert merge_patch(old, old) == {}


def test_a_behavior_of_one_direction_gets_the_other_from_the_defaults():
    spec = PredictiveHPA.from_raw(raw(behavior={"scaleUp": {"stabilizationWindowSeconds": 60}}))
    behavior = bounds_of(spec, ControllerSettings()).behavior
    assert behavior.scale_up.stabilization_seconds == 60
    assert behavior.scale_down == DEFAULT_SCALE_DOWN
    assert bounds_of(SPEC, ControllerSettings()).behavior is None


def test_auto_chooses_among_lines_and_seasons_and_holt_is_there_for_who_names_it():
    assert models_of(SPEC) == ("Linear", "Seasonal")
    assert models_of(PredictiveHPA.from_raw(raw(prediction={"model": "Holt"}))) == ("Holt",)


def pod(name, **labels):
    meta = {"namespace": "n", "name": name, "uid": name, "labels": labels, "creationTimestamp": STAMP}
    return {"metadata": meta, "spec": {"containers": []}}


def test_pods_are_found_by_any_selector_and_forgotten_when_gone():
    index = PodsByLabel()
    first, second = pod("a", app="web", tier="x"), pod("b", app="web")
    index.on_change(None, first)
    index.on_change(None, second)
    assert [p.name for p in index.select("n", parse_selector("app=web"))] == ["a", "b"]
    assert [p.name for p in index.select("n", parse_selector("!tier"))] == ["b"]
    assert index.select("elsewhere", parse_selector("app=web")) == []
    index.on_change(second, pod("b", app="db"))
    index.on_change(first, None)
    assert index.select("n", parse_selector("app=web")) == []
    assert [p.name for p in index.select("n", parse_selector("app in (db)"))] == ["b"]


def test_selectors_that_claim_the_same_pods_are_distinguished_from_those_that_do_not():
    selectors = SelectorIndex(PodsByLabel())
    selectors.put(("n", "one"), parse_selector("app=web"))
    selectors.put(("n", "all"), parse_selector("tier"))
    selectors.put(("m", "one"), parse_selector("app=web"))
    assert selectors.claimants("n", [{"app": "web"}], 1000).keys == [("n", "one")]
    assert selectors.claimants("n", [{"app": "web", "tier": "x"}], 1000).keys == [("n", "all"), ("n", "one")]
    selectors.put(("n", "all"), None)
    assert selectors.claimants("n", [{"app": "web", "tier": "x"}], 1000).keys == [("n", "one")]


def test_room_for_a_rise_is_a_reservation_that_the_crd_takes():
    selector = parse_selector("app=web,tier in (a,b),!canary")
    made = build_reservation(SPEC, selector, count=3, horizon_seconds=67.5, now=NOW)
    assert problems(made) == []
    assert made["spec"]["count"] == 3
    assert made["spec"]["ttlSeconds"] == 135
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert made["spec"]["podSelector"]["matchExpressions"][-1] == {"key": "canary", "operator": "DoesNotExist"}


@pytest.mark.parametrize("length", [62, 63, 64, 227, 228, 229, 253])
def test_a_reservation_for_a_long_name_has_names_that_are_taken(length):
    name = ("a." * 127)[: length - 1] + "a"
    spec = replace(SPEC, name=name)
    made = build_reservation(spec, parse_selector("app=web"), count=1, horizon_seconds=60.0, now=NOW)
    dns = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    assert re.fullmatch(dns, made["metadata"]["name"]) and len(made["metadata"]["name"]) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?", made["metadata"]["labels"][OWNER_LABEL])


def test_a_scale_is_read_off_a_workload_with_its_version_as_precondition():
    workload = {
        "metadata": {"namespace": "n", "name": "web", "uid": "u", "resourceVersion": "7"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"replicas": 2},
    }
    scale = scale_of(Resource("apps", "v1", "deployments", "Deployment", True), workload)
    assert (scale.replicas, scale.existing, scale.selector) == (3, 2, "app=web")
    assert scale.raw["metadata"]["resourceVersion"] == "7"


SERIES = {
    "concerto_phpa_demand": 4.5,
    "concerto_phpa_replicas": 5,
    "concerto_phpa_desired_replicas": 6,
    "concerto_phpa_forecast_demand": RESULT.expected,
    "concerto_phpa_forecast_demand_upper": RESULT.upper,
    "concerto_phpa_forecast_horizon_seconds": RESULT.horizon_seconds,
    "concerto_phpa_waiting_pods": 2,
    "concerto_phpa_start_seconds": 30.0,
    "concerto_phpa_wait_seconds": 45.0,
    "concerto_phpa_forecast_error_percent": 12.4,
    "concerto_phpa_forecast_active": 1.0,
    "concerto_phpa_ready": 1.0,
}


def shown(registry, name, namespace="n"):
    return {metric: registry.get_sample_value(metric, {"namespace": namespace, "name": name}) for metric in SERIES}


def test_an_objects_load_replicas_and_forecast_are_metrics_and_go_with_it():
    registry = CollectorRegistry()
    metrics = ForecastMetrics(registry)
    metrics.observe(("n", "web"), RESULT, LOAD)
    metrics.observe_ready(("n", "web"), ready=True)
    assert shown(registry, "web") == SERIES
    metrics.forget("n", "web")
    metrics.forget("n", "never-seen")
    # a status that was under way when the object was deleted
    metrics.observe_ready(("n", "web"), ready=True)
    assert set(shown(registry, "web").values()) == {None}


def test_of_an_object_whose_target_cannot_be_read_that_is_all_that_is_shown():
    registry = CollectorRegistry()
    metrics = ForecastMetrics(registry)
    metrics.observe(("n", "web"), RESULT, LOAD)
    metrics.observe(("n", "web"), None, None)
    metrics.observe_ready(("n", "web"), ready=False)
    assert {m: v for m, v in shown(registry, "web").items() if v is not None} == {"concerto_phpa_ready": 0.0}


def test_what_is_no_longer_known_of_an_object_has_no_series():
    registry = CollectorRegistry()
    metrics = ForecastMetrics(registry)
    metrics.observe(("n", "web"), RESULT, LOAD)
    metrics.observe(("n", "web"), None, ShownLoad(None, 5, 5, 0, None, None))
    known = {metric: value for metric, value in shown(registry, "web").items() if value is not None}
    assert known == {
        "concerto_phpa_replicas": 5,
        "concerto_phpa_desired_replicas": 5,
        "concerto_phpa_waiting_pods": 0,
    }


def test_objects_beyond_the_bound_have_no_series_until_another_goes():
    registry = CollectorRegistry()
    metrics = ForecastMetrics(registry, max_objects=1)

    def observe(name):
        metrics.observe(("n", name), RESULT, LOAD)
        metrics.observe_ready(("n", name), ready=True)

    observe("web")
    observe("late")
    assert set(shown(registry, "late").values()) == {None}
    assert registry.get_sample_value("concerto_phpa_objects_without_series") == 1
    observe("web")
    assert shown(registry, "web") == SERIES
    metrics.forget("n", "web")
    observe("late")
    assert shown(registry, "late") == SERIES
    assert registry.get_sample_value("concerto_phpa_objects_without_series") == 0


def test_a_pod_that_is_deleted_has_shared_the_load_until_then():
    index, selector = PodsByLabel(), parse_selector("app=web")

    def pod(name, ready="True", **meta):
        since = "2026-03-01T11:00:00Z"
        named = {"namespace": "n", "name": name, "uid": name, "labels": {"app": "web"}}
        return {
            "metadata": named | {"creationTimestamp": since} | meta,
            "spec": {},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}],
            },
        }

    ends = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}
    for each, ready in (("a", "True"), ("b", "False"), ("c", "True")):
        index.on_change(None, pod(each, ready))
    for each, ready in (("a", "True"), ("b", "False")):
        index.on_change(pod(each, ready), pod(each, "False", **ends))
    index.on_change(pod("a", "False", **ends), None)
    assert index.gone("n", selector) == [Gone(NOW - 3600, NOW)], "b took none, c takes some still"
    assert index.gone("n", parse_selector("app=other")) == index.gone("m", selector) == []
    later = {**ends, "deletionTimestamp": "2026-03-01T13:00:30Z"}
    index.on_change(pod("c"), pod("c", **later))
    assert [gone.until for gone in index.gone("n", selector)] == [NOW + 3600], "an hour ago is long ago"
    for each in ("b", "c"):
        index.on_change(pod(each), None)
    assert index.gone("n", selector) == []


FIRST = {
    "it becomes ready": ([("False", 5), ("True", 400)], 400),
    "it has no condition before": ([(None, 0), ("True", 400)], 400),
    "it is not ready again since": ([("False", 5), ("True", 400), ("False", 900)], 400),
    "it is ready a second time": ([("False", 5), ("True", 400), ("False", 900), ("True", 950)], 400),
    "it was ready when the operator came": ([("True", 400), ("False", 900), ("True", 950)], None),
    "it was ready before the operator came": ([("False", 900), ("True", 950)], None),
}


@pytest.mark.parametrize(("seen", "first"), FIRST.values(), ids=FIRST)
def test_when_a_pod_became_ready_for_the_first_time_is_remembered(seen, first):
    index, old = PodsByLabel(), None
    for ready, after in seen:
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": format_timestamp(NOW + after)}
        meta = {"namespace": "n", "name": "p", "uid": "p", "labels": {"app": "web"}, "creationTimestamp": STAMP}
        status = {"phase": "Running", "startTime": STAMP, "conditions": [condition] if ready else []}
        new = {"metadata": meta, "spec": {}, "status": status}
        index.on_change(old, new)
        old = new
    (view,) = index.select("n", parse_selector("app=web"))
    assert view.first_ready == (None if first is None else NOW + first)


WAITING = {"ready": None, "phase": "Pending", "started": None}
POD_STATES = {
    "one that serves": ({"node_name": "a"}, False),
    "one that starts on its node": (WAITING | {"node_name": "a"}, False),
    "one without a node": (WAITING, True),
    "one with a scheduling gate": (WAITING | {"gates": ("queue",)}, False),
    "one that is deleted": (WAITING | {"deleting": True}, False),
}


@pytest.mark.parametrize(("fields", "waits"), POD_STATES.values(), ids=POD_STATES)
def test_only_pods_without_a_node_wait_for_one(fields, waits):
    since = format_timestamp(NOW - 90)
    pods = [target_pod("a", created=NOW - 90, **fields), target_pod("b", created=NOW - 60, **fields)]
    assert waiting_status(pods) == ({"waitingPods": {"count": 2, "since": since}} if waits else {})


def test_a_pod_that_had_a_scheduling_gate_is_remembered():
    index, selector = PodsByLabel(), parse_selector("app=web")
    gated = {
        "metadata": {"namespace": "n", "name": "a", "uid": "a", "labels": {"app": "web"}, "creationTimestamp": STAMP},
        "spec": {"containers": [], "schedulingGates": [{"name": "one"}, {"name": "two"}]},
    }
    free = gated | {"spec": {"containers": []}}
    trimmed = [trim_target_pod(obj) for obj in (gated, free, free)]
    for before, after in zip([None, *trimmed], trimmed, strict=False):
        index.on_change(before, after)
    (pod,) = index.select("n", selector)
    assert (pod.was_gated, pod.waiting) == (True, True)
    index.on_change(trimmed[-1], None)
    index.on_change(None, trimmed[-1])
    assert not index.select("n", selector)[0].was_gated, "another pod of that name"


def window(**spec):
    bounds = replace(bounds_of(PredictiveHPA.from_raw(raw(**spec)), ControllerSettings()), release=Release(5, 1.25, 45))
    return window_status(bounds)["downscaleWindow"]


def test_the_status_has_the_window_and_what_is_released_before_it_is_over():
    release = {"afterSeconds": 45, "replicas": 5, "minDrop": 2}
    assert window() == {"seconds": 300, "release": release}
    assert window(behavior={"scaleUp": {}}) == {"seconds": 300, "release": release}
    own = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    assert window(behavior=own) == {"seconds": 60}, "a behaviour's own window always counts"
