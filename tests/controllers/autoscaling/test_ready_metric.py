"""Condition Ready of a PredictiveHPA as a series in Prometheus, which alerts watch."""

from __future__ import annotations

import asyncio
from typing import Any

from concerto.controllers.autoscaling.controller import PredictiveHPAController
from support.autoscaling_world import Clock, World, autoscaling, load, phpa
from support.faulty_server import refuses


async def synced(autoscaler: PredictiveHPAController, clock: Clock) -> None:
    for _ in range(2):  # each object has its own place in the period
        autoscaler.start_due()
        await asyncio.gather(*autoscaler._tasks)
        clock.now += 15.0


def series(autoscaler: PredictiveHPAController, name: str = "web") -> dict[str, float]:
    labels = {"namespace": "n", "name": name}
    registry = autoscaler._metrics.registry
    names = ("concerto_phpa_ready", "concerto_phpa_replicas", "concerto_phpa_demand")
    found = {metric: registry.get_sample_value(metric, labels) for metric in names}
    return {metric: value for metric, value in found.items() if value is not None}


async def test_the_series_follows_the_condition():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("2")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made := phpa("web"))
        await synced(autoscaler, clock)
        assert world.condition("web", "Ready")[0] == "True"
        assert series(autoscaler)["concerto_phpa_ready"] == 1.0
        world.metrics = {"requests": refuses(503, "ServiceUnavailable")}
        await synced(autoscaler, clock)
        assert world.condition("web", "Ready")[0] == "False"
        assert series(autoscaler)["concerto_phpa_ready"] == 0.0
        world.metrics = {"requests": load("2")}
        await synced(autoscaler, clock)
        assert series(autoscaler)["concerto_phpa_ready"] == 1.0
        autoscaler.on_object(made, None)
        assert series(autoscaler) == {}


async def test_an_object_whose_target_is_not_there_has_that_series_alone():
    world, clock = World(), Clock()
    lost: dict[str, Any] = phpa("web")
    lost["spec"]["scaleTargetRef"]["apiVersion"] = "missing.dev/v1"
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, lost)
        await synced(autoscaler, clock)
        assert world.condition("web", "AbleToScale") == ("False", "FailedGetScale")
        assert series(autoscaler) == {"concerto_phpa_ready": 0.0}
