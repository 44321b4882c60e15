"""Terms of pods on nodes: which of them select a pod, and that those of other namespaces cost it nothing."""

from __future__ import annotations

import itertools

import pytest

from concerto.scheduling.state.pod_terms import PodTerms, refusing_terms
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
    assert not terms._by_namespace


def test_terms_of_other_namespaces_cost_a_pod_nothing():
    terms = PodTerms(PodSignatures(), refusing_terms)
    terms.pod_added(refuses("own", "quiet"), 0)

    def ask():
        return list(terms.selecting("quiet", {"app": "a"}, {}))

    before = steps_of(ask)
    for i in range(1000):
        terms.pod_added(refuses(f"p{i}", "crowd", app=str(i)), i)
    assert steps_of(ask) == before
