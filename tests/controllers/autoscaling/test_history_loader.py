"""The history of a new object is loaded once, beside the syncs; an error is a condition and costs nothing else."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web

from concerto.autoscaling.replicas import MAX_REPLICAS
from concerto.controllers.autoscaling import initial_history
from concerto.controllers.autoscaling.controller import PredictiveHPAController
from support.autoscaling_world import NOW, Clock, World, autoscaling, load, phpa
from support.faulty_server import Answer, says


class WithPrometheus(World):
    """The same, with a Prometheus: ``ranges`` are the queries that it was asked."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.metrics["requests"] = load("2")
        self.answer = answer
        self.ranges: list[dict[str, list[str]]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/query_range"):
            self.ranges.append(parse_qs(request.query_string))
            return await self.answer(request)
        return await super().__call__(request)


def matrix(*values: tuple[float, str]) -> Answer:
    series = [{"metric": {}, "values": [list(v) for v in values]}] if values else []
    return says(200, {"status": "success", "data": {"resultType": "matrix", "result": series}})


def asking(**prediction: Any) -> dict[str, Any]:
    return phpa("web", initialHistory={"query": "sum(x) / 5"}, **prediction)


async def synced(made: PredictiveHPAController, world: World, clock: Clock, obj: dict[str, Any]) -> dict[str, Any]:
    """The status after a sync, the load of a history, and the sync after it."""
    key = ("n", "web")
    if key not in made._objects:
        made.on_object(None, obj)
    for _ in range(2):
        looks = world.looks["web"]
        made._objects[key].due = clock.now
        made.start_due()
        await world.seen("web", looks + 1)
        await asyncio.gather(*made._tasks, *made._history._tasks.values())
        clock.now += 61.0
    return world.statuses["web"]


async def with_prometheus(answer: Answer, obj: dict[str, Any]) -> tuple[WithPrometheus, dict[str, Any]]:
    world, clock = WithPrometheus(answer), Clock()
    async with autoscaling(world, clock) as made:
        status = await synced(made, world, clock, obj)
    return world, status


def coarse_values(status: dict[str, Any]) -> list[int]:
    return next(item["values"] for item in status["history"] if item["stepSeconds"] == 300)


def condition(status: dict[str, Any]) -> tuple[str, str, str] | None:
    found = [c for c in status["conditions"] if c["type"] == "HistoryLoaded"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


async def test_the_history_from_before_the_object_is_in_its_status():
    end = NOW // 300 * 300
    world, status = await with_prometheus(matrix((end - 600.0, "4"), (end - 300.0, "5")), asking())
    coarse = next(item for item in status["history"] if item["stepSeconds"] == 300)
    assert coarse["values"][:2] == [4000, 5000]
    assert condition(status)[:2] == ("True", "Loaded")
    asked, weekly = world.ranges
    assert (asked["query"], asked["namespace"], asked["step"]) == (["sum(x) / 5"], ["n"], ["300.000"])
    assert float(asked["end"][0]) - float(asked["start"][0]) == 863 * 300
    assert float(weekly["end"][0]) - float(weekly["start"][0]) == 719 * 1800


async def test_an_error_is_a_condition_and_is_not_repeated_at_each_sync():
    world, status = await with_prometheus(matrix(), asking())
    assert condition(status) == (
        "False",
        "QueryFailed",
        "The history could not be loaded: the query returned no series",
    )
    assert len(world.ranges) == 1
    assert world.condition("web", "ScalingActive") == ("True", "ValidMetricFound")


END = NOW // 300 * 300
NO_LOADS = {
    "only NaN": (
        matrix((END - 600.0, "NaN"), (END - 300.0, "NaN")),
        "the query returned no load: each of its 2 values is NaN, infinite or negative, and the last nan",
    ),
    "only negative": (
        matrix((END - 300.0, "-5")),
        "the query returned no load: each of its 1 values is NaN, infinite or negative, and the last -5",
    ),
    "of other times": (matrix((END + 3000.0, "5")), "the query returned no value of the time that was asked for"),
    "no values": (
        says(200, {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": []}]}}),
        "the query returned no value of the time that was asked for",
    ),
}


@pytest.mark.parametrize(("answer", "what"), NO_LOADS.values(), ids=NO_LOADS)
async def test_an_answer_without_any_load_is_an_error_that_says_what_is_the_matter(answer, what):
    _, status = await with_prometheus(answer, asking())
    assert condition(status) == ("False", "QueryFailed", f"The history could not be loaded: {what}")
    assert len(coarse_values(status)) == 1


async def test_metrics_without_a_time_in_common_have_no_load_together():
    obj, answers = phpa("web", initialHistory={}), [matrix((END - 600.0, "4")), matrix((END - 300.0, "5"))] * 2

    async def in_turn(request: web.Request) -> web.StreamResponse:
        return await answers.pop(0)(request)

    target = {"type": "AverageValue", "averageValue": "1"}
    obj["spec"]["metrics"] = [
        {"type": "Prometheus", "prometheus": {"name": name, "query": f"sum({name})", "target": target}}
        for name in ("a", "b")
    ]
    _, status = await with_prometheus(in_turn, obj)
    what = "the series of the metrics have no time in common"
    assert condition(status) == ("False", "QueryFailed", f"The history could not be loaded: {what}")


async def test_the_condition_counts_what_is_known_and_says_if_there_was_nothing_before():
    _, status = await with_prometheus(matrix((END - 6000.0, "4"), (END - 300.0, "5")), asking())
    assert condition(status)[2] == "Prometheus gave 1.0 h of history from before the object's own."
    last = {"last": END // 300, "values": [4000] * 864, "stepSeconds": 300}
    weekly = {"last": END // 1800, "values": [4000] * 720, "stepSeconds": 1800}
    full = asking() | {"status": {"history": [last, weekly], "observedGeneration": 1}}
    _, status = await with_prometheus(matrix((END - 300.0, "5")), full)
    assert condition(status) == ("True", "Loaded", "Prometheus has no load from before the object's own history.")


async def test_it_is_not_loaded_again_after_a_restart_nor_for_who_does_not_ask():
    done = {"type": "HistoryLoaded", "status": "True", "reason": "Loaded", "message": "x"}
    done["lastTransitionTime"] = "2026-03-01T12:00:00Z"
    answer = matrix((NOW // 300 * 300, "4"))
    history = [{"stepSeconds": step, "last": NOW // step - 1, "values": [4000]} for step in (300, 1800)]
    before = {"conditions": [done], "history": history, "observedGeneration": 1}
    world, status = await with_prometheus(answer, asking() | {"status": before})
    assert (world.ranges, condition(status)[0]) == ([], "True")
    world, status = await with_prometheus(answer, phpa("web") | {"status": {"conditions": [done]}})
    assert (world.ranges, condition(status)) == ([], None)
    world, status = await with_prometheus(answer, asking(mode="Off"))
    assert (world.ranges, condition(status)) == ([], None)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_history_of_another_length_is_loaded_too(restarted):
    world, clock = WithPrometheus(matrix((NOW // 300 * 300 - 600.0, "4"))), Clock()
    longer = asking(historyLength="336h")
    longer["metadata"] = longer["metadata"] | {"generation": 2}
    async with autoscaling(world, clock) as made:
        status = await synced(made, world, clock, asking())
        assert condition(status)[0] == "True"
        world.ranges.clear()
        if not restarted:
            made.on_object(asking(), longer | {"status": status})
            await synced(made, world, clock, longer)
    if restarted:
        async with autoscaling(world, clock) as another:
            await synced(another, world, clock, longer | {"status": status})
    assert next(asked["step"] for asked in world.ranges) == ["1200.000"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_answer_to_another_query_replaces_what_the_one_before_had_loaded(restarted):
    end = NOW // 300 * 300
    world, clock = WithPrometheus(matrix((end - 600.0, "4000"), (end - 300.0, "5000"))), Clock()
    mended = phpa("web", initialHistory={"query": "sum(x) / 5000"})
    mended["metadata"] = mended["metadata"] | {"generation": 2}
    async with autoscaling(world, clock) as made:
        status = await synced(made, world, clock, asking())
        assert coarse_values(status)[:2] == [4_000_000, 5_000_000]
        world.answer = matrix((end - 600.0, "4"), (end - 300.0, "5"))
        if not restarted:
            made.on_object(asking(), mended | {"status": status})
            status = await synced(made, world, clock, mended)
    if restarted:
        async with autoscaling(world, clock) as another:
            status = await synced(another, world, clock, mended | {"status": status})
    assert coarse_values(status)[:2] == [4000, 5000]
    assert coarse_values(status)[-1] == 2000
    assert condition(status)[:2] == ("True", "Loaded")


async def test_a_query_that_fails_leaves_what_the_one_before_had_loaded():
    end = NOW // 300 * 300
    world, clock = WithPrometheus(matrix((end - 300.0, "5"))), Clock()
    other = phpa("web", initialHistory={"query": "sum("})
    other["metadata"] = other["metadata"] | {"generation": 2}
    async with autoscaling(world, clock) as made:
        status = await synced(made, world, clock, asking())
        world.answer = matrix()
        made.on_object(asking(), other | {"status": status})
        status = await synced(made, world, clock, other)
    assert coarse_values(status)[0] == 5000
    assert condition(status)[:2] == ("False", "QueryFailed")


async def test_a_clock_that_is_set_back_delays_no_other_attempt():
    world, clock = WithPrometheus(matrix()), Clock()
    async with autoscaling(world, clock) as made:
        clock.now += 86_400.0
        await synced(made, world, clock, asking())
        clock.now = NOW
        world.ranges.clear()
        await synced(made, world, clock, asking())
    assert world.ranges


async def look(made: PredictiveHPAController, world: World, clock: Clock, *names: str) -> None:
    """One sync of each object, whatever becomes of their histories."""
    for name in names:
        made._objects["n", name].due = clock.now
    wanted = {name: world.looks[name] + 1 for name in names}
    made.start_due()
    for name, times in wanted.items():
        await world.seen(name, times)
    await asyncio.gather(*made._tasks)


async def test_a_history_that_takes_long_is_not_asked_for_again_nor_once_its_object_is_gone():
    async def no_answer(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    world, clock = WithPrometheus(no_answer), Clock()
    async with autoscaling(world, clock) as made:
        made.on_object(None, asking())
        for _ in range(3):
            await look(made, world, clock, "web")
            clock.now += 301.0
        assert len(made._history._tasks) == 1
        made.on_object(asking(), None)
        assert not made._history._tasks


async def test_a_history_that_takes_too_long_is_given_up(monkeypatch):
    async def no_answer(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(initial_history, "_LOAD_SECONDS", 0.0)
    _, status = await with_prometheus(no_answer, asking())
    assert condition(status)[1:] == (
        "QueryFailed",
        "The history could not be loaded: its queries take longer than 0 s together",
    )


async def test_a_load_beyond_all_numbers_counts_as_the_most_replicas():
    end = NOW // 300 * 300
    _, status = await with_prometheus(matrix((end - 600.0, "1e300"), (end - 300.0, "5")), asking())
    coarse = next(item for item in status["history"] if item["stepSeconds"] == 300)
    assert coarse["values"][:2] == [MAX_REPLICAS * 1000, 5000]


async def test_a_query_that_was_mended_meanwhile_is_asked_at_once():
    asked, mended = asyncio.Event(), asyncio.Event()

    async def fails_late(_: web.Request) -> web.StreamResponse:
        asked.set()
        await mended.wait()
        return web.Response(status=502)

    world, clock = WithPrometheus(fails_late), Clock()
    async with autoscaling(world, clock) as made:
        made.on_object(None, asking())
        await look(made, world, clock, "web")
        await asked.wait()
        better = phpa("web", initialHistory={"query": "sum(y)"})
        better["metadata"]["generation"] = 2
        made.on_object(asking(), better)
        mended.set()
        await asyncio.gather(*made._history._tasks.values())
        clock.now += 1.0
        await look(made, world, clock, "web")
        await asyncio.gather(*made._history._tasks.values())
    assert [asked["query"] for asked in world.ranges] == [["sum(x) / 5"], ["sum(y)"]]


async def test_an_answer_for_another_length_than_the_present_one_is_not_taken_for_it():
    asked, answers = asyncio.Event(), asyncio.Event()
    late = matrix((NOW // 300 * 300 - 600.0, "4"))

    async def answers_late(request: web.Request) -> web.StreamResponse:
        asked.set()
        await answers.wait()
        return await late(request)

    world, clock = WithPrometheus(answers_late), Clock()
    longer = asking(historyLength="336h")
    longer["metadata"] = longer["metadata"] | {"generation": 2}
    async with autoscaling(world, clock) as made:
        made.on_object(None, asking())
        await look(made, world, clock, "web")
        await asked.wait()
        made.on_object(asking(), longer)
        answers.set()
        await asyncio.gather(*made._history._tasks.values())
        world.ranges.clear()
        await synced(made, world, clock, longer)
    assert next(asked["step"] for asked in world.ranges) == ["1200.000"]
