import numpy as np
import pytest

from concerto.api.selectors import NodeSelector
from concerto.scheduling.cycle import schedule
from concerto.scheduling.plugins.node_affinity.filter import NodeAffinity
from support.scheduling_builders import NOW, cluster_state, node, passes, pod, profile, query, reasons
from support.step_counts import steps_of

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


NAMED = {
    "no terms": ({}, None),
    "one name": (terms({"matchFields": [expression("metadata.name", "In", "b")]}), {"b"}),
    "the names of all terms": (
        terms(
            {"matchFields": [expression("metadata.name", "In", "b")]},
            {"matchFields": [expression("metadata.name", "In", "x")]} | labels(expression("zone", "Exists")),
        ),
        {"b", "x"},
    ),
    "a term without names": (
        terms({"matchFields": [expression("metadata.name", "In", "b")]}, labels(expression("zone", "Exists"))),
        None,
    ),
    "a name that is left out": (terms({"matchFields": [expression("metadata.name", "NotIn", "b")]}), None),
}


@pytest.mark.parametrize(("spec", "names"), NAMED.values(), ids=NAMED)
def test_the_only_nodes_that_terms_name(spec, names):
    found = NodeAffinity().named_nodes(query(CLUSTER, pod(**spec)))
    assert found == (None if names is None else frozenset(names))


def message(cluster, waiting):
    (failure,) = schedule(
        cluster, [waiting], {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0)
    ).unschedulable
    return failure.diagnosis.message


def test_nodes_that_the_pod_does_not_name_count_as_such_whatever_else_is_wrong_with_them():
    cluster = cluster_state([*NODES, node("d", unschedulable=True)])
    spec = terms({"matchFields": [expression("metadata.name", "In", "b")]})
    assert message(cluster, pod(requests={"cpu": "8"}, **spec)) == (
        "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    )


def test_terms_that_name_different_nodes_at_once_refuse_the_pod():
    names = [expression("metadata.name", "In", "b"), expression("metadata.name", "In", "c")]
    waiting = pod(**terms({"matchFields": names}))
    assert message(cluster_state(NODES), waiting) == "0/3 nodes are available: pod affinity terms conflict."


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


def test_many_labels_of_one_node_cost_a_pod_that_selects_them_nothing_for_each_other_node():
    labels = {f"k{i}": "v" for i in range(300)}

    def steps(nodes):
        cluster = cluster_state([node("odd", labels=labels), *(node(f"n{i}") for i in range(nodes))])
        asked = query(cluster, pod("p", nodeSelector=labels))
        assert passes(NodeAffinity(), asked) == ["odd"]
        return steps_of(lambda: NodeAffinity().check(NodeAffinity().prepare(asked), slice(0, cluster.size)))

    assert steps(200) < 1.5 * steps(20)
