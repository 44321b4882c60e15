import pytest

from concerto.scheduling.plugins.taint_toleration.filter import TaintToleration
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons

CLUSTER = cluster_state(
    [
        node("plain"),
        node("gpu", taints=[("gpu", "yes", "NoSchedule")]),
        node("both", taints=[("gpu", "yes", "NoSchedule"), ("bad", "", "NoExecute")]),
        node("soft", taints=[("gpu", "yes", "PreferNoSchedule")]),
    ]
)
GPU = {"key": "gpu", "operator": "Equal", "value": "yes"}
CASES = {
    "a plain pod goes where taints only ask": ([], ["plain", "soft"]),
    "each taint must be tolerated": ([GPU], ["plain", "gpu", "soft"]),
    "two tolerations for two taints": ([GPU, {"key": "bad", "operator": "Exists"}], ["plain", "gpu", "both", "soft"]),
}


@pytest.mark.parametrize(("tolerations", "names"), CASES.values(), ids=CASES)
def test_tainted_nodes_take(tolerations, names):
    assert passes(TaintToleration(), query(CLUSTER, pod(tolerations=tolerations))) == names


def test_the_reason_is_kube_schedulers():
    assert reasons(TaintToleration(), query(CLUSTER, pod())) == {"node(s) had untolerated taint(s)": 2}


def test_a_taint_that_goes_frees_the_node():
    cluster = cluster_state([node("n", taints=[("gpu", "", "NoSchedule")])])
    assert passes(TaintToleration(), query(cluster, pod())) == []
    cluster.set_node(node("n"))
    assert passes(TaintToleration(), query(cluster, pod())) == ["n"]
