from concerto.scheduling.plugins.unsupported_constraints.filter import UnsupportedConstraints
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def refusing(app, key="zone"):
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


NODES = [node("a1", labels={"zone": "a"}), node("a2", labels={"zone": "a"}), node("b", labels={"zone": "b"}), node("c")]


def test_a_pod_with_a_constraint_that_is_not_evaluated_goes_nowhere_and_hears_which():
    spread = {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", "topologyKey": "zone"}]}
    asked = query(cluster_state(NODES), pod(**refusing("x"), **spread))
    assert passes(UnsupportedConstraints(), asked) == []
    assert reasons(UnsupportedConstraints(), asked) == {
        "pod has required pod anti-affinity, which Concerto does not evaluate": 4,
        "pod has topology spread (DoNotSchedule), which Concerto does not evaluate": 4,
    }


def test_a_running_pod_keeps_those_it_refuses_out_of_its_zone():
    cluster = cluster_state(NODES, [pod("there", nodeName="a1", schedulerName="default-scheduler", **refusing("x"))])
    asked = query(cluster, pod("p", labels={"app": "x"}))
    assert passes(UnsupportedConstraints(), asked) == ["b", "c"]
    assert reasons(UnsupportedConstraints(), asked) == {"node(s) didn't satisfy existing pods anti-affinity rules": 2}
    assert passes(UnsupportedConstraints(), query(cluster, pod("q", labels={"app": "y"}))) == ["a1", "a2", "b", "c"]
    assert passes(UnsupportedConstraints(), query(cluster, pod("q", labels={"app": "x"}, namespace="other"))) == [
        "a1", "a2", "b", "c",
    ]  # fmt: skip


def test_until_the_last_of_them_has_ended():
    there = [pod(n, nodeName="a1", **refusing("x")) for n in ("one", "two")]
    cluster = cluster_state(NODES, there)
    asked = query(cluster, pod("p", labels={"app": "x"}))
    cluster.remove_pod("uid-one")
    assert passes(UnsupportedConstraints(), asked) == ["b", "c"]
    cluster.remove_pod("uid-two")
    assert passes(UnsupportedConstraints(), asked) == ["a1", "a2", "b", "c"]
    assert not cluster.anti_affinity


def test_a_node_without_the_label_is_no_place():
    cluster = cluster_state(NODES, [pod("there", nodeName="c", **refusing("x"))])
    assert passes(UnsupportedConstraints(), query(cluster, pod("p", labels={"app": "x"}))) == ["a1", "a2", "b", "c"]
