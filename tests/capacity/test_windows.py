"""Windows of the last minutes, against numpy on the whole stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.capacity.windows import WINDOW_SECONDS, Windows


def reference(seconds, now):
    """Per window from all 1-second means (NaN: none), newest last; the second of ``now`` is not complete."""
    reported = {}
    done = np.array(seconds[: int(now)])
    for name, length in WINDOW_SECONDS.items():
        inside = done[-length:] if len(done) else done
        inside = inside[~np.isnan(inside)]
        if len(inside):
            reported[name] = (inside.mean(), inside.std(), inside[-1], len(inside))
        else:
            reported[name] = (np.nan, np.nan, np.nan, 0)
    return reported


def reported(windows, now, node=0, resource=0):
    return {
        name: tuple(array[node, resource] for array in (w.average, w.standard_deviation, w.latest, w.covered_seconds))
        for name, w in windows.statistics(now).items()
    }


def agree(ours, theirs):
    for name in WINDOW_SECONDS:
        assert ours[name] == pytest.approx(theirs[name], nan_ok=True, abs=1e-12), name


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2000), st.floats(0, 0.3), st.floats(0.0, 0.9))
def test_streams_with_gaps_agree_with_numpy(seed, length, gap_rate, base):
    rng = np.random.default_rng(seed)
    values = np.clip(base + 0.1 * rng.standard_normal((length, 10)), 0, 1)
    present = rng.random(length) >= gap_rate
    windows = Windows(1, 1)
    windows.add(0.0, np.zeros((1, 1)), np.zeros((1, 1), dtype=bool))
    for second in np.flatnonzero(present):
        for k, value in enumerate(values[second]):
            windows.add(second + k / 10, np.full((1, 1), value))
    means = np.where(present, values.mean(axis=1), np.nan)
    agree(reported(windows, float(length)), reference(means, length))


def test_a_small_deviation_of_a_large_mean_survives():
    windows = Windows(1, 1)
    for second in range(900):
        windows.add(float(second), np.full((1, 1), 0.9 + 1e-9 * (second % 2)))
    assert reported(windows, 900.0)["15m"][1] == pytest.approx(0.5e-9, rel=1e-3)


def test_nothing_measured_is_not_zero():
    windows = Windows(1, 2)
    statistics = windows.statistics(5.0)["5m"]
    assert np.isnan(statistics.average).all()
    assert statistics.covered_seconds.tolist() == [[0, 0]]


def test_the_present_second_does_not_count_until_it_is_over():
    windows = Windows(1, 1)
    windows.add(0.0, np.full((1, 1), 0.5))
    assert reported(windows, 0.95)["5m"][3] == 0
    assert reported(windows, 1.0)["5m"] == pytest.approx((0.5, 0.0, 0.5, 1))


def test_a_resource_that_was_not_measured_is_a_gap_in_that_resource_alone():
    windows = Windows(1, 2)
    for second in range(3):
        windows.add(float(second), np.array([[0.2, 0.9]]), np.array([[True, second != 1]]))
    assert reported(windows, 3.0, resource=0)["5m"][3] == 3
    assert reported(windows, 3.0, resource=1)["5m"] == pytest.approx((0.9, 0.0, 0.9, 2))


@pytest.mark.parametrize(
    ("case", "times", "covered"),
    [
        ("a clock that goes back adds to the present second", [0.0, 1.0, 2.0, 0.5, 2.5, 3.0], 3),
        ("a clock that leaps past the ring forgets it", [0.0, 1.0, 2.0, 5000.0, 5001.0], 1),
        ("a leap of just the ring's length", [0.0, 1.0, 900.0, 901.0], 2),
    ],
)
def test_clocks_that_jump(case, times, covered):
    windows = Windows(1, 1)
    for at in times:
        windows.add(at, np.full((1, 1), 0.5))
    ours = reported(windows, times[-1])["15m"]
    assert ours[3] == covered, case
    assert ours[0] == pytest.approx(0.5), case


def test_statistics_of_some_nodes_are_rows_of_the_statistics_of_all():
    rng = np.random.default_rng(5)
    windows = Windows(4, 2)
    for second in range(20):
        windows.add(float(second), rng.random((4, 2)))
    every, some = windows.statistics(20.0), windows.statistics(20.0, np.array([3, 1]))
    for name in WINDOW_SECONDS:
        assert some[name].average.tolist() == every[name].average[[3, 1]].tolist()
