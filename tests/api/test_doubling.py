"""Waits that double."""

from __future__ import annotations

from itertools import islice

from concerto.api.doubling import doubled_wait, doubling_waits


def test_each_wait_takes_twice_as_long_as_the_one_before_up_to_a_limit():
    assert [doubled_wait(0.5, 3.0, waits_before) for waits_before in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert list(islice(doubling_waits(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_however_many_waits_there_were_the_next_one_is_finite():
    assert doubled_wait(0.5, 60.0, 3000) == 60.0
