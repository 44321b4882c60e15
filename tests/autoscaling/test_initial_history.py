"""The load of a new object before it was made: which queries give it, and how it fills the rings."""

from __future__ import annotations

from typing import Any

import pytest

from concerto.api.pod_requests import ContainerResources
from concerto.api.predictivehpa import PredictiveHPA
from concerto.autoscaling.history import NOTHING, Ring
from concerto.autoscaling.initial_history import HistoryQuery, filled, grid, history_queries
from concerto.autoscaling.pods import MetricError
from support.pod_views import target_pod

CPU = "container_cpu_usage_seconds_total"
PODS = [
    target_pod(name, containers=[ContainerResources("app", {"cpu": cpu, "memory": 64_000}, {})])
    for name, cpu in (("a", 100), ("b", 300))
]


def resource(name: str = "cpu", **target: Any) -> dict[str, Any]:
    return {"type": "Resource", "resource": {"name": name, "target": target or {"averageUtilization": 50}}}


def queue(**target: Any) -> dict[str, Any]:
    return {"type": "Prometheus", "prometheus": {"name": "queue", "query": "sum(queue)", "target": target}}


def spec(*metrics: dict[str, Any], query: str = "", kind: str = "Deployment", name: str = "web") -> PredictiveHPA:
    body = {
        "scaleTargetRef": {"kind": kind, "name": name},
        "maxReplicas": 9,
        "metrics": list(metrics),
        "prediction": {"initialHistory": {"query": query} if query else {}},
    }
    return PredictiveHPA.from_raw({"metadata": {"namespace": "n", "name": "web", "uid": "u"}, "spec": body})


def test_a_query_that_is_given_is_in_replicas_already():
    assert history_queries(spec(resource(), query="sum(x) / 5"), [], 300) == (HistoryQuery("sum(x) / 5"),)


def test_cpu_is_divided_by_what_one_replica_has_at_the_target():
    (found,) = history_queries(spec(resource()), PODS, 300)
    labels = 'namespace="n", pod=~"web-[a-z0-9]+-[a-z0-9]{5}", container!="", container!="POD"'
    assert found == HistoryQuery(f"sum(rate({CPU}{{{labels}}}[300s]))", 0.1)


OTHERS = {
    "an amount of cpu per pod": (spec(resource(averageValue="250m")), 0.25),
    "an amount of memory per pod": (spec(resource("memory", averageValue="1Mi")), 2.0**20),
    "a query with an amount per pod": (spec(queue(averageValue="30")), 30.0),
}


@pytest.mark.parametrize(("given", "per_replica"), OTHERS.values(), ids=OTHERS)
def test_an_amount_per_pod_needs_no_pods(given, per_replica):
    (found,) = history_queries(given, [], 300)
    assert found.per_replica == per_replica


def test_the_names_of_the_pods_are_those_of_the_kind():
    names = {kind: history_queries(spec(resource(), kind=kind, name="a.b"), PODS, 60)[0].expression for kind in (
        "StatefulSet", "ReplicaSet",
    )}  # fmt: skip
    assert 'pod=~"a[.]b-[0-9]+"' in names["StatefulSet"]
    assert 'pod=~"a[.]b-[a-z0-9]{5}"' in names["ReplicaSet"]


def test_a_container_is_chosen_by_its_label():
    of_container = {"name": "cpu", "container": "app", "target": {"averageUtilization": 50}}
    (found,) = history_queries(spec({"type": "ContainerResource", "containerResource": of_container}), PODS, 60)
    assert 'container="app"' in found.expression
    assert 'container!=""' not in found.expression


EXTERNAL = {"type": "External", "external": {"metric": {"name": "jobs"}, "target": {"averageValue": "1"}}}
UNKNOWN = {
    "a metric that Prometheus is not known to have": (
        spec(EXTERNAL),
        "External metric jobs is not known: give spec.pre",
    ),
    "one of two": (spec(queue(averageValue="1"), EXTERNAL), "External metric jobs"),
    "an amount in all": (spec(queue(value="5")), "Prometheus metric queue with a target of type Value"),
    "another resource": (spec(resource("nvidia.com/gpu")), "Resource metric nvidia.com/gpu"),
    "a kind whose pods may have any name": (spec(resource(), kind="Gadget"), "pods of Gadget web are not known"),
    "a name that Kubernetes shortens": (spec(resource(), name="w" * 47), "are not known: give"),
    "no pods": (spec(resource()), "the target has no pods yet"),
}


@pytest.mark.parametrize(("given", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_load_that_is_not_known_is_an_error_that_says_what_to_do(given, words):
    with pytest.raises(MetricError, match=words):
        history_queries(given, [] if words.startswith("the target") else PODS, 300)


def test_the_grid_has_a_point_at_the_end_of_each_bucket_that_is_over():
    assert grid(Ring(300, 12), 1_000_000.0) == (996_600.0, 999_900.0)


def test_the_greatest_of_the_metrics_fills_the_buckets_that_all_have():
    first, second = [(300.0, 1.0), (600.0, 5.0), (900.0, 1.0)], [(300.0, 2.0), (600.0, 3.0)]
    ring = filled(Ring(300, 12), [first, second])
    assert (ring.last, ring.values) == (1, (2000, 5000))
    assert filled(Ring(300, 12), []) == Ring(300, 12)


def test_own_buckets_stay_and_what_is_between_is_unknown():
    own = Ring(300, 5).add(1500.0, 9.0).add(1800.0, 8.0)
    ring = filled(own, [[(300.0 * i, 1.0) for i in (1, 2, 3, 6, 7, 8)]])
    assert (ring.last, ring.count, ring.values) == (6, 1, (1000, NOTHING, NOTHING, 9000, 8000))


def test_what_is_loaded_later_replaces_what_was_loaded_before_and_no_own_bucket():
    wrong = [(300.0 * i, 50.0) for i in (1, 2, 3, 4)]
    own = filled(Ring(300, 6), [wrong]).add(1500.0, 9.0).add(1800.0, 8.0)
    assert own.values == (50_000, 50_000, 50_000, 50_000, NOTHING, 9000, 8000)[-6:]
    mended = filled(own, [[(600.0, 1.0), (900.0, 2.0), (1800.0, 3.0), (2100.0, 4.0)]])
    assert (mended.last, mended.values) == (6, (1000, 2000, NOTHING, NOTHING, 9000, 8000)[-6:])
    again = filled(mended, [[(1500.0, 7.0)]])
    assert (again.last, again.values) == (6, (7000, 9000, 8000))


def test_a_ring_that_was_loaded_whole_is_replaced_whole():
    loaded = filled(Ring(300, 5), [[(300.0 * i, 50.0) for i in range(1, 9)]])
    assert filled(loaded, [[(900.0, 1.0)]]).values == (1000,)
    assert filled(loaded.add(2400.0, 3.0), [[(2100.0, 1.0)]]).values == (1000, NOTHING, 3000)[-3:]


def test_a_value_that_is_not_a_load_is_not_history():
    assert filled(Ring(300, 5), [[(300.0, -1.0), (600.0, 2.0)]]).values == (2000,)
