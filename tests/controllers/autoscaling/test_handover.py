"""From one autoscaler to the next: what a successor knows, and what one that no longer leads may do."""

from __future__ import annotations

import asyncio
from typing import Any

from concerto.controllers.autoscaling.controller import PredictiveHPAController
from support.autoscaling_world import Clock, World, autoscaling, load, phpa
from support.crd_schemas import problems


async def synced(autoscaler: PredictiveHPAController, clock: Clock) -> None:
    autoscaler.start_due()
    await asyncio.gather(*autoscaler._tasks)
    clock.now += 15.0


def samples(status: dict[str, Any]) -> list[int]:
    """Of the last hour, in thousandths of a replica."""
    return next((ring["values"] for ring in status["history"] if ring["stepSeconds"] == 15), [])


async def test_a_successor_has_the_samples_that_were_not_written_yet():
    world, clock, made = World(), Clock(), phpa("web")
    world.metrics = {"requests": load("2")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for _ in range(4):
            await synced(autoscaler, clock)
        state = autoscaler._objects["n", "web"].state
        known = list(state.fine.values)
        assert len(samples(world.statuses["web"])) < len(known), "the status waits for its interval"
        await autoscaler.save()
        written = world.looks["web"]
        await autoscaler.save()
        assert world.looks["web"] == written, "nothing is left to write"
    status = world.statuses["web"]
    assert samples(status) == known
    assert problems(made | {"status": status}) == []
    async with autoscaling(world, clock) as another:
        another.on_object(None, made | {"status": status})
        assert another._objects["n", "web"].state.memory == state.memory


async def test_who_no_longer_leads_writes_nothing():
    world, clock, made, leads = World(), Clock(), phpa("web"), True
    world.metrics = {"requests": load("2")}
    async with autoscaling(world, clock, lambda: leads) as autoscaler:
        autoscaler.on_object(None, made)
        await synced(autoscaler, clock)
        written = world.looks["web"]
        leads = False
        world.metrics = {"requests": load("4")}
        for _ in range(2):
            await synced(autoscaler, clock)
        await autoscaler.save()
    assert world.scaled == {}
    assert world.looks["web"] == written


async def test_leadership_that_is_lost_while_metrics_are_read_counts():
    world, clock, leads, answer = World(), Clock(), True, asyncio.Event()

    async def slowly(request: Any) -> Any:
        await answer.wait()
        return await load("4")(request)

    world.metrics = {"requests": slowly}
    async with autoscaling(world, clock, lambda: leads) as autoscaler:
        autoscaler.on_object(None, phpa("web"))
        autoscaler.start_due()
        await asyncio.sleep(0)
        leads = False
        answer.set()
        await asyncio.gather(*autoscaler._tasks)
    assert (world.scaled, world.statuses) == ({}, {})


async def test_what_is_remembered_outlasts_a_spec_that_cannot_be_read_also_for_an_autoscaler_that_starts():
    world, clock, made = World(), Clock(), phpa("web")
    world.metrics = {"requests": load("2")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for _ in range(4):
            await synced(autoscaler, clock)
        await autoscaler.save()
    known = samples(world.statuses["web"])
    wrong = made | {"spec": {**made["spec"], "prediction": {"historyLength": "long"}}}
    wrong["metadata"] = made["metadata"] | {"generation": 2}
    mended = made | {"metadata": made["metadata"] | {"generation": 3}}
    async with autoscaling(world, clock) as another:
        another.on_object(None, wrong | {"status": world.statuses["web"]})
        for _ in range(3):
            await synced(another, clock)
        assert world.condition("web", "AbleToScale") == ("False", "FailedGetScale")
        await another.save()
        assert samples(world.statuses["web"]) == known
        another.on_object(wrong, mended | {"status": world.statuses["web"]})
        for _ in range(3):
            await synced(another, clock)
        assert list(another._objects["n", "web"].state.fine.values)[: len(known)] == known
