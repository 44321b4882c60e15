"""How many objects are forecast without a break: their number and their different settings are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from concerto.api.predictivehpa import PredictiveHPA
from concerto.autoscaling.settings import Bounds
from concerto.controllers.autoscaling.learning import forecast_batches
from concerto.controllers.autoscaling.observation import Observation
from concerto.controllers.autoscaling.state import State
from concerto.controllers.autoscaling.tracked import TrackedObject

SETTINGS: dict[str, Any] = {
    "model": lambda i: {"model": ("Auto", "Linear", "Holt")[i % 3]},
    "length of the season": lambda i: {"season": {"length": f"{3600 + i}s"}},
    "cost of a shortage": lambda i: {"shortage": f"{60 + i}s"},
    "length of the history": lambda i: {"historyLength": f"{72 + i}h"},
    "none": lambda i: {},
}


def observation(name: str, prediction: dict[str, Any]) -> Observation:
    target = {"kind": "Deployment", "name": "web"}
    raw = {
        "metadata": {"namespace": "n", "name": name, "uid": name},
        "spec": {"scaleTargetRef": target, "maxReplicas": 9, "prediction": prediction},
    }
    spec = PredictiveHPA.from_raw(raw)
    return Observation(TrackedObject(raw, spec, State(), 0.0), spec, Bounds(9), 0.0)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_batch_has_so_many_objects_and_so_many_different_settings(setting):
    observed = [observation(f"o{i}", setting(i)) for i in range(50)]
    batches = list(forecast_batches(observed, 20, 4))
    assert sorted(o.tracked.key for batch in batches for o in batch) == sorted(o.tracked.key for o in observed)
    for batch in batches:
        assert 0 < len(batch) <= 20
        assert len({repr(o.spec.prediction) for o in batch}) <= 4


def test_objects_of_the_same_settings_come_together():
    observed = [observation(f"o{i}", SETTINGS["length of the season"](i % 3)) for i in range(9)]
    (batch,) = forecast_batches(observed, 20, 4)
    assert [o.spec.prediction.season_seconds for o in batch] == [3600] * 3 + [3601] * 3 + [3602] * 3
    assert [len(each) for each in forecast_batches(observed, 20, 1)] == [3, 3, 3]
    assert list(forecast_batches([], 20, 1)) == []
