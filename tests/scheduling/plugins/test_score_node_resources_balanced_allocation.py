import pytest

from concerto.scheduling.plugins.node_resources.balanced_allocation_score import NodeResourcesBalancedAllocation
from support.scheduling_builders import cluster_state, node, pod, query, scores

# nodes' (cpu, memory), requests running on each, the pod's, scores: kube-scheduler's balanced_allocation_test
CASES = {
    "nothing requested of cpu and memory has nothing to say": ([(4000, 10000)], [None], None, []),
    "nodes of different sizes": (
        [(4000, 10000), (6000, 10000)],
        [None, None],
        {"cpu": "3", "memory": "5000"},
        [87, 100],
    ),
    "pods that run": (
        [(10000, 20000), (10000, 20000)],
        [{"cpu": "3"}, {"cpu": "3", "memory": "5000"}],
        {"cpu": "3", "memory": "5000"},
        [82, 95],
    ),
    "more than there is counts as all": (
        [(6000, 10000), (6000, 10000)],
        [{"cpu": "3", "memory": "0"}, {"cpu": "3", "memory": "5000"}],
        {"cpu": "5", "memory": "0"},
        [50, 75],
    ),
    "of a resource that is not there nothing is out of balance": ([(4000, 0)], [None], {"cpu": "3"}, [100]),
}


@pytest.mark.parametrize(("nodes", "running", "requests", "expected"), CASES.values(), ids=CASES)
def test_kube_schedulers_vectors(nodes, running, requests, expected):
    views = [node(f"n{i}", allocatable={"cpu": c, "memory": m}) for i, (c, m) in enumerate(nodes)]
    there = [pod(f"r{i}", requests=r, nodeName=f"n{i}") for i, r in enumerate(running) if r]
    asked = query(cluster_state(views, there), pod("p", requests=requests))
    assert list(scores(NodeResourcesBalancedAllocation(), asked).values()) == expected
