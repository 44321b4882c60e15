import pytest

from concerto.scheduling.plugins.node_resources.balanced_allocation_score import NodeResourcesBalancedAllocation
from support.scheduling_builders import cluster_state, node, pod, query, scores

# nodes' (cpu, memory), requests running on each, the pod's, scores: most are kube-scheduler's balanced_allocation_test
CASES = {
    "a pod that requests neither cpu nor memory has no scores": ([(4000, 10000)], [None], None, []),
    "nodes of different sizes": (
        [(4000, 10000), (6000, 10000)],
        [None, None],
        {"cpu": "3", "memory": "5000"},
        [68, 75],
    ),
    "pods that run": (
        [(10000, 20000), (10000, 20000), (10000, 50000)],
        [{"cpu": "3"}, {"cpu": "3", "memory": "5000"}, {"cpu": "3", "memory": "5000"}],
        {"cpu": "3", "memory": "5000"},
        [73, 74, 70],
    ),
    "as uneven as a node can get, and as even": (
        [(3000, 5000), (3000, 5000)],
        [{"cpu": "3"}, None],
        {"memory": "5000"},
        [100, 50],
    ),
    "a node that is full of cpu": (
        [(6000, 10000), (6000, 10000)],
        [{"cpu": "3"}, {"cpu": "3", "memory": "5000"}],
        {"cpu": "3"},
        [62, 62],
    ),
    "more than there is counts as all": ([(6000, 10000)], [{"cpu": "3", "memory": "5000"}], {"cpu": "5"}, [62]),
    "a node that has no memory is neither more nor less even": ([(4000, 0)], [None], {"cpu": "3"}, [75]),
}


@pytest.mark.parametrize(("nodes", "running", "requests", "expected"), CASES.values(), ids=CASES)
def test_kube_schedulers_vectors(nodes, running, requests, expected):
    views = [node(f"n{i}", allocatable={"cpu": c, "memory": m}) for i, (c, m) in enumerate(nodes)]
    there = [pod(f"r{i}", requests=r, nodeName=f"n{i}") for i, r in enumerate(running) if r]
    asked = query(cluster_state(views, there), pod("p", requests=requests))
    assert list(scores(NodeResourcesBalancedAllocation(), asked).values()) == expected
