import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.podreservation import Reservation
from concerto.api.selectors import LabelSelector
from concerto.scheduling.plugins.measured_capacity.score import Capacity
from concerto.scheduling.rounding import rounded
from support.scheduling_builders import GI, NOW, capacity, cluster_state, node, pod, query


def scores(cluster, p=None, *, infeasible=(), **more):
    asked = query(cluster, p or pod("p"), **more)
    raw = Capacity().score(asked, slice(0, cluster.size))
    for name in infeasible:
        raw[cluster.row_of[name]] = np.nan
    result = Capacity().normalise(asked, raw)
    return {name: result[row] for name, row in cluster.row_of.items() if not np.isnan(result[row])}


def measured(**capacities):
    return cluster_state([node(n) for n in capacities], (), [capacity(n, c) for n, c in capacities.items()])


CASES = {
    "the greatest gets 100": (measured(a=8.0, b=4.0, c=1.0), {"a": 100, "b": 50, "c": 13}),
    "halves are rounded up": (measured(a=8.0, b=1.0), {"a": 100, "b": 13}),
    "all the same": (measured(a=3.0, b=3.0), {"a": 100, "b": 100}),
    "none has any": (measured(a=0.0, b=0.0), {"a": 0, "b": 0}),
}


@pytest.mark.parametrize(("cluster", "expected"), CASES.values(), ids=CASES)
def test_more_room_is_better(cluster, expected):
    assert scores(cluster) == expected


def test_nodes_that_are_not_feasible_do_not_set_the_scale():
    assert scores(measured(a=100.0, b=4.0, c=2.0), infeasible=["a"]) == {"b": 100, "c": 50}


def test_units_reserved_for_the_pod_count():
    cluster = measured(a=4.0, b=4.0)
    selector = LabelSelector.from_raw({"matchLabels": {"app": "ours"}})
    cluster.set_reservation(Reservation("default", "res", "r", selector, 2))
    cluster.hold(("default", "res"), {"b": 2})
    assert scores(cluster) == {"a": 100, "b": 50}
    assert scores(cluster, reserved={"b": 2.0}) == {"a": 100, "b": 100}


def test_a_node_by_requests_counts_for_no_more_than_the_mean_of_the_measured():
    cluster = cluster_state([node("a"), node("b"), node("x"), node("y", allocatable={"cpu": 100})])
    assert scores(cluster) == {"a": 100, "b": 100, "x": 100, "y": 3}
    for name, value in (("a", 8.0), ("b", 4.0)):
        cluster.set_capacity(capacity(name, value), NOW)
    # x could take 40 by requests, y just one; the mean of 8 and 4 is 6
    assert scores(cluster) == {"a": 100, "b": 50, "x": 75, "y": 13}


REQUESTS = {
    "nothing requested counts as 100m and 200Mi": ({}, {}, [], 40),
    "cpu binds": ({}, {"cpu": "500m", "memory": "1Mi"}, [], 8),
    "memory binds": ({"memory": GI}, {"cpu": "1m", "memory": "256Mi"}, [], 4),
    "the number of pods binds": ({"pods": 5}, {"cpu": "1m", "memory": "1Mi"}, [], 5),
    "what runs is counted with defaults, too": ({}, {"cpu": "500m"}, [{}] * 5, 7),
    "an overfull node can take none": ({}, {"cpu": "500m"}, [{"requests": {"cpu": "3"}}] * 2, 0),
}


@pytest.mark.parametrize(("allocatable", "requests", "there", "pods"), REQUESTS.values(), ids=REQUESTS)
def test_pods_by_requests(allocatable, requests, there, pods):
    running = [pod(f"r{i}", nodeName="n", **over) for i, over in enumerate(there)]
    cluster = cluster_state([node("n", allocatable=allocatable)], running)
    asked = query(cluster, pod("p", requests=requests))
    assert asked.pods_by_requests(np.array([0])) == pytest.approx([pods])


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=20))
def test_scores_stay_between_0_and_100_and_keep_the_order(capacities):
    names = [f"n{i}" for i in range(len(capacities))]
    given_scores = scores(measured(**dict(zip(names, capacities))))
    assert all(0 <= s <= 100 for s in given_scores.values())
    ordered = [given_scores[n] for _, n in sorted(zip(capacities, names))]
    assert ordered == sorted(ordered)


def test_halves_go_away_from_zero_and_not_to_even():
    assert rounded(np.array([0.5, 1.5, 2.5, 2.4])).tolist() == [1, 2, 3, 2]
