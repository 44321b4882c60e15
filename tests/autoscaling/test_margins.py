"""What forecasts would have cost, and how much of their rises came."""

import numpy as np
import pytest

from concerto.autoscaling.margins import decision_cost, share_that_came

FRACTILE = np.array([0.9])
COSTS = {
    "a load within the room above the target costs nothing": (3.0, 3.0, 4.0, 0.0),
    "a replica too few beyond the room costs the fractile": (3.0, 3.0, 16 / 3, 0.9),
    "a replica that nothing needed costs the rest": (4.0, 3.0, 3.0, 0.1),
    "what current metrics ask for anyway costs nothing": (1.0, 4.0, 2.0, 0.0),
    "nor does a replica that is needed later": (5.0, 3.0, 5.0, 0.0),
}


@pytest.mark.parametrize(("asked", "load", "actual", "cost"), COSTS.values(), ids=COSTS)
def test_what_a_forecast_costs(asked, load, actual, cost):
    row = (np.array([[value, np.nan]]) for value in (asked, load, actual))
    got = decision_cost(*row, room=1 / 3, fractile=FRACTILE, weights=np.array([1.0, 1.0]))
    assert got[0] == pytest.approx(cost)


RISES = {
    "rises that came as they were forecast": ([2.0, 4.0], [2.0, 4.0], 1.0, 1.0),
    "half of them came": ([2.0, 4.0], [1.0, 2.0], 0.0, 0.5),
    "the load fell instead": ([2.0, 4.0], [-1.0, -2.0], 0.0, 0.0),
    "more came than was forecast": ([2.0, 4.0], [4.0, 8.0], 0.0, 1.0),
    "no rise was forecast": ([0.0, np.nan], [1.0, np.nan], 1.0, 1.0),
    "one rise that did not come, beside a prior of the same size": ([2.0, np.nan], [0.0, 1.0], 4.0, 0.5),
}


@pytest.mark.parametrize(("forecast", "came", "prior", "share"), RISES.values(), ids=RISES)
def test_how_much_of_the_rises_came(forecast, came, prior, share):
    got = share_that_came(np.array([forecast]), np.array([came]), np.ones(2), np.array([prior]))
    assert got[0] == pytest.approx(share)
