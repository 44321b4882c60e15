import pytest

from concerto.scheduling.plugins.node_unschedulable.filter import NodeUnschedulable
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons

CLUSTER = cluster_state([node("open"), node("cordoned", unschedulable=True)])
CASES = {
    "a plain pod": ([], ["open"]),
    "one that tolerates everything": ([{"operator": "Exists"}], ["open", "cordoned"]),
    "one that tolerates the taint": (
        [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}],
        ["open", "cordoned"],
    ),
    "one that tolerates another": ([{"key": "gpu", "operator": "Exists"}], ["open"]),
}


@pytest.mark.parametrize(("tolerations", "names"), CASES.values(), ids=CASES)
def test_cordoned_nodes_take(tolerations, names):
    assert passes(NodeUnschedulable(), query(CLUSTER, pod(tolerations=tolerations))) == names


def test_the_reason_is_kube_schedulers():
    assert reasons(NodeUnschedulable(), query(CLUSTER, pod())) == {"node(s) were unschedulable": 1}
