from dataclasses import replace

from concerto.scheduling.plugins.node_name.filter import NodeName
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons

CLUSTER = cluster_state([node("a"), node("b")])


def test_a_pod_that_names_no_node_may_go_anywhere():
    assert passes(NodeName(), query(CLUSTER, pod())) == ["a", "b"]


def test_a_pod_that_names_a_node_may_go_only_there():
    asked = query(CLUSTER, replace(pod(), node_name="b"))
    assert passes(NodeName(), asked) == ["b"]
    assert reasons(NodeName(), asked) == {"node(s) didn't match the requested node name": 1}


def test_a_node_that_is_not_there_is_nowhere():
    assert passes(NodeName(), query(CLUSTER, replace(pod(), node_name="c"))) == []
