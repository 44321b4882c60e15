"""The control law: how many pods a node should run, and how fast they may start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.api.capacity_settings import SlotSettings
from concerto.capacity.large_pods import LargePods
from concerto.capacity.slots import CPUBatch, FirstGuess, PodsByAge, SlotLaw

STEADY = SlotSettings(head_room=1.0, adaptation=0.0, turnaround_seconds=0.0, extra_pods=0.0)


def run(law, seconds, *, pods, load, used, own=1.0, settings=STEADY, life=10.0, ends_per_second=1.0, large=None):
    """Let so many seconds of the same thing pass, with completions at an even rate."""
    owed = 0.0
    for _ in range(seconds):
        owed += ends_per_second
        while owed >= 1.0:
            owed -= 1.0
            law.ended(0, life)
            law.started(0, 0.0)
        law.update(
            settings,
            CPUBatch(np.full((1, 10), load), np.full((1, 10), used), np.array([own]), np.array([True])),
            PodsByAge(
                present=np.array([float(pods)]),
                settled=np.array([0.0]),
                certain=np.array([float(pods)]),
                shown=np.full((1, 10), float(pods)),
                shown_age=np.zeros(1),
            ),
            large or LargePods(1),
            FirstGuess(np.array([0.1]), 0.01),
            elapsed_seconds=1.0,
        )
    return law


SEVEN = {
    "a node that just does not idle runs as many as it should": {"pods": 7, "load": 1.0, "used": 1.0},
    "an idle node names the number that would fill it": {"pods": 3.5, "load": 0.5, "used": 0.5},
    "an overloaded node names the number that would not wait": {"pods": 14, "load": 2.0, "used": 1.0},
    "what the node needs for itself is not the pods'": {"pods": 7, "load": 1.0, "used": 1.0, "own": 1.0},
}


@pytest.mark.parametrize("sentence", SEVEN)
def test_the_same_number_is_named_whatever_runs_now(sentence):
    assert run(SlotLaw(1), 200, **SEVEN[sentence]).window[0] == pytest.approx(7.0, rel=0.02)


def test_half_of_a_node_that_others_use_leaves_half_of_the_slots():
    alone = run(SlotLaw(1), 200, pods=4, load=0.5, used=0.5).window[0]
    shared = run(SlotLaw(1), 200, pods=4, load=1.0, used=1.0, own=0.5).window[0]
    assert shared == pytest.approx(alone / 2, rel=0.05)


def test_nothing_is_believed_before_a_pod_has_lived():
    law = run(SlotLaw(1), 10, pods=2, load=0.0, used=0.0, ends_per_second=0.0)
    assert law.window[0] == pytest.approx(2.0 + 0.5 * 10)


def test_an_idle_node_has_room_for_what_its_care_does_not_let_start_yet():
    law = run(SlotLaw(1), 1, pods=0, load=0.0, used=0.0, ends_per_second=0.0)
    assert (law.window[0], law.room[0]) == (2.0, pytest.approx(10.0))
    run(law, 60, pods=1, load=0.02, used=0.02, ends_per_second=0.0)
    assert np.minimum(law.window - 1.0, law.tokens)[0] == pytest.approx(1.0)
    assert law.room[0] == pytest.approx(10.0)


def test_room_is_no_more_than_what_pods_have_named():
    law = run(SlotLaw(1), 200, pods=3.5, load=0.5, used=0.5)
    assert law.room[0] == pytest.approx(law.window[0]) == pytest.approx(7.0, rel=0.02)


def test_a_full_node_has_no_room_beyond_its_window():
    law = run(SlotLaw(1), 20, pods=3, load=1.0, used=1.0, ends_per_second=0.0)
    assert law.room[0] == law.window[0]


def test_load_stops_a_blind_start():
    law = run(SlotLaw(1), 20, pods=3, load=1.0, used=1.0, ends_per_second=0.0)
    assert law.window[0] <= 3.0


def test_a_window_grows_only_to_a_few_times_what_was_run():
    law = run(SlotLaw(1), 300, pods=2, load=0.01, used=0.01)
    assert law.window[0] == pytest.approx(STEADY.growth * 2 + 1, rel=0.01)


def test_starts_are_paced_by_what_ends():
    law = run(SlotLaw(1), 100, pods=10, load=1.0, used=1.0, life=10.0)
    law.started(0, 0.0)
    law.started(0, 0.0)
    assert law.window[0] <= 10.0
    before = law.tokens[0]
    run(law, 1, pods=10, load=1.0, used=1.0, ends_per_second=0.0)
    assert law.tokens[0] - before == pytest.approx(STEADY.pace * 1.0, rel=0.05)


def test_a_node_that_idled_for_a_while_starts_the_next_workload_as_if_pods_cost_more():
    law = run(SlotLaw(1), 100, pods=40, load=0.4, used=0.4)
    before = law.window[0]
    run(law, 1, pods=0, load=0.0, used=0.0, ends_per_second=0.0)
    assert law.window[0] == pytest.approx(1 / (1 / before + 0.01), rel=0.1)


def test_all_is_forgotten_after_a_long_idle_time():
    law = run(SlotLaw(1), 100, pods=10, load=0.5, used=0.5)
    run(law, 12, pods=0, load=0.0, used=0.0, ends_per_second=0.0)
    assert law.window[0] == pytest.approx(2.0)


@settings(deadline=None)
@given(
    pods=st.integers(0, 110),
    load=st.floats(0.0, 2.0),
    used=st.floats(0.0, 1.0),
    own=st.floats(0.0, 1.0),
    life=st.floats(0.01, 1e5),
    rate=st.floats(0.0, 50.0),
)
def test_windows_are_finite_and_let_at_least_one_pod_run(pods, load, used, own, life, rate):
    law = run(
        SlotLaw(1), 20, pods=pods, load=load, used=used, own=own, life=life, ends_per_second=rate,
        settings=SlotSettings(),
    )  # fmt: skip
    assert np.isfinite(law.window[0])
    assert np.isfinite(law.tokens[0])
    assert law.window[0] >= 1.0


def large_pod(share, wanted):
    """One large pod that uses so much of the node and wants so much."""
    found = LargePods(1)
    found.count[:], found.share[:], found.wanted[:], found.passing[:] = 1.0, share, wanted, True
    return found


def test_beside_a_large_pod_there_is_room_for_what_it_leaves_and_it_is_no_part_of_the_mean():
    law = run(SlotLaw(1), 200, pods=7, load=1.0, used=1.0)
    beside = run(law, 60, pods=1 + 3.5, load=1.0, used=1.0, large=large_pod(0.5, 0.5), ends_per_second=0.35)
    assert beside.window[0] == pytest.approx(1 + 3.5, rel=0.05)
    assert beside.share()[0] == pytest.approx(1 / 7, rel=0.05)


def test_a_large_pod_that_wants_the_whole_node_gets_it_and_others_have_it_at_once_when_it_is_gone():
    law = run(SlotLaw(1), 200, pods=7, load=1.0, used=1.0)
    alone = run(law, 60, pods=1, load=1.0, used=1.0, large=large_pod(1.0, 1.0), ends_per_second=0.0)
    assert alone.window[0] == pytest.approx(1.0, abs=0.05)
    after = run(law, 30, pods=7, load=1.0, used=1.0)
    assert after.window[0] == pytest.approx(7.0, rel=0.1)
