"""The index of pods beside what users and kubelets may write: bombs of labels, dates that nobody can represent."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from concerto.api.pod_trimming import trim_pod, trim_target_pod
from concerto.api.selector_text import parse_selector
from concerto.autoscaling.initialisation import Initialisation, InitialisationSettings
from concerto.autoscaling.pods import Sample, group_pods, serving
from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.pods_by_label import PodsByLabel, SelectorIndex

NOW = 1_772_366_400.0
STAMP = "2026-03-01T12:00:00Z"


def pod(name: str, **labels: str) -> dict[str, Any]:
    meta = {"namespace": "n", "name": name, "uid": name, "labels": labels, "creationTimestamp": STAMP}
    return {"metadata": meta, "spec": {"containers": []}}


def test_only_labels_that_a_selector_names_are_indexed_and_nothing_of_what_is_gone_stays():
    index = PodsByLabel()
    selectors = SelectorIndex(index)
    index.on_change(None, pod("a", app="web", job="1"))
    for text in ("app=web", "app=db", "tier=x,app=web"):
        selectors.put(("n", "one"), parse_selector(text))
        assert [p.name for p in index.select("n", parse_selector("app=web"))] == ["a"]
    index.on_change(None, pod("b", app="web", tier="x"))
    assert [p.name for p in index.select("n", parse_selector("tier=x,app=web"))] == ["b"]
    assert set(index._by_label["n"]) == {"tier"}
    index.on_change(pod("b", app="web", tier="x"), None)
    index.on_change(pod("a", app="web", job="1"), None)
    selectors.put(("n", "one"), None)
    assert not index._pods and not index._by_label and not index._selectors_of and not selectors._by_pair


BOMBS: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": {f"a{i}": "x" for i in range(16_000)}}},
    "resources": {
        "spec": {
            "containers": [
                {"name": "c", "resources": {k: {f"e.x/{i}": "1" for i in range(5000)} for k in ("requests", "limits")}}
            ]
        }
    },
    "containers": {"spec": {"containers": [{"name": f"c{i}"} for i in range(10_000)]}},
    "conditions": {"status": {"conditions": [{"type": "Ready", "status": "True", "message": "x" * 30_000}]}},
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_pod_costs_the_autoscaler_little_memory_however_it_is_filled(bomb):
    def trimmed(number: int) -> dict[str, Any]:
        raw = pod(f"p{number}", app="web")
        return trim_target_pod({k: {**raw.get(k, {}), **bomb.get(k, {})} for k in ("metadata", "spec", "status")})

    index, store = PodsByLabel(), []
    index.on_change(None, trimmed(10))
    tracemalloc.start()
    for number in range(10):
        store.append(trimmed(number))
        index.on_change(None, store[-1])
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 10 < 64 * 1024


def test_labels_of_too_much_text_are_not_held_and_those_of_others_are():
    many = {f"a{i}": "x" for i in range(16_000)}
    assert trim_pod({**pod("p", **many), "spec": {}})["metadata"]["labels"] == {}
    some = {f"a{i}": "x" * 60 for i in range(100)}
    assert trim_pod({**pod("p", **some), "spec": {}})["metadata"]["labels"] == some


FAR = "10000-01-01T22:59:59Z"
DATES: dict[str, dict[str, Any]] = {
    "readiness": {
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": FAR}]}
    },
    "start": {"status": {"phase": "Running", "startTime": FAR}},
    "deletion": {"metadata": {"deletionTimestamp": FAR, "deletionGracePeriodSeconds": 9 * 10**15}},
    "creation": {"metadata": {"creationTimestamp": "0000-12-31T23:59:59Z"}},
}


@pytest.mark.parametrize("wrong", DATES.values(), ids=DATES)
def test_a_date_that_nobody_can_represent_stops_no_watch_and_no_decision(wrong):
    index = PodsByLabel()
    raw = pod("p", app="web")
    obj = trim_pod({k: {**raw.get(k, {}), **wrong.get(k, {})} for k in ("metadata", "spec", "status")})
    index.on_change(None, pod("q", app="web"))
    index.on_change(None, obj)
    index.on_change(obj, obj)
    views = index.select("n", parse_selector("app=web"))
    assert [view.name for view in views] == ["p", "q"]
    samples = {"p": Sample(100, NOW, 15.0), "q": Sample(100, NOW, 15.0)}
    group_pods(views, samples, cpu=True, now=NOW, settings=ControllerSettings())
    assert serving(views, samples, "cpu", None).pods >= 0
    settings = InitialisationSettings()
    assert 0 <= Initialisation().learn([v for v in views if v.ready_since <= NOW], settings).typical(settings) <= 3600


def test_a_pod_that_cannot_be_read_does_not_stop_the_watch():
    index = PodsByLabel()
    container = {"name": "c", "resources": {"requests": {"cpu": "?"}}}
    index.on_change(None, pod("p", app="web") | {"spec": {"containers": [container]}})
    index.on_change(None, pod("q", app="web"))
    assert [view.name for view in index.select("n", parse_selector("app=web"))] == ["q"]
