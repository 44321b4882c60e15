from concerto.scheduling.plugins.node_ready.filter import NodeReady
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons

CLUSTER = cluster_state([node("alive"), node("dead", ready=False)])


def test_a_node_that_is_not_ready_takes_no_pods():
    asked = query(CLUSTER, pod())
    assert passes(NodeReady(), asked) == ["alive"]
    assert reasons(NodeReady(), asked) == {"node(s) were not ready": 1}


def test_except_those_that_would_tolerate_its_taint():
    tolerations = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}]
    assert passes(NodeReady(), query(CLUSTER, pod(tolerations=tolerations))) == ["alive", "dead"]


def test_the_toleration_that_every_pod_gets_is_not_enough():
    tolerations = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    assert passes(NodeReady(), query(CLUSTER, pod(tolerations=tolerations))) == ["alive"]
