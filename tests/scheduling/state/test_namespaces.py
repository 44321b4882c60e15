"""Which namespaces affinity terms select, and what finding that out costs."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from concerto.api.pod_constraints import parse_pod_affinity
from concerto.scheduling.state import namespaces as module
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.comparisons import TooManyComparisons
from concerto.scheduling.state.namespaces import Namespaces
from support.step_counts import steps_of


def term(namespace_selector=None, **over):
    return parse_pod_affinity({"topologyKey": "zone", "namespaceSelector": namespace_selector, **over})


def by_label(**labels):
    return term({"matchLabels": labels})


def known(**by_name):
    namespaces = Namespaces()
    for name, labels in by_name.items():
        namespaces.set(name, labels)
    return namespaces


NOT_A = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (term(), {"own"}),
        (term(namespaces=["x"]), {"x"}),
        (term({}), None),
        (by_label(team="a"), {"a1", "a2"}),
        (by_label(team="a", tier="db"), {"a2"}),
        (by_label(team="nobody"), set()),
        (term(NOT_A), {"b", "bare"}),
        (term({"matchLabels": {"team": "b"}}, namespaces=["x"]), {"b", "x"}),
    ],
)
def test_namespaces_are_selected_by_name_and_by_label(asked, expected):
    namespaces = known(a1={"team": "a"}, a2={"team": "a", "tier": "db"}, b={"team": "b"}, bare={})
    assert namespaces.selected([asked], "own") == [expected]


def test_what_a_selector_selects_changes_with_the_labels():
    namespaces = known(a={"team": "a"}, b={"team": "a"})
    asked = by_label(team="a")
    assert namespaces.selected([asked], "own") == [{"a", "b"}]
    assert namespaces.set("b", {"team": "a"}) == Change.NOTHING
    assert namespaces.set("b", {"team": "b"}) == Change.PLACED
    assert namespaces.selected([asked], "own") == [{"a"}]
    namespaces.set("a", None)
    assert namespaces.selected([asked], "own") == [frozenset()]
    namespaces.set("b", None)
    assert not namespaces._with_label and not namespaces._with_key


REQUIREMENTS = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values if "In" in operator else []},
    st.sampled_from(("team", "tier")),
    st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=2),
)
LABELS = st.dictionaries(st.sampled_from(("team", "tier")), st.sampled_from("abc"))


@given(st.lists(LABELS, max_size=6), st.lists(REQUIREMENTS, min_size=1, max_size=3))
def test_those_are_selected_whose_labels_meet_every_requirement(labels, requirements):
    namespaces = known(**{f"n{i}": each for i, each in enumerate(labels)})
    asked = term({"matchExpressions": requirements})
    expected = {f"n{i}" for i, each in enumerate(labels) if asked.namespace_selector.matches(each)}
    assert namespaces.selected([asked], "own") == [expected]


def test_they_are_not_compared_one_by_one():
    def steps(count):
        namespaces = known(**{f"n{i}": {"team": "a"} for i in range(count)})
        return steps_of(lambda: namespaces.selected([term(NOT_A)], "own"))

    assert steps(1000) < 1.2 * steps(10)


def test_values_that_are_named_again_and_what_nothing_is_left_for_cost_nothing():
    namespaces = known(mine={"name": "mine"}, **{f"n{i}": {"tier": "a"} for i in range(50)})

    def steps(name, requirements, values):
        not_a = {"key": "tier", "operator": "NotIn", "values": ["a"] * values}
        asked = term({"matchLabels": {"name": name}, "matchExpressions": [not_a] * requirements})
        expected = {"mine"} if name == "mine" else set()
        assert namespaces.selected([asked], "own") == [expected]
        namespaces._matching.clear()
        selector = asked.namespace_selector
        return steps_of(lambda: namespaces._find(selector))

    assert steps("mine", 1, 10_000) == steps("mine", 1, 1)
    assert steps("nobody", 100, 100) == steps("nobody", 100, 1)


def test_selectors_are_compared_with_namespaces_once_and_only_with_those_that_have_the_label_they_require():
    namespaces = known(**{f"n{i}": {"kubernetes.io/metadata.name": f"n{i}", "team": "a"} for i in range(2000)})
    one = by_label(**{"kubernetes.io/metadata.name": "n7", "team": "a"})
    assert steps_of(lambda: namespaces.selected([one], "own")) < 1000
    every = term(NOT_A)
    first = steps_of(lambda: namespaces.selected([every], "own"))
    assert steps_of(lambda: namespaces.selected([every], "own")) < first


@pytest.mark.parametrize(("terms", "parts"), [(200, 1), (1, 200)], ids=["many terms", "a long one"])
def test_selectors_that_would_be_compared_for_too_long_with_namespaces_are_refused_before(terms, parts):
    namespaces = known(**{f"n{i}": {} for i in range(3000)})
    expressions = [[{"key": f"k{i}-{j}", "operator": "DoesNotExist"} for j in range(parts)] for i in range(terms)]
    asked = [term({"matchExpressions": each}) for each in expressions]
    with pytest.raises(TooManyComparisons, match="more than 500000 comparisons with namespaces"):
        namespaces.selected(asked, "own")
    assert not namespaces._matching


def test_few_selectors_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "MAX_REMEMBERED", 3)
    namespaces = known(a={"team": "0"})
    for i in range(9):
        namespaces.selected([by_label(team=str(i))], "own")
    assert len(namespaces._matching) == 3
