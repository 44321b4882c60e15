import time

import numpy as np
import pytest

from concerto.scheduling.plugins.inter_pod_affinity.filter import InterPodAffinity
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, cluster_state, node, passes, pod, query, reasons
from support.step_counts import steps_of

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODES = [node("a1", labels={"zone": "a"}), node("a2", labels={"zone": "a"}), node("b", labels={"zone": "b"}), node("c")]


def term(app, key="zone", **over):
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **over}


def wants(*terms):
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def refuses(*terms):
    return {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}


def running(name, on, **over):
    return pod(name, nodeName=on, **over)


X, Y = {"labels": {"app": "x"}}, {"labels": {"app": "y"}}
CASES = {
    "no constraint: everywhere": ({}, [running("p", "a1", **X)], ["a1", "a2", "b", "c"]),
    "affinity: the domain of a pod that matches": (wants(term("x")), [running("p", "a1", **X)], ["a1", "a2"]),
    "affinity to a pod of another node's name": (
        wants(term("x", "kubernetes.io/hostname")), [running("p", "a1", **X)], ["a1"],
    ),
    "affinity without a pod that matches": (wants(term("x")), [running("p", "a1", **Y)], []),
    "the first of a group that selects itself": (wants(term("x")) | X, [], ["a1", "a2", "b"]),
    "the second of that group": (wants(term("x")) | X, [running("p", "b", **X)], ["b"]),
    "a group whose only pod is on a node without the label": (
        wants(term("x")) | X, [running("p", "c", **X)], ["a1", "a2", "b"],
    ),
    "pods of another namespace do not match": (wants(term("x")), [running("p", "a1", namespace="o", **X)], []),
    "unless the term names it": (
        wants(term("x", namespaces=["o"])), [running("p", "a1", namespace="o", **X)], ["a1", "a2"],
    ),
    "or selects every namespace": (
        wants(term("x", namespaceSelector={})), [running("p", "b", namespace="o", **X)], ["b"],
    ),
    "or the namespaces with a label": (
        wants(term("x", namespaceSelector={"matchLabels": {"team": "t"}})),
        [running("p", "a1", namespace="o", **X), running("q", "b", namespace="of-t", **X)],
        ["b"],
    ),
    "a running pod refuses pods of the namespaces with a label": (
        X | {"namespace": "of-t"},
        [running("p", "a1", **refuses(term("x", namespaceSelector={"matchLabels": {"team": "t"}})))],
        ["b", "c"],
    ),
    "two terms: one pod must match both": (
        wants(term("x"), term("y")), [running("p", "a1", **X), running("q", "a1", **Y)], [],
    ),
    "two keys: both domains": (
        wants(term("x"), term("x", "kubernetes.io/hostname")), [running("p", "a2", **X)], ["a2"],
    ),
    "anti-affinity: not the domain of a pod that matches": (
        refuses(term("x")), [running("p", "a1", **X)], ["b", "c"],
    ),
    "anti-affinity: one node each": (
        refuses(term("x", "kubernetes.io/hostname")) | X, [running("p", "a1", **X)], ["a2", "b", "c"],
    ),
    "anti-affinity to a pod on a node without the label": (
        refuses(term("x")), [running("p", "c", **X)], ["a1", "a2", "b", "c"],
    ),
    "a running pod refuses this one": (X, [running("p", "a1", **refuses(term("x")))], ["b", "c"]),
    "it does not refuse others": (Y, [running("p", "a1", **refuses(term("x")))], ["a1", "a2", "b", "c"]),
    "a pod that is being deleted is still there": (
        refuses(term("x")), [running("p", "a1", deleting=True, **X)], ["b", "c"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("over", "there", "names"), CASES.values(), ids=CASES)
def test_pods_go_to(over, there, names):
    cluster = cluster_state(NODES, there)
    cluster.namespaces.set("of-t", {"team": "t"})
    assert passes(InterPodAffinity(), query(cluster, pod("new", **over))) == names


def test_why_nodes_are_refused_in_kube_scheduler_s_words():
    there = [running("x", "a1", **X), running("z", "b", labels={"app": "z"}, **refuses(term("me")))]
    both = wants(term("x"))["affinity"] | refuses(term("y", "kubernetes.io/hostname"))["affinity"]
    cluster = cluster_state(NODES, [*there, running("y", "a2", **Y)])
    asked = query(cluster, pod("new", labels={"app": "me"}, affinity=both))
    assert reasons(InterPodAffinity(), asked) == {
        "node(s) didn't match pod affinity rules": 2,
        "node(s) didn't match pod anti-affinity rules": 1,
    }
    asked = query(cluster, pod("new", labels={"app": "me"}))
    assert reasons(InterPodAffinity(), asked) == {"node(s) didn't satisfy existing pods anti-affinity rules": 1}


def test_what_pods_do_is_followed():
    cluster = cluster_state(NODES, [running("p", "a1", **Y)])
    new = pod("new", **wants(term("x")))
    assert passes(InterPodAffinity(), query(cluster, new)) == []
    assert cluster.set_pod(running("p", "a1", **X), NOW) & Change.PLACED, "its labels have changed"
    assert passes(InterPodAffinity(), query(cluster, new)) == ["a1", "a2"]
    assert cluster.set_pod(running("q", "b", **X), NOW) == Change.PLACED
    cluster.remove_pod("uid-p")
    assert passes(InterPodAffinity(), query(cluster, new)) == ["b"]
    cluster.remove_node("b")
    assert passes(InterPodAffinity(), query(cluster, new)) == []


def test_until_the_last_of_those_that_refuse_has_ended():
    there = [running(n, "a1", **refuses(term("x"))) for n in ("one", "two")]
    cluster = cluster_state(NODES, there)
    asked = query(cluster, pod("p", **X))
    cluster.remove_pod("uid-one")
    assert passes(InterPodAffinity(), asked) == ["b", "c"]
    cluster.remove_pod("uid-two")
    assert passes(InterPodAffinity(), asked) == ["a1", "a2", "b", "c"]
    assert not cluster.terms.refusing


def test_a_placement_changes_answers_only_where_it_is_the_first_or_the_last():
    plugin = InterPodAffinity()
    cluster = cluster_state(NODES)
    for over in (wants(term("x")), refuses(term("x"))):
        state = plugin.prepare(query(cluster, pod("new", **over)))
        assert plugin.add_pod(state, pod("first", **X), 0).tolist() == [0, 1]
        assert plugin.add_pod(state, pod("second", **X), 1).tolist() == []
        assert plugin.remove_pod(state, pod("first", **X), 0).tolist() == []
        assert plugin.remove_pod(state, pod("second", **X), 1).tolist() == [0, 1]
        assert plugin.add_pod(state, pod("nowhere", **X), 3).tolist() == []


@pytest.mark.parametrize("sort", [wants, refuses])
def test_a_pod_of_many_terms_is_checked_by_their_topology_keys(sort):
    """Pods to evict are put back one by one, and the node is checked after each: 100 pods took 0.3 s with 300 terms."""
    plugin = InterPodAffinity()

    def steps(number):
        cluster = cluster_state(NODES, [running("x", "a1", **X)])
        terms = [term(f"x{i}", ("zone", "kubernetes.io/hostname")[i % 2]) for i in range(number)]
        state = plugin.prepare(query(cluster, pod("new", **sort(*terms))))
        return steps_of(lambda: plugin.check(state, np.array([0])))

    assert steps(200) == steps(2)


def test_a_pod_that_several_terms_select_is_counted_until_it_is_gone():
    plugin = InterPodAffinity()
    every = term("x") | {"labelSelector": {}}
    cluster = cluster_state(NODES, [running("first", "a2", **X)])
    state = plugin.prepare(query(cluster, pod("new", **refuses(term("x"), every, term("x", "nowhere")))))
    assert plugin.check(state, slice(0, 4)).tolist() == [2, 2, 0, 0]
    assert plugin.add_pod(state, pod("second", **Y), 0).tolist() == []
    assert plugin.remove_pod(state, pod("first", **X), 1).tolist() == []
    assert plugin.check(state, slice(0, 4)).tolist() == [2, 2, 0, 0]
    assert plugin.remove_pod(state, pod("second", **Y), 0).tolist() == [0, 1]
    assert plugin.check(state, slice(0, 4)).tolist() == [0, 0, 0, 0]


def seconds_beside_terms_of_pods_on(rows):
    """To prepare for a pod that 330 terms of another namespace select, each of a pod on so many rows."""
    nodes = [node(f"n{i:03}", labels={"zone": f"z{i % 5}"}) for i in range(150)]
    somewhere = [
        term("x", "kubernetes.io/hostname", namespaceSelector={}, labelSelector={"matchLabels": {"app": "x"}})
        | {"namespaces": [f"n{i}"]}
        for i in range(330)
    ]
    pods = [
        running(f"p{row}-{i}", f"n{row:03}", namespace="crowd", **refuses(*somewhere[i : i + 33]))
        for row in range(rows)
        for i in range(0, 330, 33)
    ]
    asked = query(cluster_state(nodes, pods=pods), pod("new", **X))
    taken = []
    for _ in range(7):
        began = time.thread_time()
        state = InterPodAffinity().prepare(asked)
        taken.append(time.thread_time() - began)
    assert (state.refusing["kubernetes.io/hostname"].by_row(slice(0, 150)) > 0).sum() == rows
    return min(taken)


def test_terms_of_pods_on_many_rows_cost_little_more_than_those_of_pods_on_one():
    """24 ms for 330 terms, with each signature of a pod that they select."""
    assert seconds_beside_terms_of_pods_on(150) <= 4 * seconds_beside_terms_of_pods_on(1)
