import pytest

from concerto.api.selectors import NodeSelector
from concerto.scheduling.plugins.node_affinity.filter import NodeAffinity
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons

NODES = [
    node("a", labels={"zone": "a", "size": "2"}),
    node("b", labels={"zone": "b", "size": "10"}),
    node("c", labels={"size": "big", "gpu": ""}),
]
CLUSTER = cluster_state(NODES)


def terms(*items):
    required = {"nodeSelectorTerms": list(items)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def labels(*expressions):
    return {"matchExpressions": list(expressions)}


CASES = {
    "no wish": ({}, "abc"),
    "node selector": ({"nodeSelector": {"zone": "a"}}, "a"),
    "a label that no node has": ({"nodeSelector": {"disk": "ssd"}}, ""),
    "In": (terms(labels(expression("zone", "In", "a", "b", "x"))), "ab"),
    "NotIn takes nodes without the label": (terms(labels(expression("zone", "NotIn", "a"))), "bc"),
    "Exists": (terms(labels(expression("gpu", "Exists"))), "c"),
    "DoesNotExist": (terms(labels(expression("gpu", "DoesNotExist"))), "ab"),
    "Gt compares numbers": (terms(labels(expression("size", "Gt", "9"))), "b"),
    "Lt leaves out what is no number": (terms(labels(expression("size", "Lt", "11"))), "ab"),
    "all expressions of one term": (
        terms(labels(expression("zone", "Exists"), expression("size", "Lt", "3"))),
        "a",
    ),
    "one of several terms": (terms(labels(expression("zone", "In", "a")), labels(expression("gpu", "Exists"))), "ac"),
    "by name": (terms({"matchFields": [expression("metadata.name", "In", "b")]}), "b"),
    "not by name": (terms({"matchFields": [expression("metadata.name", "NotIn", "b")]}), "ac"),
    "by the name of no node": (terms({"matchFields": [expression("metadata.name", "In", "x")]}), ""),
    "an empty term is nowhere": (terms({}), ""),
    "selector and terms together": (
        {"nodeSelector": {"zone": "b"}} | terms(labels(expression("size", "Gt", "1"))),
        "b",
    ),
}


@pytest.mark.parametrize(("spec", "names"), CASES.values(), ids=CASES)
def test_nodes_that_match(spec, names):
    asked = query(CLUSTER, pod(**spec))
    assert passes(NodeAffinity(), asked) == list(names)
    # The columns say what the objects say
    selector = asked.pod.shape.node_selector
    assert [n.name for n in NODES if selector.matches(n.name, n.labels)] == list(names)


def test_the_reason_is_kube_schedulers():
    asked = query(CLUSTER, pod(nodeSelector={"zone": "a"}))
    assert reasons(NodeAffinity(), asked) == {"node(s) didn't match Pod's node affinity/selector": 2}


def test_labels_that_change_are_followed():
    cluster = cluster_state(NODES)
    asked = query(cluster, pod(nodeSelector={"zone": "a"}))
    assert passes(NodeAffinity(), asked) == ["a"]
    cluster.set_node(node("a"))
    cluster.set_node(node("b", labels={"zone": "a"}))
    assert passes(NodeAffinity(), asked) == ["b"]


def test_a_profile_s_own_affinity_counts_beside_the_pod_s():
    batch = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["batch"]}]}]}
    nodes = [node("a", labels={"pool": "batch", "zone": "a"}), node("b", labels={"pool": "batch"}), node("c")]
    cluster, added = cluster_state(nodes), NodeSelector.from_raw(None, batch)
    assert passes(NodeAffinity(), query(cluster, pod("p"), added_affinity=added)) == ["a", "b"]
    asked = query(cluster, pod("p", nodeSelector={"zone": "a"}), added_affinity=added)
    assert passes(NodeAffinity(), asked) == ["a"]
    assert reasons(NodeAffinity(), asked) == {
        "node(s) didn't match Pod's node affinity/selector": 1,
        "node(s) didn't match scheduler-enforced node affinity": 1,
    }
