"""Terms of pods on nodes: which of them select a pod, and that those of other namespaces cost it nothing."""

from __future__ import annotations

import itertools

import pytest

from concerto.scheduling.state.pod_terms import MAX_PARTS_OF_A_NAMESPACE, PodTerms, refusing_terms
from concerto.scheduling.state.signatures import PodSignatures
from support.scheduling_builders import pod
from support.step_counts import steps_of

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TEAM_A = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
WHERE = {
    "its own namespace": {},
    "named namespaces": {"namespaces": ["y", "z", "y"]},
    "all namespaces": {"namespaceSelector": {}},
    "namespaces by labels": TEAM_A,
    "named namespaces, and others by labels": TEAM_A | {"namespaces": ["z"]},
}


def refuses(name, namespace, app="a", **where):
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}, **where}
    return pod(name, namespace=namespace, nodeName="n", affinity={"podAntiAffinity": {REQUIRED: [term]}})


@pytest.mark.parametrize(
    ("where", "asked", "team"), list(itertools.product(WHERE, ("x", "y", "z"), ("a", "b"))), ids=" ".join
)
def test_a_term_selects_pods_of_the_namespaces_that_it_names(where, asked, team):
    terms = PodTerms(PodSignatures(), refusing_terms)
    terms.pod_added(owner := refuses("p", "x", **WHERE[where]), 3)
    terms.pod_added(refuses("q", "x", app="b"), 4)
    (term,) = owner.shape.anti_affinity
    expected = [((1, term), {3: 1})] if term.selects("x", asked, {"app": "a"}, {"team": team}) else []
    assert list(terms.selecting(asked, {"app": "a"}, {"team": team})) == expected
    terms.pod_removed(owner, 3)
    terms.pod_removed(refuses("q", "x", app="b"), 4)
    assert not terms
    assert not terms._at


def test_terms_of_other_namespaces_cost_a_pod_nothing():
    terms = PodTerms(PodSignatures(), refusing_terms)
    terms.pod_added(refuses("own", "quiet"), 0)

    def ask():
        return list(terms.selecting("quiet", {"app": "a"}, {}))

    before = steps_of(ask)
    for i in range(1000):
        terms.pod_added(refuses(f"p{i}", "crowd", app=str(i)), i)
    assert steps_of(ask) == before


def everywhere(name, namespace, *expressions, **where):
    term = {"topologyKey": "zone", "labelSelector": {"matchExpressions": [*expressions]}, "namespaceSelector": {}}
    return pod(name, namespace=namespace, nodeName="n", affinity={"podAntiAffinity": {REQUIRED: [term | where]}})


def absent(i):
    return {"key": f"k{i}", "operator": "DoesNotExist"}


def required(i):
    return {"key": "app", "operator": "In", "values": [str(i)]}


@pytest.mark.parametrize("made", [absent, required])
@pytest.mark.parametrize("where", [{}, {"namespaceSelector": None, "namespaces": ["quiet"]}], ids=["all", "named"])
def test_terms_by_the_thousand_about_other_namespaces_cost_a_pod_little(made, where):
    terms = PodTerms(PodSignatures(), refusing_terms)

    def ask():
        return list(terms.selecting("quiet", {"app": "a"}, {}))

    for i in range(1000):
        terms.pod_added(everywhere(f"p{i}", "crowd", made(i), **where), 0)
    crowded = steps_of(ask)
    for i in range(1000, 3000):
        terms.pod_added(everywhere(f"p{i}", "crowd", made(i), **where), 0)
    assert steps_of(ask) <= crowded < 200_000


def test_terms_of_a_crowd_leave_out_those_of_no_other_namespace_and_none_of_its_own():
    terms = PodTerms(PodSignatures(), refusing_terms)
    for i in range(1000):
        terms.pod_added(everywhere(f"p{i}", "crowd", absent(i)), 0)
    terms.pod_added(everywhere("late", "other", absent("x")), 1)
    found = list(terms.selecting("quiet", {}, {}))
    assert len(found) == MAX_PARTS_OF_A_NAMESPACE // 3 + 1
    assert found[-1][1] == {1: 1}
    assert len(list(terms.selecting("crowd", {}, {}))) == 1001
    for i in range(900):
        terms.pod_removed(everywhere(f"p{i}", "crowd", absent(i)), 0)
    assert len(list(terms.selecting("quiet", {}, {}))) == 101, "those that were left out count once there is room"
