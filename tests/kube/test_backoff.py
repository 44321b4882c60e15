"""Waits after failures."""

from __future__ import annotations

from concerto.kube.backoff import Backoff


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_doubles_with_each_failure_in_a_row_up_to_a_limit():
    backoff: Backoff[str] = Backoff(Clock(), first_seconds=0.5, max_seconds=3.0)
    assert [backoff.failed("a") for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failed("b") == 0.5
    backoff.forget("a")
    assert backoff.failed("a") == 0.5


def test_a_key_is_due_once_its_wait_is_over_and_is_known_until_it_succeeds():
    clock = Clock()
    backoff: Backoff[str] = Backoff(clock)
    assert backoff.is_due("a") and "a" not in backoff
    backoff.failed("a")
    assert not backoff.is_due("a") and "a" in backoff
    clock.now += 0.5
    assert backoff.is_due("a") and "a" in backoff
    assert backoff.failed_at("a") == 100.0
    backoff.forget("a")
    assert "a" not in backoff


def test_however_often_a_key_fails_its_wait_is_finite():
    backoff: Backoff[str] = Backoff(Clock())
    assert {backoff.failed("a") for _ in range(3000)} == {0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0}
