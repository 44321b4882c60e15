"""Counts of young pods against a plain list of pods."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from concerto.capacity.pod_ages import SLOT_SECONDS, PodAges

AGES = (0.0, 0.5, 1.0, 3.0)

events = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 2), st.integers(0, 40)),  # node, age in slots when reported
        st.tuples(st.just("end"), st.integers(0, 10_000), st.just(0)),  # which of the living
        st.tuples(st.just("wait"), st.integers(1, 12), st.just(0)),  # slots
        st.tuples(st.just("wait"), st.just(500), st.just(0)),
    ),
    max_size=60,
)


@given(events)
def test_counts_are_those_of_a_list_of_pods(steps):
    slot, ages, living = 100, PodAges(3, AGES), []
    ages.advance(slot * SLOT_SECONDS)
    for what, a, b in steps:
        if what == "start":
            start = slot - b
            ages.started(a, start * SLOT_SECONDS)
            living.append((a, start))
        elif what == "end" and living:
            node, start = living.pop(a % len(living))
            ages.ended(node, start * SLOT_SECONDS)
        elif what == "wait":
            slot += a
            ages.advance(slot * SLOT_SECONDS)
        for node in range(3):
            of_node = [slot - start for n, start in living if n == node]
            assert ages.pods[node] == len(of_node)
            for k, age in enumerate(AGES):
                assert ages.younger[k, node] == sum(a < round(age / SLOT_SECONDS) for a in of_node)


@pytest.mark.parametrize(
    ("case", "times"),
    [("time that goes back changes nothing", [10.0, 3.0]), ("time that leaps makes all pods old", [10.0, 1e9])],
)
def test_clocks_that_jump(case, times):
    ages = PodAges(1, AGES)
    for at in times:
        ages.advance(at)
        ages.started(0, max(times[: times.index(at) + 1]))
    ages.advance(max(times))
    expected = 2 if times[1] < times[0] else 1
    assert ages.younger[:, 0].tolist() == [0, expected, expected, expected], case
    assert ages.pods[0] == 2


def test_an_end_without_a_start_is_ignored():
    ages = PodAges(1, AGES)
    ages.advance(5.0)
    ages.ended(0, 4.9)
    assert ages.pods[0] == 0
    assert ages.younger.sum() == 0
