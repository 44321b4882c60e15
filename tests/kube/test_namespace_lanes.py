"""Namespaces have turns, and how many of them there are costs nothing."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from concerto.kube.namespace_lanes import NamespaceLanes
from support.step_counts import steps_of

NAMESPACES = st.sampled_from("abcd")


def test_namespaces_have_turns_and_things_of_one_come_in_their_order():
    lanes: NamespaceLanes[str] = NamespaceLanes()
    for namespace, key in ("a1", "a2", "a3", "b1", "c1"):
        lanes.put(namespace, key, namespace + key)
    lanes.put("a", "1", "a1 once more")
    assert [lanes.take() for _ in range(6)] == ["a1 once more", "b1", "c1", "a2", "a3", None]


def test_those_that_may_have_no_turn_have_theirs_after_all_others():
    lanes: NamespaceLanes[str] = NamespaceLanes()
    lanes.pause("a")
    for namespace in "abc":
        lanes.put(namespace, "1", namespace)
    lanes.pause("c")
    assert lanes.has_turn
    assert lanes.take() == "b"
    assert not lanes.has_turn
    assert lanes.take() is None
    for namespace in "cab":
        lanes.resume(namespace)
    assert [lanes.take() for _ in range(3)] == ["c", "a", None]


class Lanes(RuleBasedStateMachine):
    """Against plain dictionaries, which are walked for each question."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: NamespaceLanes[tuple[str, int]] = NamespaceLanes()
        self.model: OrderedDict[str, dict[int, tuple[str, int]]] = OrderedDict()
        self.paused: set[str] = set()

    @rule(namespace=NAMESPACES, key=st.integers(0, 5))
    def put(self, namespace: str, key: int) -> None:
        self.lanes.put(namespace, key, (namespace, key))
        self.model.setdefault(namespace, {})[key] = (namespace, key)

    @rule(namespace=NAMESPACES, key=st.integers(0, 5))
    def discard(self, namespace: str, key: int) -> None:
        self.lanes.discard(namespace, key)
        self.model.get(namespace, {}).pop(key, None)
        self.clean_up()

    @rule(namespace=NAMESPACES)
    def pause(self, namespace: str) -> None:
        self.lanes.pause(namespace)
        self.paused.add(namespace)

    @rule(namespace=NAMESPACES)
    def resume(self, namespace: str) -> None:
        self.lanes.resume(namespace)
        if namespace in self.paused and namespace in self.model:
            self.model.move_to_end(namespace)
        self.paused.discard(namespace)

    @rule()
    def take(self) -> None:
        namespace = next((each for each in self.model if each not in self.paused), None)
        assert self.lanes.has_turn == (namespace is not None)
        self.compare(self.lanes.take(), namespace)

    @precondition(lambda self: self.model)
    @rule()
    def take_of_most(self) -> None:
        taken = self.lanes.take_of_most()
        assert len(self.model[taken[0]]) == max(map(len, self.model.values()))
        self.compare(taken, taken[0])

    def compare(self, taken: tuple[str, int] | None, namespace: str | None) -> None:
        if namespace is None:
            assert taken is None
            return
        lane = self.model[namespace]
        assert taken == lane.pop(next(iter(lane)))
        self.model.move_to_end(namespace)
        self.clean_up()

    def clean_up(self) -> None:
        for namespace in [each for each, lane in self.model.items() if not lane]:
            del self.model[namespace]

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.lanes) == sum(map(len, self.model.values()))
        for namespace in "abcd":
            for key in range(6):
                assert self.lanes.holds(namespace, key) == (key in self.model.get(namespace, {}))


TestLanes = Lanes.TestCase


def filled(namespaces: int) -> NamespaceLanes[str]:
    lanes: NamespaceLanes[str] = NamespaceLanes()
    for number in range(namespaces):
        lanes.put(f"n{number}", "1", "thing")
    lanes.put("n3", "2", "thing")
    return lanes


@pytest.mark.parametrize(
    "act",
    [
        lambda lanes: lanes.put("another", "1", "thing"),
        lambda lanes: lanes.take(),
        lambda lanes: lanes.has_turn,
        lambda lanes: lanes.take_of_most(),
        lambda lanes: lanes.discard("n3", "1"),
    ],
    ids=["put", "take", "has a turn", "take of most", "discard"],
)
def test_nothing_costs_more_where_things_of_more_namespaces_wait(act):
    few, many = filled(10), filled(1000)
    assert steps_of(lambda: act(many)) == steps_of(lambda: act(few))


def test_a_turn_costs_no_more_where_many_namespaces_may_have_none():
    def steps(blocked: int) -> int:
        lanes = filled(10)
        for number in range(blocked):
            lanes.put(f"blocked{number}", 1, "thing")
            lanes.pause(f"blocked{number}")
        return steps_of(lanes.take)

    assert steps(1000) == steps(10)
