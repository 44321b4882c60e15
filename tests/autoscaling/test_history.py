import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.autoscaling.history import NOTHING, Ring, as_matrix, season_step


def ring(*samples, step=15, length=8):
    filled = Ring(step, length)
    for at, demand in samples:
        filled = filled.add(at, demand)
    return filled


CASES = {
    "one bucket holds the mean of its samples": ([(0, 1.0), (5, 2.0), (14, 3.0)], (2000,)),
    "a gap is kept as a gap": ([(0, 1.0), (45, 2.0)], (1000, NOTHING, NOTHING, 2000)),
    "a sample from before the newest bucket is dropped": ([(30, 1.0), (14, 9.0)], (1000,)),
    "no number is no sample": ([(0, 1.0), (15, float("nan")), (16, float("inf")), (17, -1.0)], (1000,)),
    "a long silence leaves nothing of what was before": ([(0, 1.0), (15000, 2.0)], (*[NOTHING] * 7, 2000)),
}


@pytest.mark.parametrize(("samples", "values"), CASES.values(), ids=CASES)
def test_a_ring_tolerates_what_samples_do(samples, values):
    assert ring(*samples).values == values


def test_a_ring_is_read_up_to_a_moment_and_knows_nothing_after_its_last_sample():
    filled = ring((0, 1.0), (15, 2.0), (30, 3.0))
    np.testing.assert_array_equal(filled.until(30, 4), [np.nan, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(filled.until(60, 4), [2.0, 3.0, np.nan, np.nan])
    np.testing.assert_array_equal(filled.until(600, 2), [np.nan, np.nan])


def test_a_time_before_all_times_is_none():
    assert Ring(15, 240).add(-1.0, 2.0) == Ring(15, 240)


def test_a_clock_that_went_back_does_not_show_the_future():
    np.testing.assert_array_equal(ring((0, 1.0), (15, 2.0), (30, 3.0)).until(15, 3), [np.nan, 1.0, 2.0])


def test_rings_side_by_side():
    assert as_matrix([ring((0, 1.0)), ring((15, 2.0))], 15, 2).tolist()[1][1] == 2.0
    assert as_matrix([], 15, 2).shape == (0, 2)


@pytest.mark.parametrize(("hours", "seconds"), [(1, 300), (72, 300), (336, 1200), (1344, 4740)])
def test_the_step_of_seasons_keeps_their_number_small(hours, seconds):
    assert season_step(hours * 3600.0) == seconds


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4)), max_size=60))
def test_a_ring_is_bounded_and_holds_no_null(samples):
    filled = ring(*sorted(samples))
    assert len(filled.values) <= filled.length
    assert all(isinstance(v, int) and v >= NOTHING for v in filled.values)


@pytest.mark.parametrize("back", [1, 239, 240, 241, 300, 479, 481, 900_000])
def test_however_far_a_clock_is_set_back_nothing_is_left_of_what_it_called_later(back):
    cut = Ring(15, 240, last=10**6, values=tuple(range(240)), count=1).not_after(15 * (10**6 - back))
    assert len(cut.values) == max(240 - back, 0)
    assert cut.add(15 * (10**6 - back) + 15, 2.0).until(15 * (10**6 - back) + 15, 1)[0] == 2.0


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.floats(0, 50)), min_size=1, max_size=30),
    st.integers(-500, 4500),
    st.integers(1, 8),
)
def test_after_a_clock_was_set_back_new_samples_count_at_once(samples, now, length):
    ring = Ring(15, length)
    for at, demand in samples:
        ring = ring.add(at, demand)
    cut = ring.not_after(now)
    np.testing.assert_array_equal(
        cut.until(now, length)[-len(cut.values) :], ring.until(now, length)[-len(cut.values) :]
    )
    assert not cut.values or (cut.last <= now // 15 and cut.last >= 0)
    assert cut.add(now, 3.0).until(now, 1)[0] >= 0 or now < 0
    if now >= max(at for at, _ in samples):
        assert cut == ring
