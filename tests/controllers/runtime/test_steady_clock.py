"""Setting the machine's clock changes no age: recommendations, rescales and samples stay as old as they are."""

from __future__ import annotations

import time

import pytest

from concerto.autoscaling.behavior import Memory, Recommendation
from concerto.controllers.runtime import clock as module
from concerto.controllers.runtime.clock import SteadyClock


@pytest.mark.parametrize("jump", [-86_400.0, 3600.0])
def test_a_clock_that_is_set_makes_nothing_older_or_younger(monkeypatch, jump):
    wall, since_boot = time.time(), [1000.0]
    monkeypatch.setattr(module, "time_since_boot", lambda: since_boot[0])
    monkeypatch.setattr(time, "time", lambda: wall)
    clock = SteadyClock()
    made = clock()
    monkeypatch.setattr(time, "time", lambda: wall + jump)
    since_boot[0] += 15.0
    assert clock() - made == pytest.approx(15.0)
    kept = Memory((Recommendation(made, 7),)).resumed(clock(), 5, 300.0)
    assert [r.replicas for r in kept.recommendations] == [7]
