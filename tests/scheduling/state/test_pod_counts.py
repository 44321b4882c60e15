"""Counts of selected pods against counting anew, after any pods come, change rows and go."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from concerto.api.selectors import LabelSelector
from concerto.scheduling.state import pod_counts
from concerto.scheduling.state.comparisons import TooManyComparisons
from concerto.scheduling.state.pod_counts import PodCounts
from concerto.scheduling.state.pod_selection import PodSelection
from support.scheduling_builders import NOW, cluster_state, node, pod
from support.step_counts import steps_of

ROWS = 4


def selects(app, *namespaces, terminating=True):
    selector = LabelSelector.from_raw({"matchLabels": {"app": app}} if app else {})
    return PodSelection(((frozenset(namespaces) or None, selector),), terminating)


SELECTIONS = [
    selects("x", "default"), selects("y", "default"), selects("x", "default", "other"), selects("", "other"),
    selects("x"),
    selects("x", "default", terminating=False),
    PodSelection((*selects("x", "default").terms, *selects("").terms)),
]  # fmt: skip


class CountsMachine(RuleBasedStateMachine):
    """With room for four counts, so that counts are dropped and made again."""

    def __init__(self):
        super().__init__()
        self.before = pod_counts.MAX_COUNTS
        pod_counts.MAX_COUNTS = 4
        self.counts = PodCounts()
        self.counts.grow(ROWS)
        self.there = {}

    def teardown(self):
        pod_counts.MAX_COUNTS = self.before

    @rule(
        uid=st.sampled_from("abcdef"),
        row=st.integers(0, ROWS - 1),
        app=st.sampled_from("xy"),
        namespace=st.sampled_from(["default", "other"]),
        deleting=st.booleans(),
    )
    def comes(self, uid, row, app, namespace, deleting):
        if uid in self.there:
            self.counts.pod_removed(*self.there.pop(uid))
        made = pod(uid, uid=uid, labels={"app": app}, namespace=namespace, deleting=deleting)
        self.counts.pod_added(made, row)
        self.there[uid] = (made, row)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def goes(self, data):
        uid = data.draw(st.sampled_from(sorted(self.there)))
        self.counts.pod_removed(*self.there.pop(uid))

    @invariant()
    def counts_are_what_is_there(self):
        for selection in SELECTIONS:
            want = [sum(at == row and selection.matches(p) for p, at in self.there.values()) for row in range(ROWS)]
            assert self.counts.by_row([selection])[0].tolist() == want


TestCountsMachine = CountsMachine.TestCase
TestCountsMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def long_ones(count):
    """Selections of 1,902 parts each."""
    absent = [{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(1900)]
    each = [[*absent, {"key": f"own{i}", "operator": "DoesNotExist"}] for i in range(count)]
    return [PodSelection(((None, LabelSelector.from_raw({"matchExpressions": raw})),)) for raw in each]


TOO_MANY = {"very many": [selects(f"app{i}") for i in range(pod_counts.MAX_OF_ONE + 1)], "long ones": long_ones(6)}


@pytest.mark.parametrize("selections", TOO_MANY.values(), ids=TOO_MANY)
def test_selectors_of_one_pod_that_each_pod_would_be_compared_with_are_so_many_at_most(selections):
    counts = PodCounts()
    counts.grow(ROWS)
    with pytest.raises(TooManyComparisons, match="more than 1024 different ones, or have more than 10000 requirements"):
        counts.by_row(selections)
    assert not counts
    assert len(counts.by_row(selections[:-1])) == len(selections) - 1
    assert len(counts.by_row([selects("x")] * 300)) == 300, "only different ones count"


def test_pods_that_share_their_labels_are_compared_once():
    def steps(count):
        labels, cluster = {"app": "web"}, cluster_state([node("n")])
        for i in range(count):
            cluster.set_pod(replace(pod(f"p{i}", nodeName="n"), labels=labels), NOW)
        absent = [{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(40)]
        asked = PodSelection(((None, LabelSelector.from_raw({"matchExpressions": absent})),))
        found = []
        taken = steps_of(lambda: found.extend(cluster.pod_counts.by_row([asked])))
        assert found[0][cluster.row_of["n"]] == count
        return taken

    assert steps(40) < 2 * steps(10)


def test_a_pod_that_comes_is_compared_only_with_selections_of_its_namespace_and_labels():
    def steps(count):
        counts = PodCounts()
        counts.grow(ROWS)
        for i in range(count):
            counts.by_row([selects(f"other{i}"), selects(f"other{i}", "default"), selects("x", f"other{i}")])
        (column,) = counts.by_row([selects("x")])
        taken = steps_of(lambda: counts.pod_added(pod("p", labels={"app": "x"}), 0))
        assert column[0] == 1
        return taken

    assert steps(50) < 1.2 * steps(5)


def test_a_pod_that_changes_to_what_can_not_be_counted_is_counted_as_before():
    counts, known = PodCounts(), pod("p", labels={"app": "x"})
    counts.grow(ROWS)
    counts.pod_added(known, 0)
    with pytest.raises(TypeError):
        counts.pod_updated(known, replace(known, labels={"app": []}), 0)
    assert counts.by_row([selects("x")])[0].tolist() == [1, 0, 0, 0]
    counts.pod_removed(known, 0)
    assert not counts.by_row([selects("x")])[0].any()
