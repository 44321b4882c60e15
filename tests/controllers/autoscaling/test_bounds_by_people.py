"""Schedules, pause and fallback, as people write them, through the controller."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from concerto.api.predictivehpa import Pause
from concerto.autoscaling.schedules import Schedule
from concerto.controllers.autoscaling import targets
from support.autoscaling_world import NOW, Clock, World, autoscaling, load, phpa, refuses
from support.crd_schemas import problems, structural_schema


def annotated(obj: dict[str, Any], **annotations: str) -> dict[str, Any]:
    named = {f"concerto.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {**obj, "metadata": {**obj["metadata"], "annotations": named}}


async def synced(autoscaler: Any, clock: Clock, seconds: float = 15.0) -> None:
    autoscaler.start_due()
    await asyncio.gather(*autoscaler._tasks)
    clock.now += seconds


ALWAYS = {"start": "* * * * *", "end": "0 0 1 1 *"}
SCHEDULES: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "a floor raises": ({"name": "office", "minReplicas": 6, **ALWAYS}, 6, ["office"]),
    "the metrics ask for more": ({"name": "office", "minReplicas": 3, **ALWAYS}, 4, ["office"]),
    "an exact number": ({"name": "office", "replicas": 3, **ALWAYS}, 3, ["office"]),
    "a closed window": ({"name": "office", "minReplicas": 6, "start": "0 0 1 1 *", "end": "* * * * *"}, 4, []),
}


@pytest.mark.parametrize(("schedule", "replicas", "is_open"), SCHEDULES.values(), ids=SCHEDULES)
async def test_a_schedule_bounds_what_metrics_ask_for(schedule, replicas, is_open):
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    made = phpa("web")
    made["spec"]["schedules"] = [schedule]
    assert problems(made) == []
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for _ in range(3):
            await synced(autoscaler, clock)
    assert world.scaled == {"web": replicas}
    assert world.statuses["web"].get("openSchedules", []) == is_open
    assert problems(made | {"status": world.statuses["web"]}) == []


async def test_a_schedule_that_is_not_valid_is_named_and_stops_no_other():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    made = phpa("web")
    made["spec"]["schedules"] = [
        {"name": "broken", "minReplicas": 9, "timeZone": "Mars/Base", **ALWAYS},
        {"name": "fine", "minReplicas": 6, **ALWAYS},
    ]
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        await synced(autoscaler, clock)
    assert world.scaled == {"web": 6}
    assert "spec.schedules[broken].timeZone 'Mars/Base'" in world.statuses["web"]["schedulesMessage"]


PAUSES: dict[str, tuple[dict[str, str], Pause | None]] = {
    "no annotation": ({}, None),
    "held": ({"concerto.dev/paused": "true"}, Pause("concerto.dev/paused")),
    "not held": ({"concerto.dev/paused": "false"}, None),
    "at a number": ({"concerto.dev/paused-replicas": "3"}, Pause("concerto.dev/paused-replicas", 3)),
    "the number wins": (
        {"concerto.dev/paused": "true", "concerto.dev/paused-replicas": "0"},
        Pause("concerto.dev/paused-replicas", 0),
    ),
}


@pytest.mark.parametrize(("annotations", "want"), PAUSES.values(), ids=PAUSES)
def test_what_annotations_pause(annotations, want):
    assert Pause.from_metadata({"annotations": annotations}) == want


@pytest.mark.parametrize("value", ["yes", "", "TRUE", "-1", "1.5", "\u0663", "9" * 5000])
@pytest.mark.parametrize("name", ["concerto.dev/paused", "concerto.dev/paused-replicas"])
def test_a_value_that_is_not_understood_pauses_and_is_named(name, value):
    pause = Pause.from_metadata({"annotations": {name: value}})
    assert pause is not None and pause.replicas is None
    assert name in pause.error and len(pause.error) < 200


async def test_while_scaling_is_paused_nothing_is_scaled_and_afterwards_it_goes_on():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    made = phpa("web")
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, annotated(made, paused="true"))
        await synced(autoscaler, clock)
        assert world.scaled == {}
        assert world.condition("web", "ScalingActive") == ("False", "Paused")
        assert world.condition("web", "Ready") == ("True", "Paused")
        assert world.statuses["web"]["lastDecision"]["reason"] == "Paused"
        assert "paused by annotation concerto.dev/paused" in world.statuses["web"]["lastDecision"]["message"]
        autoscaler.on_object(made, annotated(made, paused_replicas="7"))
        await synced(autoscaler, clock)
        assert world.scaled == {"web": 7}, "a pause that changes counts at once"
        autoscaler.on_object(made, made)
        await synced(autoscaler, clock, 600)
        await synced(autoscaler, clock)
        assert world.scaled == {"web": 4}


@pytest.mark.parametrize("replicas", ["3", "20"])
async def test_the_history_goes_on_while_scaling_is_paused_also_outside_of_the_bounds(replicas):
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, annotated(phpa("web"), paused_replicas=replicas))
        for _ in range(8):
            await synced(autoscaler, clock)
        await autoscaler.save()
    assert world.scaled == {"web": int(replicas)}
    (fine,) = (ring for ring in world.statuses["web"]["history"] if ring["stepSeconds"] == 15)
    assert sum(value == 4000 for value in fine["values"]) >= 4


async def test_a_pause_that_begins_while_metrics_are_read_counts():
    world, clock, answer = World(), Clock(), asyncio.Event()
    made = phpa("web")

    async def slowly(request: Any) -> Any:
        await answer.wait()
        return await load("4")(request)

    world.metrics = {"requests": slowly}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        autoscaler.start_due()
        await asyncio.sleep(0)
        autoscaler.on_object(made, annotated(made, paused="true"))
        answer.set()
        await asyncio.gather(*autoscaler._tasks)
        assert world.scaled == {}


async def test_the_fallback_counts_once_metrics_have_failed_for_long_enough_and_never_lowers():
    world, clock = World(), Clock()
    made = phpa("web")
    made["spec"]["fallback"] = {"replicas": 6, "after": "1m"}
    world.metrics = {"requests": refuses(503, "ServiceUnavailable")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for _ in range(3):
            await synced(autoscaler, clock)
        assert world.scaled == {}, "not yet"
        for _ in range(4):
            await synced(autoscaler, clock)
        assert world.scaled == {"web": 6}
        assert world.statuses["web"]["lastDecision"]["reason"] == "Fallback"
        assert problems(made | {"status": world.statuses["web"]}) == []
        world.metrics = {"requests": load("9")}
        for _ in range(3):
            await synced(autoscaler, clock)
        assert world.scaled == {"web": 9}
        world.metrics = {"requests": refuses(503, "ServiceUnavailable")}
        for _ in range(8):
            await synced(autoscaler, clock)
        assert world.scaled == {"web": 9}


async def test_what_earlier_days_needed_at_this_time_counts_for_the_fallback():
    world, clock = World(), Clock()
    made = phpa("web")
    made["spec"]["fallback"] = {"replicas": 3, "after": "1m", "earlierDays": True}
    world.metrics = {"requests": refuses(503, "ServiceUnavailable")}
    last, day = int(NOW // 300) - 1, 288
    days = [5000 if bucket % day == (last + 1) % day else 2000 for bucket in range(last - 3 * day + 1, last + 1)]
    history = [{"stepSeconds": 300, "last": last, "count": 1, "values": days}]
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made | {"status": {"history": history, "observedGeneration": 1}})
        for _ in range(8):
            await synced(autoscaler, clock)
    assert world.scaled == {"web": 5}
    assert problems(made) == []


async def test_a_restarted_operator_knows_since_when_metrics_have_failed():
    world, clock = World(), Clock()
    made = phpa("web")
    made["spec"]["fallback"] = {"replicas": 6, "after": "1m"}
    world.metrics = {"requests": refuses(503, "ServiceUnavailable")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        await synced(autoscaler, clock, 90)
    async with autoscaling(world, clock) as another:
        another.on_object(None, made | {"status": world.statuses["web"]})
        for _ in range(4):
            await synced(another, clock)
    assert world.scaled == {"web": 6}


NIGHT = {"name": "night", "replicas": 0, "start": "* * * * *", "end": "0 0 1 1 *"}


def from_one(**fields: Any) -> dict[str, Any]:
    """An object that never has fewer than one replica by itself."""
    made = phpa("web")
    return made | {"spec": made["spec"] | {"minReplicas": 1} | fields}


ZEROS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "a pause": (annotated(from_one(), paused_replicas="0"), from_one(), 4.0),
    "a schedule": (from_one(schedules=[NIGHT]), from_one(), 4.0),
    "a minimum of zero": (from_one(minReplicas=0), from_one(), 0.0),
}


@pytest.mark.parametrize(("sleeping", "awake", "at_zero"), ZEROS.values(), ids=ZEROS)
async def test_a_target_that_the_autoscaler_scaled_to_zero_is_scaled_up_again(sleeping, awake, at_zero):
    """... also by an autoscaler that follows on the one that scaled it."""
    world, clock = World(), Clock()
    world.metrics = {"requests": load(str(at_zero))}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, sleeping)
        for _ in range(3):
            await synced(autoscaler, clock, 200)
        assert world.scaled == {"web": 0}
        assert world.condition("web", "ScaledToZero") == ("True", "ScaledToZero")
        assert problems(sleeping | {"status": world.statuses["web"]}) == []
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, clock) as another:
        changed = awake | {"metadata": awake["metadata"] | {"generation": 2}, "status": world.statuses["web"]}
        another.on_object(None, changed)
        for _ in range(4):
            await synced(another, clock)
    assert world.scaled == {"web": 4}
    assert world.condition("web", "ScaledToZero") == ("False", "NotScaledToZero")


async def test_a_target_that_somebody_scaled_to_zero_is_left_alone():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    made = from_one()
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, annotated(made, paused_replicas="0"))
        await synced(autoscaler, clock)
        autoscaler.on_object(made, made)
        await synced(autoscaler, clock)
        assert world.scaled == {"web": 1}
        world.scaled = {"web": 0}  # by hand
        for _ in range(3):
            await synced(autoscaler, clock)
    assert world.scaled == {"web": 0}
    assert world.condition("web", "ScalingActive") == ("False", "ScalingDisabled")


UNSCALED = {
    "a preview wanted to": (True, annotated(from_one(prediction={"mode": "Preview"}), paused_replicas="0")),
    "the API server refused to": (False, annotated(from_one(), paused_replicas="0")),
}


@pytest.mark.parametrize(("is_preview", "made"), UNSCALED.values(), ids=UNSCALED)
async def test_an_autoscaler_that_starts_leaves_a_target_at_zero_that_none_before_it_scaled(is_preview, made):
    world, clock = World(), Clock()
    world.metrics, world.refuses_scales = {"requests": load("4")}, not is_preview
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for _ in range(2):
            await synced(autoscaler, clock)
    assert (world.statuses["web"]["currentReplicas"], world.statuses["web"]["desiredReplicas"]) == (2, 0)
    world.scaled, world.refuses_scales = {"web": 0}, False  # by hand
    async with autoscaling(world, clock) as another:
        live = from_one()
        live = live | {"metadata": live["metadata"] | {"generation": 2}, "status": world.statuses["web"]}
        another.on_object(None, live)
        for _ in range(3):
            await synced(another, clock)
    assert world.scaled == {"web": 0}
    assert world.condition("web", "ScalingActive") == ("False", "ScalingDisabled")


async def test_an_autoscaler_that_ended_as_it_scaled_to_zero_is_followed_by_one_that_scales_up_again():
    world, clock = World(), Clock()
    world.metrics, world.dies_here = {"requests": load("4")}, asyncio.Event()
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, annotated(from_one(), paused_replicas="0"))
        autoscaler.start_due()
        async with asyncio.timeout(20):
            await world.taken.wait()
    world.dies_here.set()
    assert world.scaled == {"web": 0}
    async with autoscaling(world, clock) as another:
        another.on_object(None, from_one() | {"status": world.statuses["web"]})
        for _ in range(4):
            await synced(another, clock)
    assert world.scaled == {"web": 4}


async def test_a_scale_to_zero_without_an_answer_counts_for_an_autoscaler_that_starts_then(monkeypatch):
    monkeypatch.setattr(targets, "_WRITE_SECONDS", 0.1)
    world, clock = World(), Clock()
    world.metrics, world.dies_here = {"requests": load("4")}, asyncio.Event()
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, annotated(from_one(), paused_replicas="0"))
        await synced(autoscaler, clock)
        assert world.condition("web", "AbleToScale") == ("False", "FailedUpdateScale")
        assert world.condition("web", "ScaledToZero") == ("True", "ScaledToZero")
        world.dies_here.set()
    world.dies_here = None
    async with autoscaling(world, clock) as another:
        another.on_object(None, from_one() | {"status": world.statuses["web"]})
        for _ in range(4):
            await synced(another, clock)
    assert world.scaled == {"web": 4}


def of_other_target(generation: int) -> dict[str, Any]:
    made = from_one(scaleTargetRef={"apiVersion": "x.dev/v1", "kind": "Gadget", "name": "other"})
    return made | {"metadata": made["metadata"] | {"generation": generation}}


@pytest.mark.parametrize("restarted", [False, True])
async def test_another_target_at_zero_is_left_alone_though_the_one_before_was_scaled_to_zero(restarted):
    world, clock = World(), Clock()
    world.metrics, asleep = {"requests": load("4")}, annotated(from_one(), paused_replicas="0")
    other = of_other_target(generation=2)
    async with autoscaling(world, clock) as first, autoscaling(world, clock) as second:
        first.on_object(None, asleep)
        await synced(first, clock)
        assert world.scaled == {"web": 0}
        world.scaled["other"] = 0  # by hand
        other["status"] = world.statuses["web"]
        autoscaler = second if restarted else first
        autoscaler.on_object(None if restarted else asleep, other)
        for _ in range(3):
            await synced(autoscaler, clock)
    assert world.scaled == {"web": 0, "other": 0}
    assert world.condition("web", "ScalingActive") == ("False", "ScalingDisabled")
    assert world.condition("web", "ScaledToZero") == ("False", "NotScaledToZero")


async def test_a_target_that_comes_while_another_is_scaled_to_zero_is_left_at_zero():
    world, clock = World(), Clock()
    world.metrics, world.dies_here = {"requests": load("4")}, asyncio.Event()
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, asleep := annotated(from_one(), paused_replicas="0"))
        autoscaler.start_due()
        async with asyncio.timeout(20):
            await world.taken.wait()
        world.scaled["other"] = 0  # by hand
        autoscaler.on_object(asleep, of_other_target(generation=2) | {"status": world.statuses["web"]})
        world.dies_here.set()
        for _ in range(4):
            await synced(autoscaler, clock)
    assert world.scaled == {"web": 0, "other": 0}


async def test_a_target_that_could_not_be_scaled_to_zero_is_not_said_to_be():
    world, clock = World(), Clock()
    world.metrics, world.refuses_scales = {"requests": load("4")}, True
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, annotated(from_one(), paused_replicas="0"))
        for _ in range(2):
            await synced(autoscaler, clock)
    assert world.condition("web", "ScaledToZero") == ("False", "NotScaledToZero")


RULE = structural_schema("PredictiveHPA")["properties"]["spec"]["properties"]["schedules"]["items"]["properties"]
CRON = {
    "0 8 * * 1-5": True,
    "0,30 18-20/2 * * MON-FRI": True,
    "*/5 * * * *": True,
    "0 0 29 2 *": True,
    "0 0 31 12 7": True,
    "60 * * * *": False,
    "0 24 * * *": False,
    "0 0 0 * *": False,
    "0 8 * * 8": False,
    "0 8 * *": False,
    "0 8 * * * *": False,
    "@daily": False,
    "": False,
}


@pytest.mark.parametrize(("expression", "valid"), CRON.items())
@pytest.mark.parametrize("field", ["start", "end"])
def test_the_crds_rule_accepts_the_expressions_that_the_code_reads(field, expression, valid):
    (rule,) = RULE[field]["x-kubernetes-validations"]
    pattern = rule["rule"].removeprefix("self.matches('").removesuffix("')")
    assert (re.search(pattern, expression) is not None) is valid
    if valid:
        Schedule("x", expression, expression).check()
