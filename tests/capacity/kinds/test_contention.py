"""What contention adds to the time for which a pod holds its place, and what is no contention."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.capacity.kinds.contention import StartsAndEnds, leave_out
from concerto.capacity.kinds.sums import PodMeasurement

seconds = st.floats(0.0, 1e9)


def held_up(*took):
    node = StartsAndEnds()
    return [node.held_up(each) for each in took]


@given(seconds, st.lists(st.floats(0.0, 0.5), min_size=1, max_size=100))
def test_starts_and_ends_that_differ_by_kubelets_look_alone_are_not_held_up(base, looks):
    assert sum(held_up(*(base + look for look in (0.0, *looks)))) <= 1e-6 * base


@given(seconds, st.lists(seconds, min_size=1, max_size=63))
def test_all_beyond_the_quickest_and_half_a_second_is_contention_whatever_a_start_takes_in_itself(base, extra):
    found = held_up(*(base + each for each in (0.0, *extra)))
    assert found == pytest.approx([0.0, *(max(0.0, each - 0.5) for each in extra)], abs=1e-6)


def test_the_quickest_is_forgotten_after_64_pods_so_that_starts_which_have_become_slower_are_no_contention_for_ever():
    assert held_up(1.0, *[5.0] * 63, 5.0) == [0.0, *[3.5] * 63, 0.0]


@given(st.lists(seconds, max_size=100))
def test_no_pod_is_held_up_for_longer_than_its_start_and_end_took(took):
    assert all(0.0 <= found <= each for found, each in zip(held_up(*took), took, strict=True))


def pod(work=4.0, life=10.0, cores=4.0):
    return PodMeasurement(work, life, life, 0.0, True, peak_work=work * cores)


@pytest.mark.parametrize(
    ("waited", "limit", "held"), [(3, None, 7), (12, None, 0), (9, 0.5, 8), (9, 0.1, 10), (1, 2, 9)]
)
def test_waits_are_left_out_but_for_what_a_quota_may_have_caused(waited, limit, held):
    """With half a CPU at most, four core-seconds take eight seconds on an idle node, too."""
    assert leave_out(pod(), waited, limit).held == held


def test_a_quota_bounds_the_cores_that_a_pod_computes_on():
    assert [leave_out(pod(), 0.0, limit).peak_work for limit in (None, 2.0, 8.0)] == [16.0, 8.0, 16.0]


@given(seconds, st.floats(0.0, 1e6), seconds, seconds, st.none() | st.floats(1e-3, 1e3))
def test_waits_that_are_left_out_one_after_the_other_are_left_out_together(life, work, one, other, limit):
    whole = pod(work, life)
    apart = leave_out(leave_out(whole, one, limit), other, limit)
    together = leave_out(whole, one + other, limit)
    assert (apart.held, apart.peak_work) == pytest.approx((together.held, together.peak_work), abs=1e-6)
    assert together.plausible
