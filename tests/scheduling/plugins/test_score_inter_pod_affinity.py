import pytest

from concerto.scheduling.framework import Reach
from concerto.scheduling.plugins.inter_pod_affinity.score import InterPodAffinity
from support.scheduling_builders import cluster_state, node, pod, query, scores

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NODES = [node("a1", labels={"zone": "a"}), node("a2", labels={"zone": "a"}), node("b", labels={"zone": "b"}), node("c")]
X, Y = {"labels": {"app": "x"}}, {"labels": {"app": "y"}}


def term(app, key="zone", **over):
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **over}


def prefers(*weighted, kind="podAffinity"):
    return {"affinity": {kind: {PREFERRED: [{"weight": w, "podAffinityTerm": t} for w, t in weighted]}}}


def away(*weighted):
    return prefers(*weighted, kind="podAntiAffinity")


def wants(*terms):
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def running(name, on, **over):
    return pod(name, nodeName=on, **over)


CASES = {
    "no wish of anybody: nothing": ({}, [running("p", "a1", **X)], {}),
    "a wish that no pod meets: nothing": (prefers((5, term("x"))), [], {}),
    "near a pod": (prefers((5, term("x"))), [running("p", "a1", **X)], {"a1": 100, "a2": 100, "b": 0, "c": 0}),
    "away from a pod": (away((5, term("x"))), [running("p", "a1", **X)], {"a1": 0, "a2": 0, "b": 100, "c": 100}),
    "one pod counts as much as another": (
        prefers((5, term("x"))), [running("p", "a1", **X), running("q", "a1", **X), running("r", "b", **X)],
        {"a1": 100, "a2": 100, "b": 50, "c": 0},
    ),
    "weights are added": (
        prefers((10, term("x")), (30, term("y"))), [running("p", "a1", **X), running("q", "b", **Y)],
        {"a1": 33, "a2": 33, "b": 100, "c": 0},
    ),
    "a pod that runs wishes for this one": (
        X, [running("p", "b", **prefers((7, term("x"))))], {"a1": 0, "a2": 0, "b": 100, "c": 0},
    ),
    "a pod that runs would rather be without this one": (
        X, [running("p", "b", **away((7, term("x"))))], {"a1": 100, "a2": 100, "b": 0, "c": 100},
    ),
    "a pod that runs requires such pods": (
        X, [running("p", "b", **wants(term("x")))], {"a1": 0, "a2": 0, "b": 100, "c": 0},
    ),
    "its wish for others is no wish for this one": (Y, [running("p", "b", **prefers((7, term("x"))))], {}),
    "a wish for pods of the namespaces with a label": (
        prefers((5, term("x", namespaceSelector={"matchLabels": {"team": "t"}}))),
        [running("p", "a1", namespace="of-t", **X), running("q", "b", namespace="other", **X)],
        {"a1": 100, "a2": 100, "b": 0, "c": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("over", "there", "expected"), CASES.values(), ids=CASES)
def test_wishes(over, there, expected):
    cluster = cluster_state(NODES, there)
    cluster.namespaces.set("of-t", {"team": "t"})
    cluster.namespaces.set("other", {})
    assert scores(InterPodAffinity(), query(cluster, pod("new", **over))) == expected


def test_placements_are_followed_both_ways():
    cluster = cluster_state(NODES)
    plugin = InterPodAffinity()
    assert plugin.reach is Reach.DOMAIN
    both = X | {"affinity": prefers((5, term("x")))["affinity"]}
    state = plugin.prepare(query(cluster, pod("new", **both)))
    assert plugin.normalise(state, plugin.score(state, slice(0, 4))) is None
    first = pod("first", **both)
    assert plugin.add_pod(state, first, 0).tolist() == [0, 1]
    assert plugin.score(state, slice(0, 4)).tolist() == [10, 10, 0, 0], "its wish and the other's"
    assert plugin.remove_pod(state, first, 0).tolist() == [0, 1]
    assert plugin.score(state, slice(0, 4)).tolist() == [0, 0, 0, 0]
