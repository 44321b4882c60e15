import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.schedulingprofile import LoadSettings
from concerto.api.score_arguments import TargetLoadPackingArgs
from concerto.scheduling.plugins.load.target_load_packing import TargetLoadPacking, target_load_packing
from support.scheduling_builders import NOW, capacity, cluster_state, load, node, pod, query, scores

CURVE = {
    "the KEP's X": (25, 50, 75),
    "the KEP's Y": (50, 50, 100),
    "the KEP's Z": (75, 50, 25),
    "idle": (0, 40, 40),
    "at the default target": (40, 40, 100),
    "just above it the score drops": (40.0001, 40, 40),
    "full": (100, 40, 0),
    "overfull": (100.0001, 40, 0),
    "a half is rounded up": (25.5, 50, 76),
    "the least target": (1, 1, 100),
    "the greatest target": (99.5, 99, 50),
}


@pytest.mark.parametrize(("utilisation", "target", "expected"), CURVE.values(), ids=CURVE)
def test_the_curve(utilisation, target, expected):
    assert target_load_packing(np.array([utilisation], dtype=float), target).tolist() == [expected]


@given(st.lists(st.floats(0, 200), min_size=2, max_size=30), st.integers(1, 99))
def test_it_rises_to_the_target_and_falls_after_and_stays_between_0_and_100(utilisations, target):
    u = np.array(sorted(utilisations))
    s = target_load_packing(u, target)
    assert ((s >= 0) & (s <= 100)).all()
    assert (np.diff(s[u <= target]) >= 0).all()
    assert (np.diff(s[u > target]) <= 0).all()
    assert (s[u <= target] >= target).all() and (s[u > target] <= target).all()


def test_what_is_not_measured_has_no_score():
    assert np.isnan(target_load_packing(np.array([np.nan]), 40)).all()


PODS = {
    "a limit is taken as it is": ({"requests": {"cpu": "100m"}, "limits": {"cpu": "400m"}}, {}, 400),
    "a request is multiplied": ({"requests": {"cpu": "200m"}}, {}, 300),
    "a container without cpu request and limit": ({"requests": {"memory": "1Mi"}}, {}, 1000),
    "a BestEffort pod": ({}, {}, 1),
    "overhead is added": ({"limits": {"cpu": "400m"}}, {"overhead": {"cpu": "50m"}}, 450),
    "a limit of the whole pod": ({}, {"resources": {"limits": {"cpu": "700m"}, "requests": {"cpu": "1m"}}}, 700),
}


@pytest.mark.parametrize(("resources", "spec", "millicores"), PODS.values(), ids=PODS)
def test_the_pod_is_counted_with_its_predicted_cpu(resources, spec, millicores):
    cluster = cluster_state([node("n", allocatable={"cpu": 4000})], (), [capacity("n", windows=load((0.10, 0.0)))])
    p = pod("p", containers=[{"name": "main", "resources": resources}], **spec)
    expected = target_load_packing(np.array([10 + millicores / 40]), 40)[0]
    assert scores(TargetLoadPacking(TargetLoadPackingArgs()), query(cluster, p)) == {"n": expected}


@pytest.mark.parametrize("target", [10, 30, 50, 70])
def test_a_node_that_is_just_filled_to_the_target_is_the_best_however_its_load_adds_up(target):
    for used in range(1, target):
        cpu = {"cpu": f"{10 * (target - used)}m"}
        waiting = pod("p", containers=[{"name": "main", "resources": {"limits": cpu, "requests": cpu}}])
        measured = capacity("n", windows=load((used / 100, 0.0)))
        asked = query(cluster_state([node("n", allocatable={"cpu": 1000})], (), [measured]), waiting)
        assert scores(TargetLoadPacking(TargetLoadPackingArgs(target)), asked) == {"n": 100}, used


def test_containers_and_sidecars_are_summed_and_other_init_containers_are_not():
    shape = pod(
        "p",
        containers=[{"name": "a", "resources": {"limits": {"cpu": 1}}}, {"name": "b"}],
        initContainers=[
            {"name": "c", "resources": {"limits": {"cpu": 8}}},
            {"name": "d", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}},
        ],
    ).shape
    assert shape.predicted_cpu == (1000, 2000, 1, 0)


def test_settings_change_the_prediction():
    cluster = cluster_state([node("n")], (), [capacity("n", windows=load((0.0, 0.0)))])
    settings = LoadSettings(request_multiplier=1.0, default_cpu_millicores=400.0, best_effort_cpu_millicores=40.0)
    plugin = TargetLoadPacking(TargetLoadPackingArgs(target_utilization=50))
    for requests, utilisation in (({"cpu": "800m"}, 20), ({"memory": "1Mi"}, 10), (None, 1)):
        asked = query(cluster, pod("p", requests=requests), load=settings)
        assert scores(plugin, asked) == {"n": 50 + utilisation}


def test_load_is_a_part_of_the_machine_and_not_of_what_may_be_allocated():
    cluster = cluster_state(
        [node("n", allocatable={"cpu": 2000}, capacity={"cpu": 4000})], (), [capacity("n", windows=load((0.1, 0.0)))]
    )
    asked = query(cluster, pod("p", containers=[{"name": "main", "resources": {"limits": {"cpu": "400m"}}}]))
    assert scores(TargetLoadPacking(TargetLoadPackingArgs(50)), asked) == {"n": 70}


def test_it_has_no_score_where_the_cpu_is_not_measured_or_was_too_long_ago():
    nodes = [node(n) for n in "abcd"]
    cluster = cluster_state(
        nodes, (), [capacity("a", windows=load((0.2, 0.0))), capacity("b"), capacity("c", windows=load(None))]
    )
    plugin = TargetLoadPacking(TargetLoadPackingArgs())
    assert set(scores(plugin, query(cluster, pod("p")))) == {"a"}
    assert scores(plugin, query(cluster, pod("p"), now=NOW + 301)) == {}


def test_a_machine_without_cpu_has_the_least_score():
    nodes = [node("none", capacity={"cpu": 0}), node("some")]
    cluster = cluster_state(nodes, (), [capacity(n, windows=load((0.0, 0.0))) for n in ("none", "some")])
    for waiting in (pod("p"), pod("p", requests={"cpu": "0"}), pod("p", requests={"cpu": "1"})):
        assert scores(TargetLoadPacking(TargetLoadPackingArgs()), query(cluster, waiting))["none"] == 0
