"""Targets at zero replicas: what keeps them there, what wakes them, and what is said meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from support.autoscaling_world import Clock, World, autoscaling, load, phpa, refuses
from support.crd_schemas import problems

NIGHT = {"name": "night", "replicas": 0, "start": "* * * * *", "end": "0 0 1 1 *"}
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}


async def synced(autoscaler: Any, clock: Clock, seconds: float = 15.0) -> None:
    autoscaler.start_due()
    await asyncio.gather(*autoscaler._tasks)
    clock.now += seconds


def spec(**fields: Any) -> dict[str, Any]:
    made = phpa("web")
    return made | {"spec": made["spec"] | {"minReplicas": 1} | fields}


async def test_metrics_of_pods_do_not_fail_while_a_schedule_keeps_the_target_at_zero():
    world, clock = World(), Clock()
    made = spec(schedules=[NIGHT], metrics=[CPU], fallback={"replicas": 3, "after": "0s"})
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for _ in range(4):
            await synced(autoscaler, clock)
        assert autoscaler._objects["n", "web"].warnings == {}
    assert world.scaled == {"web": 0}
    assert world.condition("web", "Ready") == ("True", "ScalingDisabled")
    assert world.condition("web", "Stalled")[0] == "False"
    status = world.statuses["web"]
    assert status["lastDecision"]["message"] == (
        "Left 0 replicas alone: scaling is disabled while the replicas of schedule night are zero."
    )
    assert problems(made | {"status": status}) == []


async def test_the_history_goes_on_while_a_schedule_keeps_the_target_at_zero_if_no_pods_are_needed_for_it():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, spec(schedules=[NIGHT]))
        for _ in range(10):
            await synced(autoscaler, clock)
        fine = autoscaler._objects["n", "web"].state.fine
    assert sum(value == 4000 for value in fine.values) >= 4
    assert world.condition("web", "Ready") == ("True", "ScalingDisabled")


async def test_the_time_that_metrics_have_failed_does_not_count_while_scaling_was_paused_and_they_had_an_answer():
    world, clock = World(), Clock()
    made = spec(fallback={"replicas": 6, "after": "1m"})
    paused = made | {"metadata": made["metadata"] | {"annotations": {"concerto.dev/paused": "true"}}}
    fails, answers = {"requests": refuses(503, "ServiceUnavailable")}, {"requests": load("2")}
    async with autoscaling(world, clock) as autoscaler:
        world.metrics = fails
        autoscaler.on_object(None, made)
        await synced(autoscaler, clock)
        autoscaler.on_object(made, paused)
        world.metrics = answers
        for _ in range(9):
            await synced(autoscaler, clock)
        world.metrics = fails
        autoscaler.on_object(paused, made)
        for _ in range(3):
            await synced(autoscaler, clock)
    assert world.scaled == {}


async def test_the_time_of_a_pause_is_no_time_that_metrics_have_failed_for_an_autoscaler_that_starts():
    world, clock = World(), Clock()
    made = spec(fallback={"replicas": 6, "after": "5m"})
    paused = made | {"metadata": made["metadata"] | {"annotations": {"concerto.dev/paused": "true"}}}
    world.metrics = {"requests": load("2")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, paused)
        for _ in range(2):
            await synced(autoscaler, clock, 600)
        world.metrics = {"requests": refuses(503, "ServiceUnavailable")}
        autoscaler.on_object(paused, made | {"status": world.statuses["web"]})
        await synced(autoscaler, clock)
    async with autoscaling(world, clock) as another:
        another.on_object(None, made | {"status": world.statuses["web"]})
        for _ in range(3):
            await synced(another, clock)
    assert world.scaled == {}
    assert problems(made | {"status": world.statuses["web"]}) == []


async def test_an_autoscaler_that_was_away_scales_nothing_down_by_its_first_reading():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("6")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, spec())
        for _ in range(3):
            await synced(autoscaler, clock)
        await autoscaler.save()
    assert world.scaled == {"web": 6}
    clock.now += 3600
    world.metrics = {"requests": load("1")}
    async with autoscaling(world, clock) as another:
        another.on_object(None, spec() | {"status": world.statuses["web"]})
        for _ in range(10):
            await synced(another, clock, 29.0)
        assert world.scaled == {"web": 6}
        await synced(another, clock, 60.0)
        await synced(another, clock)
    assert world.scaled == {"web": 1}


async def test_after_a_pause_the_present_replicas_hold_for_the_down_window():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("1")}
    made = spec()
    paused = made | {"metadata": made["metadata"] | {"annotations": {"concerto.dev/paused-replicas": "7"}}}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, paused)
        for _ in range(4):
            await synced(autoscaler, clock, 300)
        await synced(autoscaler, clock)
        autoscaler.on_object(paused, made)
        for _ in range(9):
            await synced(autoscaler, clock, 29.0)
        assert world.scaled == {"web": 7}
        await synced(autoscaler, clock, 60.0)
        await synced(autoscaler, clock)
    assert world.scaled == {"web": 1}
