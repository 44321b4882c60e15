"""The index of pods beside what users and kubelets may write: bombs of labels, dates that nobody can represent."""

from __future__ import annotations

from typing import Any

import pytest

from concerto.api.pod_trimming import trim_pod, trim_target_pod
from concerto.api.selector_text import parse_selector
from concerto.autoscaling.initialisation import Initialisation, InitialisationSettings
from concerto.autoscaling.pods import Sample, group_pods, serving
from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.pods_by_label import PodsByLabel, SelectorIndex
from support.step_counts import steps_of
from support.traced_memory import traced_memory

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
    assert set(index._by_label["n"]) == {"app", "tier"}
    index.on_change(pod("b", app="web", tier="x"), None)
    index.on_change(pod("a", app="web", job="1"), None)
    selectors.put(("n", "one"), None)
    assert not index._pods and not index._by_label and not index._selectors_of and not selectors._by_pair


def shop(pods: int, **labels: str) -> PodsByLabel:
    """Pods of one application, each with a label of its own."""
    index = PodsByLabel()
    for number in range(pods):
        index.on_change(None, pod(f"p{number}", app="shop", pod=f"p{number}", component=f"c{number % 20}", **labels))
    return index


def test_pods_are_found_by_the_label_that_few_others_have():
    index = shop(200)
    selector = parse_selector("app=shop,component=c7")
    index.index("n", selector)
    assert [found.name for found in index.select("n", selector)] == sorted(f"p{n}" for n in range(7, 200, 20))
    assert index.comparisons("n", selector) == 10 * selector.parts
    index.unindex("n", selector)
    assert index.comparisons("n", selector) == 200 * selector.parts
    assert not index._by_label and not index._selectors_of


def test_a_label_that_a_selector_requires_twice_is_indexed_once_and_gone_with_it():
    index, selector = shop(3), parse_selector("app=shop,app=bar,app=shop")
    index.index("n", selector)
    assert index.select("n", selector) == []
    index.unindex("n", selector)
    assert not index._by_label and not index._selectors_of


def claims(objects: int, pods: int, selector: str) -> tuple[SelectorIndex, list[dict[str, str]]]:
    """Objects with selectors, in which ``{}`` is their number, and the labels of pods."""
    index = shop(pods)
    selectors = SelectorIndex(index)
    for number in range(objects):
        selectors.put(("n", f"o{number}"), parse_selector(selector.format(number)))
    return selectors, [dict(each.labels) for each in index.select("n", parse_selector("app=shop"))]


def test_objects_of_one_selector_are_found_without_comparing_each_with_each_pod():
    selectors, labels = claims(300, 300, "app=shop")
    steps = steps_of(lambda: selectors.claimants("n", labels, 10_000))
    assert steps < 150_000, "some for each object, and some for each pod"
    assert selectors.claimants("n", labels, 10_000).keys == sorted(("n", f"o{n}") for n in range(300))


def test_selectors_that_tell_all_pods_apart_are_not_compared_for_long():
    selectors, labels = claims(300, 300, "app=shop,pod notin (p{})")
    found = selectors.claimants("n", labels, 10_000)
    assert found.keys is None
    assert found.comparisons > 10_000
    assert steps_of(lambda: selectors.claimants("n", labels, 10_000)) < 150_000


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
    with traced_memory() as memory:
        for number in range(10):
            store.append(trimmed(number))
            index.on_change(None, store[-1])
    assert memory.held / 10 < 64 * 1024


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


def test_an_event_of_a_pod_costs_the_same_however_many_labels_selectors_name():
    def steps(selectors):
        index = PodsByLabel()
        registered = SelectorIndex(index)
        for number in range(selectors):
            registered.put(("n", f"o{number}"), parse_selector(f"l{number}=x"))
        old = pod("a", l1="x", l2="y")
        index.on_change(None, old)
        return steps_of(lambda: index.on_change(old, pod("a", l1="y")))

    assert steps(2000) < 1.5 * steps(20)


def test_labels_by_the_thousand_are_not_looked_for_where_few_selectors_are():
    index = PodsByLabel()
    selectors = SelectorIndex(index)
    selectors.put(("n", "one"), parse_selector("l7=x"))
    labels = [{f"l{n}": "x" for n in range(1500)} for _ in range(20)]
    assert steps_of(lambda: selectors.claimants("n", labels, 200_000)) < 20_000
    assert selectors.claimants("n", labels, 200_000).keys == [("n", "one")]


def test_labels_and_selectors_by_the_thousand_take_too_long_together():
    index = PodsByLabel()
    selectors = SelectorIndex(index)
    for number in range(1000):
        selectors.put(("n", f"o{number}"), parse_selector(f"k{number}=x"))
    labels = [{f"l{n}": "x" for n in range(1000)} for _ in range(50)]
    assert selectors.claimants("n", labels, 5000).keys is None
    assert selectors.claimants("n", labels[:1], 5000).keys == []
