import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.score_arguments import NodeResourcesFitArgs as Args
from concerto.api.score_arguments import ShapePoint
from concerto.scheduling.plugins.node_resources.fit_score import NodeResourcesFit
from support.scheduling_builders import cluster_state, node, pod, query, scores

GPU = "example.com/gpu"
BOTH = (("cpu", 1), ("memory", 1))
RISING = (ShapePoint(0, 0), ShapePoint(100, 10))
# Vectors of kube-scheduler's least_allocated_test, most_allocated_test and requested_to_capacity_ratio_test.
# nodes' (cpu, memory), requests of a running pod on each, the pod's requests, args, scores
CASES = {
    "least: nothing requested": (
        [(4000, 10**10), (4000, 10**10)], [None, None], {"cpu": "0", "memory": "0"}, Args(), [100, 100]
    ),
    "least: nodes of different sizes": (
        [(4000, 10000), (6000, 10000)], [None, None], {"cpu": "3", "memory": "5000"}, Args(), [37, 50]
    ),
    "least: pods that run": (
        [(10000, 20000), (10000, 20000)],
        [{"cpu": "6", "memory": "0"}, {"cpu": "6", "memory": "5000"}],
        {"cpu": "0", "memory": "0"}, Args(), [70, 57],
    ),
    "least: more than there is": (
        [(4000, 10000), (4000, 10000)],
        [{"cpu": "3", "memory": "0"}, {"cpu": "3", "memory": "5000"}],
        {"cpu": "3", "memory": "5000"}, Args(), [25, 0],
    ),
    "least: weights": (
        [(4000, 10000), (6000, 10000)], [None, None], {"cpu": "3", "memory": "5000"},
        Args("LeastAllocated", (("memory", 2), ("cpu", 1))), [41, 50],
    ),
    "most: nothing requested": (
        [(4000, 10000), (4000, 10000)], [None, None], {"cpu": "0", "memory": "0"}, Args("MostAllocated"), [0, 0]
    ),
    "most: nodes of different sizes": (
        [(4000, 10000), (6000, 10000)], [None, None], {"cpu": "3", "memory": "5000"}, Args("MostAllocated"), [62, 50]
    ),
    "most: more than there is counts as all": (
        [(4000, 10000), (10000, 8000)], [None, None], {"cpu": "3", "memory": "10000"}, Args("MostAllocated"), [87, 65]
    ),
    "ratio: rising": (
        [(4000, 10000), (6000, 10000)], [None, None], {"cpu": "3", "memory": "5000"},
        Args("RequestedToCapacityRatio", BOTH, RISING), [63, 50],
    ),
    "ratio: falling": (
        [(4000, 10000), (6000, 10000)], [None, None], {"cpu": "3", "memory": "5000"},
        Args("RequestedToCapacityRatio", BOTH, (ShapePoint(0, 10), ShapePoint(100, 0))), [38, 50],
    ),
    "ratio: scores of 0 have no weight": (
        [(4000, 10000)], [None], {"cpu": "2", "memory": "0"}, Args("RequestedToCapacityRatio", BOTH, RISING), [50]
    ),
    "ratio: level outside the points": (
        [(4000, 10000)], [None], {"cpu": "1", "memory": "9000"},
        Args("RequestedToCapacityRatio", BOTH, (ShapePoint(40, 2), ShapePoint(60, 8))), [50],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "running", "requests", "args", "expected"), CASES.values(), ids=CASES)
def test_kube_schedulers_vectors(nodes, running, requests, args, expected):
    views = [node(f"n{i}", allocatable={"cpu": c, "memory": m}) for i, (c, m) in enumerate(nodes)]
    there = [pod(f"r{i}", requests=r, nodeName=f"n{i}") for i, r in enumerate(running) if r]
    asked = query(cluster_state(views, there), pod("p", requests=requests))
    assert list(scores(NodeResourcesFit(args), asked).values()) == expected


def test_a_pod_that_is_resized_counts_by_its_status():
    grown = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3", "memory": "5000"}}}]}
    there = [pod(f"r{i}", requests={"cpu": "1"}, nodeName=f"n{i}", status=s) for i, s in enumerate([{}, grown])]
    cluster = cluster_state([node(f"n{i}", allocatable={"cpu": 4000, "memory": 10**10}) for i in range(2)], there)
    plugin = NodeResourcesFit(Args("MostAllocated", (("cpu", 1),)))
    assert scores(plugin, query(cluster, pod("p", requests={"cpu": "1"}))) == {"n0": 50, "n1": 100}
    cluster.set_pod(pod("r1", requests={"cpu": "1"}, nodeName="n1"), 0)
    assert scores(plugin, query(cluster, pod("p", requests={"cpu": "1"}))) == {"n0": 50, "n1": 50}


def test_extended_resources_count_for_pods_that_request_them():
    cluster = cluster_state([node("a", allocatable={GPU: 4}), node("b", allocatable={GPU: 10}), node("c")])
    plugin = NodeResourcesFit(Args("MostAllocated", ((GPU, 3), ("cpu", 1))))
    assert scores(plugin, query(cluster, pod("p", requests={"cpu": "2", GPU: "2"}))) == {"a": 50, "b": 27, "c": 50}
    assert scores(plugin, query(cluster, pod("p", requests={"cpu": "2"}))) == {"a": 50, "b": 50, "c": 50}


@given(st.integers(0, 9000), st.integers(1, 8000), st.sampled_from(["LeastAllocated", "MostAllocated"]))
def test_scores_stay_between_0_and_100(requested, allocatable, strategy):
    cluster = cluster_state([node("n", allocatable={"cpu": allocatable})])
    (score,) = scores(
        NodeResourcesFit(Args(strategy)), query(cluster, pod("p", requests={"cpu": f"{requested}m"}))
    ).values()
    assert 0 <= score <= 100
