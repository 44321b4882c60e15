"""Every pod that finds no node is reported in time, however many wait."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from concerto.controllers.scheduling.binding_load import BindingLoad, PipelineSettings
from concerto.controllers.scheduling.reports_in_turn import ReportLane, ReportPace, ReportsInTurn
from concerto.controllers.scheduling.unschedulable import (
    ReporterSettings,
    UnschedulableReporter,
    build_unschedulable_patch,
)
from concerto.kube.events import EventRecorder
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.changes import Change
from support.binding_writes import writing
from support.faulty_server import faulty, refuses, resets, says
from support.scheduler_builders import scheduling
from support.scheduling_builders import pod, raw_pod
from support.step_counts import steps_of
from support.waiting import eventually

SETTINGS, PIPELINE = ReporterSettings(), PipelineSettings()
QUICK = ReportPace(tick_seconds=0.01, min_per_second=1000.0)
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


def lacks(reason: str = "Insufficient measured capacity", nodes: int = 5000) -> Diagnosis:
    return Diagnosis(5000, {reason: nodes}, Change.NODE)


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def reported_in(reporter: UnschedulableReporter, time: Time, seconds: float, noted=lambda: None) -> Counter[str]:
    """Names of pods that come due within that time, and how often; as `run` does, without its writes."""
    reported: Counter[str] = Counter()
    end = time.now + seconds
    while time.now < end:
        noted()
        for uid, _ in reporter._due.take(SETTINGS.pace.tick_seconds):
            waiting = reporter._waiting[uid]
            reporter._note_reported(uid, waiting)
            reported[waiting.pod.name] += 1
        time.now += SETTINGS.pace.tick_seconds
    return reported


def load_of(many_preemptions: bool = False) -> BindingLoad:
    load = BindingLoad(PIPELINE)
    load.preemptions[frozenset({"default"})] = PIPELINE.max_preemptions_beside_events + many_preemptions
    return load


def reporter_of(time: Time, load: BindingLoad | None = None) -> UnschedulableReporter:
    return UnschedulableReporter(None, None, time, SETTINGS, load)  # type: ignore[arg-type]  # nothing is written


@pytest.mark.parametrize("many_preemptions", [False, True])
def test_three_thousand_waiting_pods_are_all_reported_within_a_minute(many_preemptions):
    time = Time()
    reporter = reporter_of(time, load_of(many_preemptions))
    for number in range(3000):
        reporter.note(pod(f"p{number}"), lacks())
    assert len(reported_in(reporter, time, 60.0)) == 3000


@pytest.mark.parametrize("come_within", [0.5, 10.0], ids=["at once", "within 10 s"])
def test_twenty_thousand_waiting_pods_are_all_reported_within_a_minute(come_within):
    time = Time()
    reporter = reporter_of(time)
    crowd = [pod(f"p{number}", namespace=f"n{number % 7}") for number in range(20_000)]
    turns = int(come_within / SETTINGS.pace.tick_seconds)

    def come() -> None:
        for _ in range(len(crowd) and 20_000 // turns):
            reporter.note(crowd.pop(), lacks())

    assert len(reported_in(reporter, time, 60.0, come)) == 20_000


def test_thirty_thousand_waiting_pods_are_reported_no_faster_than_at_the_highest_rate():
    time = Time()
    reporter = reporter_of(time)
    for number in range(30_000):
        reporter.note(pod(f"p{number}"), lacks())
    assert len(reported_in(reporter, time, 42.0)) == 40 * SETTINGS.pace.max_per_second


async def test_while_bindings_wait_for_their_turn_pods_are_reported_at_the_lowest_rate():
    time, load = Time(), BindingLoad(PIPELINE, lambda: 0.0)
    async with writing(load, default=PIPELINE.max_concurrent_bindings // 2 + 1):
        reporter = reporter_of(time, load)
        for number in range(5000):
            reporter.note(pod(f"p{number}"), lacks())
        assert len(reported_in(reporter, time, 12.0)) == 10 * SETTINGS.pace.min_per_second


def test_what_a_look_for_reports_costs_does_not_grow_with_the_pods_that_wait():
    def steps(count: int) -> int:
        time = Time()
        reporter = reporter_of(time)
        for number in range(count):
            reporter.note(pod(f"p{number}"), lacks())
        reported_in(reporter, time, 70.0)
        reporter.note(pod("new"), lacks())
        time.now += SETTINGS.patience_seconds
        return steps_of(lambda: reporter._due.take(SETTINGS.pace.tick_seconds))

    assert steps(20_000) < 1.2 * steps(200)


def test_while_room_is_made_for_many_pods_the_condition_of_one_whose_turn_has_not_come_waits_for_its_nomination():
    time = Time()
    reporter = reporter_of(time, load_of(many_preemptions=True))
    reporter.note(pod("searched"), lacks())
    reporter.note_preemption("uid-searched", "preemption: 0/3 nodes are available: 3 No preemption victims found.")
    reporter.note(pod("next"), lacks())
    assert reported_in(reporter, time, 5.0) == {"searched": 1}
    reporter.conditions_beside_nomination("uid-next")
    assert reported_in(reporter, time, 60.0) == {}


def test_a_pod_behind_a_crowd_whose_numbers_change_all_the_time_is_reported_at_once():
    time = Time()
    reporter = reporter_of(time)
    crowd = [pod(f"m{number}", namespace="crowd") for number in range(3000)]
    turn = 0

    def crowd_is_looked_at() -> None:
        nonlocal turn
        turn += 1
        for each in crowd:
            reporter.note(each, lacks(nodes=4000 + turn % 7))

    reported_in(reporter, time, 30.0, crowd_is_looked_at)
    reporter.note(pod("victim", namespace="victim"), lacks("Insufficient nvidia.com/gpu"))
    soon = reported_in(reporter, time, SETTINGS.patience_seconds + 2 * SETTINGS.pace.tick_seconds, crowd_is_looked_at)
    assert soon["victim"] == 1


def test_a_change_of_numbers_is_no_news_and_a_new_reason_is():
    time = Time()
    reporter = reporter_of(time)
    one = pod("p")
    reporter.note(one, lacks(nodes=10))
    assert reported_in(reporter, time, 10.0) == {"p": 1}
    reporter.note(one, lacks(nodes=11))
    assert reported_in(reporter, time, 120.0) == {}
    reporter.note(one, lacks("Insufficient cpu"))
    assert reported_in(reporter, time, 120.0) == {"p": 1}


def test_news_of_pods_is_reported_while_ever_new_pods_come():
    time = Time()
    reporter = reporter_of(time)
    old = [pod(f"old{number}", namespace="old") for number in range(10)]
    for each in old:
        reporter.note(each, lacks())
    reported_in(reporter, time, 60.0)
    made = 0

    def more_come() -> None:
        nonlocal made
        for _ in range(250):
            made += 1
            reporter.note(pod(f"new{made}", namespace="crowd"), lacks())

    reported_in(reporter, time, 10.0, more_come)
    for each in old:
        reporter.note(each, lacks("Insufficient cpu"))
    reported = reported_in(reporter, time, 10.0, more_come)
    assert sum(count for name, count in reported.items() if name.startswith("old")) == 10


def test_pods_that_were_never_reported_come_before_news_of_others():
    time = Time()
    reporter = reporter_of(time)
    old = [pod(f"old{number}") for number in range(400)]
    for each in old:
        reporter.note(each, lacks())
    reported_in(reporter, time, 60.0)
    for each in old:
        reporter.note(each, lacks("Insufficient cpu"))
    reporter.note(pod("new"), lacks())
    time.now += SETTINGS.patience_seconds
    (uid, _), *_ = reporter._due.take(SETTINGS.pace.tick_seconds)
    assert uid == "uid-new"


def test_what_is_written_with_a_nomination_is_not_reported_again_before_there_is_news():
    time = Time()
    reporter = reporter_of(time)
    assert reporter.conditions_beside_nomination("uid-p") == []
    reporter.note(pod("p"), lacks())
    reporter.note_preemption("uid-p", "preemption: found a node.")
    (condition,) = reporter.conditions_beside_nomination("uid-p")
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert condition["message"].endswith("preemption: found a node.")
    reporter.note(pod("p"), lacks(nodes=7))
    assert reported_in(reporter, time, 60.0) == {}
    reporter.note_preemption("uid-p", "preemption: the API server refused.")
    assert reported_in(reporter, time, 1.0) == {"p": 1}
    reporter.note_preemption("uid-p", "preemption: the API server refused again.")
    assert reported_in(reporter, time, 60.0) == {}


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError"])
async def test_the_condition_has_the_reason_of_the_diagnosis(reason):
    patches = []

    async def answer(request: web.Request) -> web.StreamResponse:
        patches.append(json.loads(await request.read()))
        return web.json_response({})

    async with faulty([answer]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        time = Time()
        reporter = UnschedulableReporter(server.session, recorder, time, ReporterSettings(pace=QUICK))
        reporter.note(pod("p"), replace(lacks(), condition_reason=reason))
        time.now += 10
        running = asyncio.create_task(reporter.run())
        await eventually(lambda: patches)
        running.cancel()
    assert patches[0]["status"]["conditions"][0]["reason"] == reason


@asynccontextmanager
async def running_reporter(answer):
    """A reporter that writes at once what it is given, and the server that it writes to."""
    async with faulty([answer]) as server:
        recorder, time = EventRecorder(server.session, component="c", instance="i"), Time()
        settings = ReporterSettings(patience_seconds=0.0, retry_seconds=0.0, pace=QUICK)
        reporter = UnschedulableReporter(server.session, recorder, time, settings)
        running = asyncio.create_task(reporter.run())
        yield server, reporter
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_namespace_whose_writes_hang_keeps_no_condition_of_others_from_being_written():
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/namespaces/stuck/" in request.path:
            await release.wait()
        return web.json_response({})

    async with running_reporter(answer) as (server, reporter):
        for number in range(100):
            reporter.note(pod(f"p{number}", namespace="stuck"), lacks())
        await server.asked(1)
        reporter.note(pod("free", namespace="free"), lacks())
        await eventually(lambda: any("/pods/free/" in each for each in server.seen))
        release.set()


async def test_writes_that_are_not_answered_take_a_bounded_memory_and_leave_turns_to_other_namespaces():
    pace = ReportPace(tick_seconds=0.0, min_per_second=1e6, max_per_second=1e6, max_started=10, max_started_in_all=40)
    reports: ReportsInTurn[str] = ReportsInTurn(pace, Time())

    async def write(key: str) -> None:
        await asyncio.Event().wait()

    def put(namespace: str, count: int) -> None:
        for i in range(count):
            reports.put(f"{namespace}-{i}", ReportLane(namespace, is_first=True), 0.0)

    running = asyncio.create_task(reports.run(write))
    for i in range(4):
        put(f"stuck{i}", 20)
    await eventually(lambda: len(reports._tasks) == 32)
    put("free", 2)
    await eventually(lambda: len(reports._tasks) == 34)
    assert [reports._started[each] for each in ("stuck0", "stuck1", "stuck2", "stuck3", "free")] == [8, 8, 8, 8, 2]
    running.cancel()
    await asyncio.gather(running, *reports._tasks, return_exceptions=True)


@pytest.mark.parametrize(
    "failure",
    [refuses(401, "Unauthorized"), refuses(429, "TooManyRequests"), refuses(500, "InternalError"), resets],
    ids=["401", "429", "500", "reset"],
)
async def test_a_condition_that_the_api_server_could_not_store_is_written_again(failure):
    answers = [failure, says(200)]
    async with running_reporter(lambda request: (answers.pop(0) if len(answers) > 1 else answers[0])(request)) as it:
        server, reporter = it
        reporter.note(pod("p"), lacks())
        await server.asked(2)
        await eventually(lambda: reporter._waiting["uid-p"].reported is not None and not reporter._due)
        assert len(reporter._recorder._series) == 1
        assert [each.count for each in reporter._recorder._series.values()] == [1]


async def test_a_condition_is_not_written_again_before_the_time_that_the_api_server_asks_for():
    busy = refuses(429, "TooManyRequests", {"Retry-After": "30"})
    async with running_reporter(busy) as (server, reporter):
        reporter.note(pod("p"), lacks())
        await server.asked(1)
        await eventually(lambda: reporter._waiting["uid-p"].recorded is not None)
        waiting = reporter._waiting["uid-p"]
        assert waiting.not_before - reporter._clock() > 29.0


async def test_a_condition_that_the_api_server_refuses_is_not_written_again():
    async with running_reporter(refuses(409, "Conflict")) as (server, reporter):
        reporter.note(pod("p"), lacks())
        await server.asked(1)
        await eventually(lambda: not reporter._due._tasks and not reporter._due)
        assert len(server.seen) == 1


async def test_pods_that_no_cycle_looks_at_because_many_like_them_are_before_them_are_reported_too():
    async with faulty([lambda request: web.json_response({})]) as server:
        made = scheduling(server.session)
        for number in range(6000):
            made.informers.pods.on_change(None, raw_pod(f"p{number}"))
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: len(made.parts.reporter._waiting) == 6000)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_time_of_the_condition_moves_with_its_status_only():
    def said(pod, now):
        (condition,) = build_unschedulable_patch(pod, "why", now)["status"]["conditions"]
        return condition["lastTransitionTime"]

    first, later = "2026-03-01T12:00:00Z", "2026-03-01T12:30:00Z"
    assert said(pod("p"), first) == first
    told = {"type": "PodScheduled", "status": "False", "lastTransitionTime": first}
    assert said(pod("p", status={"conditions": [told]}), later) == first
    assert said(pod("p", status={"conditions": [told | {"status": "True"}]}), later) == later
