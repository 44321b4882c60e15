"""`concerto explain phpa` and `concerto top phpa`: what an object's status shows, as tables and as a picture."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from concerto.api.timestamps import format_timestamp
from concerto.autoscaling.behavior import Memory, Recommendation
from concerto.autoscaling.history import Ring
from concerto.autoscaling.initialisation import Initialisation, InitialisationSettings
from concerto.cli.explain import split_name
from concerto.cli.explain_phpa import explain_phpa
from concerto.cli.main import main
from concerto.cli.top_phpa import load_table, plot_load, series
from concerto.controllers.autoscaling.state import State, write_state

NOW = 1_800_000_000.0
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}


def rising(step, length):
    ring = Ring(step, length)
    for i in range(length):
        ring = ring.add(NOW - step * (length - i), 2.0 + i / length)
    return ring


def web(**status):
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "minReplicas": 2, "maxReplicas": 20}
    meta = {"namespace": "shop", "name": "web", "uid": "u", "generation": 1}
    obj = {"metadata": meta, "spec": spec | {"metrics": [CPU]}}
    memory = Memory((Recommendation(NOW - 100.0, 6), Recommendation(NOW - 10.0, 5)))
    state = State(memory, Initialisation((30.0,)), rising(15, 240), rising(300, 864))
    shown = {
        "currentReplicas": 6,
        "desiredReplicas": 6,
        "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 33}}}],
        "lastDecision": {
            "at": format_timestamp(NOW - 30.0),
            "reason": "Metrics",
            "message": "Kept 6 replicas: current metrics ask for 4.",
            "reactiveReplicas": 4,
            "predictedReplicas": 5,
            "replicas": 6,
        },
        "forecast": {
            "model": "Linear",
            "horizonSeconds": 68,
            "at": format_timestamp(NOW + 68.0),
            "demand": 4.2,
            "upper": 5.1,
            "replicas": 5,
            "backtest": {"errorPercent": 9, "persistenceErrorPercent": 14},
        },
        "conditions": [],
    }
    return obj | {"status": write_state(state, InitialisationSettings()) | shown | status}


def row(text, source):
    return next(line for line in text.splitlines() if line.startswith(source))


def test_a_metric_that_failed_does_not_hide_the_others():
    target = {"type": "AverageValue", "averageValue": "10"}
    queue = {"type": "Prometheus", "prometheus": {"name": "queue", "query": "sum(queue)", "target": target}}
    obj = web(
        currentMetrics=[{"type": "Prometheus", "prometheus": {"name": "queue", "current": {"averageValue": "7"}}}]
    )
    obj["spec"]["metrics"] = [CPU, queue]
    assert "queue is 7" in explain_phpa(obj, NOW)


def test_all_that_requires_replicas_is_shown_with_its_detail_and_what_decides():
    text = explain_phpa(web(), NOW)
    assert "PredictiveHPA shop/web scales Deployment web: 6 replicas, 6 desired, between 2 and 20." in text
    assert "Since 30 s: Kept 6 replicas: current metrics ask for 4." in text
    assert row(text, "current metrics").split()[2:4] == ["4", "cpu"]
    assert row(text, "current metrics").endswith("cpu is 33 % of requests, the target 50 %")
    assert row(text, "forecast").endswith(
        "Linear expects a load of 4.2, at most 5.1, within 68 s; its error was 9 % (of no change 14 %)"
    )
    assert row(text, "recent recommendation").split()[2:4] == ["6", "<"]
    assert row(text, "recent recommendation").endswith(
        "made 100 s ago; holds for 200 s more (window of 300 s, by default)"
    )
    assert row(text, "spec.minReplicas").split()[1:3] == ["2", "the"]


WINDOWS = {
    "the autoscaler's": ({}, {"seconds": 120}, "holds for 20 s more (window of 120 s, by default)"),
    "of the behaviour": (
        {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}}},
        {"seconds": 600},
        "holds for 500 s more (window of 600 s, behavior.scaleDown)",
    ),
    "of the forecast": (
        {"prediction": {"downscaleStabilization": "3m"}},
        {"seconds": 180},
        "holds for 80 s more (window of 180 s, prediction.downscaleStabilization)",
    ),
    "not this one of the forecast, which is not active": (
        {"prediction": {"downscaleStabilization": "3m"}},
        {"seconds": 300},
        "holds for 200 s more (window of 300 s, by default)",
    ),
}


@pytest.mark.parametrize(("fields", "window", "words"), WINDOWS.values(), ids=WINDOWS)
def test_the_window_is_the_one_that_the_autoscaler_went_by(fields, window, words):
    obj = web(downscaleWindow=window)
    obj["spec"] |= fields
    assert row(explain_phpa(obj, NOW), "recent recommendation").endswith(f"made 100 s ago; {words}")


def test_what_an_active_forecast_releases_is_shown():
    release = {"afterSeconds": 45, "replicas": 5, "minDrop": 2}
    text = explain_phpa(web(downscaleWindow={"seconds": 300, "release": release}), NOW)
    assert "holds for at most 200 s more" in row(text, "recent recommendation")
    assert row(text, "early release").split()[2] == "5"
    assert row(text, "early release").endswith(
        "recommendations older than 45 s hold no more, if 2 or more replicas would be released now, "
        "and not as many again within 45 s"
    )


FALLBACKS = {
    "its own number": ({"replicas": 7}, "7", "no metric has an answer"),
    "what earlier days needed": (
        {"replicas": 1, "earlierDays": True},
        "3",
        "no metric has an answer; earlier days needed this many at this time",
    ),
}


@pytest.mark.parametrize(("fallback", "replicas", "words"), FALLBACKS.values(), ids=FALLBACKS)
def test_the_fallback_is_shown_while_it_counts(fallback, replicas, words):
    obj = web(lastDecision={**web()["status"]["lastDecision"], "reason": "Fallback"})
    obj["spec"]["fallback"] = fallback
    text = row(explain_phpa(obj, NOW), "spec.fallback")
    assert text.split()[1] == replicas and text.endswith(words)


STARTING = {
    "nothing is known": ({"pods": 0, "seconds": 60.0}, None, ""),
    "pods find room at once": (
        {"pods": 1, "seconds": 30.0, "waitSeconds": 0.3},
        None,
        "Pods take 30 s from their binding to Ready.",
    ),
    "pods wait": (
        {"pods": 4, "seconds": 30.0, "waitSeconds": 90.0},
        {"count": 2, "since": format_timestamp(NOW - 300.0)},
        "Pods take 30 s from their binding to Ready. Before that they wait 90 s for a node. "
        "2 pods wait for a node, the oldest for 5 min. kubectl describe pod shows why.",
    ),
}


@pytest.mark.parametrize(("learned", "waiting", "words"), STARTING.values(), ids=STARTING)
def test_what_delays_pods_is_shown(learned, waiting, words):
    lines = explain_phpa(web(initialization=learned, waitingPods=waiting), NOW).splitlines()
    assert lines[2] == words


def test_schedules_pause_and_conditions_are_shown():
    obj = web(
        openSchedules=["office"],
        conditions=[
            {"type": "ScalingActive", "status": "False", "reason": "Paused", "message": "scaling is paused"},
            {"type": "Stalled", "status": "False", "reason": "Paused", "message": ""},
        ],
    )
    obj["metadata"]["annotations"] = {"concerto.dev/paused": "true"}
    obj["spec"]["schedules"] = [
        {"name": "office", "timeZone": "Europe/Berlin", "start": "0 8 * * *", "end": "0 18 * * *", "minReplicas": 6}
    ]
    text = explain_phpa(obj, NOW)
    assert "Scaling is paused by annotation concerto.dev/paused." in text
    assert row(text, "schedule office").endswith("at least, until 0 18 * * * in Europe/Berlin")
    assert "ScalingActive is False (Paused): scaling is paused" in text
    assert "Stalled" not in text


WARMING_UP = {"type": "Forecasting", "status": "False", "reason": "WarmingUp", "message": "m"}
UNKNOWN = {
    "metrics without an answer": (
        {"lastDecision": {**web()["status"]["lastDecision"], "reason": "NoAnswer"}},
        ["current", "metrics", "-"],
    ),
    "no forecast": ({"forecast": None, "conditions": [WARMING_UP]}, ["forecast", "-", "none", "(WarmingUp)"]),
}


@pytest.mark.parametrize(("status", "want"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_unknown_has_no_number(status, want):
    obj = web(**status)
    obj["status"] = {k: v for k, v in obj["status"].items() if v is not None}
    assert row(explain_phpa(obj, NOW), want[0]).split()[: len(want)] == want


def test_a_target_that_cannot_be_read_has_no_number_of_replicas():
    gone = {"type": "AbleToScale", "status": "False", "reason": "FailedGetScale", "message": "not found"}
    decided = {"at": format_timestamp(NOW - 30.0), "reason": "NoAnswer", "message": "Scaled nothing: not found."}
    obj = web(lastDecision=decided, conditions=[gone])
    for known in (obj, obj | {"status": {"lastDecision": decided, "conditions": [gone]}}):
        lines = explain_phpa(known, NOW).splitlines()
        assert lines[0] == (
            "PredictiveHPA shop/web scales Deployment web, whose replicas are not known: between 2 and 20."
        )
        assert not any(" < " in line for line in lines)
        assert lines[-1] == "AbleToScale is False (FailedGetScale): not found"


def test_an_object_without_a_decision_shows_what_to_check():
    obj = web()
    del obj["status"]
    assert "is the autoscaler running" in explain_phpa(obj, NOW)
    assert load_table(obj) == "No load is remembered yet."


def test_the_table_shows_the_last_hour_and_ends_with_the_forecast():
    lines = load_table(web()).splitlines()
    assert lines[0].split() == ["AT", "LOAD", "RECOMMENDED"]
    loads = [float(line.split()[1]) for line in lines[1:-2]]
    assert len(loads) == 12 and loads == sorted(loads) and loads[-1] == pytest.approx(3.0, abs=0.05)
    assert lines[-2].split()[1:] == ["4.20", "to", "5.10", "5"]
    assert lines[-1] == "The last line is what Linear expects by then."


def test_a_gap_is_not_a_load_of_zero():
    ring = Ring(15, 8).add(NOW, 2.0).add(NOW + 60.0, 3.0)
    times, values = series(ring)
    assert (times[-1] - times[0], values[0], values[-1]) == (60.0, 2.0, 3.0)
    assert np.isnan(values[1:-1]).all()


def test_the_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "web.png"
    plot_load(path, web())
    assert path.read_bytes().startswith(b"\x89PNG")
    obj = copy.deepcopy(web())
    del obj["status"]["forecast"]
    plot_load(path, obj)


NAMES = {"shop/web": ("shop", "web"), "web": ("default", "web"), "a/b/c": None, "Web": None, "": None}


@pytest.mark.parametrize(("text", "want"), NAMES.items())
def test_a_name_has_a_namespace(text, want):
    assert split_name(text) == want


@pytest.mark.parametrize("command", [["explain", "phpa", "a/b/c"], ["top", "phpa", "a/b/c"]])
def test_a_name_that_is_none_is_refused(command, capsys):
    assert main(command) == 2
    assert "'a/b/c' is not the name of a PredictiveHPA: give NAMESPACE/NAME" in capsys.readouterr().err
