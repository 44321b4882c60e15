import numpy as np
import pytest

from concerto.scheduling.plugins.pod_topology_spread.score import PodTopologySpread
from support.scheduling_builders import cluster_state, node, pod, query, scores

NODES = [node("a1", labels={"zone": "a"}), node("a2", labels={"zone": "a"}), node("b", labels={"zone": "b"})]
X = {"labels": {"app": "x"}}


def spread(key="zone", skew=1, selector=None, **over):
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "x"}} if selector is None else selector,
        **over,
    }


def over(*constraints, **fields):
    return X | {"topologySpreadConstraints": list(constraints)} | fields


def running(name, on, **more):
    return pod(name, nodeName=on, **(X | more))


ONE, TWO = [running("p", "a1")], [running("p", "a1"), running("q", "a2")]
CASES = {
    "no soft constraint: nothing": (X, ONE, {}),
    "a hard one is the filter's": (over(spread(whenUnsatisfiable="DoNotSchedule")), ONE, {}),
    "no pods yet: all are best": (over(spread()), [], {"a1": 100, "a2": 100, "b": 100}),
    "the zone without pods is better": (over(spread()), ONE, {"a1": 0, "a2": 0, "b": 100}),
    "the node without pods is better": (over(spread("kubernetes.io/hostname")), ONE, {"a1": 0, "a2": 100, "b": 100}),
    "zones and nodes: three nodes weigh more than two zones": (
        over(spread(), spread("kubernetes.io/hostname")), ONE, {"a1": 0, "a2": 66, "b": 100},
    ),
    "a greater skew weakens it": (over(spread(skew=3)), ONE, {"a1": 66, "a2": 66, "b": 100}),
    "other pods are not counted": (
        over(spread()), [running("p", "a1", labels={"app": "y"})], {"a1": 100, "a2": 100, "b": 100},
    ),
    "nor those of other namespaces": (
        over(spread()), [running("p", "a1", namespace="other")], {"a1": 100, "a2": 100, "b": 100},
    ),
    "nor those that are being deleted": (
        over(spread()), [running("p", "a1", deleting=True)], {"a1": 100, "a2": 100, "b": 100},
    ),
    "an empty selector counts none, as in kube-scheduler": (
        over(spread(selector={})), ONE, {"a1": 100, "a2": 100, "b": 100},
    ),
    "labels whose values must be the pod's own": (
        over(spread(matchLabelKeys=["v"]), labels={"app": "x", "v": "2"}),
        [running("p", "a1", labels={"app": "x", "v": "1"}), running("q", "b", labels={"app": "x", "v": "2"})],
        {"a1": 100, "a2": 100, "b": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "there", "expected"), CASES.values(), ids=CASES)
def test_spread(asked, there, expected):
    assert scores(PodTopologySpread(), query(cluster_state(NODES, there), pod("new", **asked))) == expected


def test_nodes_without_the_label_come_last():
    cluster = cluster_state([*NODES, node("c")], TWO)
    assert scores(PodTopologySpread(), query(cluster, pod("new", **over(spread())))) == {
        "a1": 0, "a2": 0, "b": 100, "c": 0,
    }  # fmt: skip


def test_pods_on_tainted_nodes_count_unless_the_constraint_honors_taints():
    nodes = [*NODES, node("b2", labels={"zone": "b"}, taints=[("gpu", "", "NoSchedule")])]
    there = [running("p", "a1"), running("q", "b2")]
    cluster = cluster_state(nodes, there)
    ignoring = scores(PodTopologySpread(), query(cluster, pod("new", **over(spread()))))
    honoring = scores(PodTopologySpread(), query(cluster, pod("new", **over(spread(nodeTaintsPolicy="Honor")))))
    assert (ignoring["a1"], ignoring["b"]) == (100, 100)
    assert (honoring["a1"], honoring["b"]) == (0, 100)


def test_the_weight_of_a_topology_grows_with_the_domains_that_are_feasible():
    cluster = cluster_state(NODES, ONE)
    plugin = PodTopologySpread()
    state = plugin.prepare(query(cluster, pod("new", **over(spread(skew=2)))))
    everywhere = plugin.normalise(state, np.zeros(3))
    one_zone = plugin.normalise(state, np.array([0.0, np.nan, np.nan]))
    assert everywhere.tolist() == [50, 50, 100]
    assert one_zone[0] == 100
    assert np.isnan(one_zone[1:]).all()


def test_placements_are_followed():
    cluster = cluster_state(NODES)
    plugin = PodTopologySpread()
    state = plugin.prepare(query(cluster, pod("new", **over(spread()))))
    plugin.add_pod(state, pod("first", **X), 2)
    assert plugin.normalise(state, np.zeros(3)).tolist() == [100, 100, 0]
    plugin.remove_pod(state, pod("first", **X), 2)
    assert plugin.normalise(state, np.zeros(3)).tolist() == [100, 100, 100]


ZONES = [
    node("a1", labels={"topology.kubernetes.io/zone": "a"}),
    node("a2", labels={"topology.kubernetes.io/zone": "a"}),
    node("b", labels={"topology.kubernetes.io/zone": "b"}),
    node("nowhere"),
]


def test_a_pod_without_constraints_is_spread_by_its_service_over_nodes_and_zones():
    cluster = cluster_state(ZONES, [running("p", "a1"), running("q", "a1")])
    assert scores(PodTopologySpread(), query(cluster, pod("new", **X))) == {}, "no Service selects it"
    cluster.signatures.workload_selectors.set_service("default", "s", {"app": "x"})
    # a1: 2 ln(4 nodes + 2) + 2 and 2 ln(3 zones + 2) + 4 make 13; a2 9, b 6, nowhere 2
    assert scores(PodTopologySpread(), query(cluster, pod("new", **X))) == {"a1": 15, "a2": 46, "b": 69, "nowhere": 100}


def test_one_that_has_constraints_of_its_own_is_not():
    cluster = cluster_state(ZONES, [running("p", "a1")])
    cluster.signatures.workload_selectors.set_service("default", "s", {"app": "x"})
    hard = over(spread(whenUnsatisfiable="DoNotSchedule"))
    assert scores(PodTopologySpread(), query(cluster, pod("new", **hard))) == {}
