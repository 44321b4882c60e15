"""What writes that place pods hold back: the pods of their own namespace, and events only while they go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from concerto.controllers.runtime import reconciler as reconciler_module
from concerto.controllers.scheduling import binding_load as module
from concerto.controllers.scheduling.binding_load import BindingLoad, PipelineSettings
from concerto.controllers.scheduling.eviction import EvictionPlaces, EvictionSettings
from concerto.controllers.scheduling.parts import build_parts
from concerto.controllers.scheduling.reports_in_turn import ReportPace
from concerto.kube import SessionSettings
from concerto.kube.events import EventSettings
from concerto.kube.fair_places import FairPlaces
from concerto.scheduling.state.cluster import ClusterState
from support.binding_writes import writing
from support.faulty_server import faulty
from support.loop_clock import pass_time
from support.scheduler_builders import scheduling
from support.waiting import eventually

SETTINGS = PipelineSettings()
ALONE, AT_LEAST = SETTINGS.max_waiting_bindings, SETTINGS.min_waiting_bindings
IN_ALL = SETTINGS.max_waiting_bindings_of_all
STALLED = SETTINGS.stalled_seconds + 0.1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_there_are_twice_as_many_places_as_there_were_so_that_those_of_others_stay_free():
    assert SETTINGS.max_concurrent_bindings == 2 * 48


async def test_a_namespace_whose_bindings_begin_to_hang_while_it_is_busy_leaves_most_places_to_others():
    async with writing(BindingLoad(SETTINGS), stuck=300) as writes:
        assert writes.in_flight["stuck"] == 1
        for _ in range(60):
            await writes.end("stuck")
        assert writes.in_flight["stuck"] == 36
        for number in range(10):
            await writes.begin(f"free{number}", 10)
        assert [writes.in_flight[f"free{number}"] for number in range(10)] == 10 * [1]


async def test_where_bindings_of_many_namespaces_hang_another_one_has_its_places_all_the_same():
    hang = {f"n{i}": 100 for i in range(7)}
    async with writing(BindingLoad(SETTINGS), **hang) as writes:
        assert writes.in_flight == dict.fromkeys(hang, 1)
        for name in hang:
            for _ in range(40):
                await writes.end(name)
        assert writes.in_flight.total() >= 70
        await writes.begin("first", 1)
        assert writes.in_flight["first"] == 1
        pass_time(FairPlaces.LASTS_AFTER_SECONDS)  # what lasts leaves its places
        await writes.begin("free", 30)
        for _ in range(10):
            await writes.end("free")
        assert writes.in_flight["free"] >= 10


async def test_no_cycle_starts_while_as_many_bindings_wait_as_a_cycle_decides():
    load = BindingLoad(SETTINGS)
    async with writing(load, one=ALONE // 2, two=ALONE // 2) as writes:
        await load.wait_for_room()
        await writes.begin("one")
        waiting = asyncio.ensure_future(load.wait_for_room())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not load.holds_back("one"), "or pods of a lower priority would go before its own"
        await writes.end("two")
        await waiting


async def test_bindings_of_a_namespace_that_has_stalled_hold_back_its_own_pods_and_no_others():
    clock = Clock()
    load = BindingLoad(SETTINGS, clock)
    async with writing(load, alone=ALONE + 1) as writes:
        waiting = asyncio.ensure_future(load.wait_for_room())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        clock.now += STALLED
        async with asyncio.timeout(20):
            await waiting
        assert load.holds_back("alone")
        assert not load.holds_back("other")
        await writes.end("alone")
        assert not load.holds_back("alone")


async def test_where_the_api_server_takes_a_second_to_answer_everybody_cycles_wait():
    clock = Clock()
    load = BindingLoad(SETTINGS, clock)
    async with writing(load, one=ALONE + 6 * 48) as writes:
        for _ in range(5):
            clock.now += SETTINGS.stalled_seconds - 0.1
            await writes.end("one", 48)
            assert load.busy
            assert not load.holds_back("one")


async def test_others_do_not_wait_once_more_for_a_namespace_that_had_stalled_until_one_of_its_bindings_ends():
    clock = Clock()
    load = BindingLoad(SETTINGS, clock)
    async with writing(load, stuck=ALONE + 1) as writes:
        clock.now += STALLED
        await writes.end("stuck", ALONE + 1)  # all of them took long
        await writes.begin("stuck", ALONE + 1)
        async with asyncio.timeout(20):
            await load.wait_for_room()
        assert load.holds_back("stuck")
        await writes.end("stuck")
        await writes.begin("stuck")
        waiting = asyncio.ensure_future(load.wait_for_room())
        await asyncio.sleep(0.05)
        assert not waiting.done(), "it answers again"
        await writes.end("stuck", ALONE + 1)
        await waiting
        clock.now += STALLED
        await writes.begin("stuck", ALONE + 1)
        assert load.busy, "its last ones did not hang"


async def test_no_more_is_remembered_of_namespaces_that_come_and_go_than_of_so_many():
    clock = Clock()
    load = BindingLoad(SETTINGS, clock)
    for number in range(2 * module._MAX_REMEMBERED):
        load.begin(f"n{number}")
        clock.now += STALLED
        load.end(f"n{number}")
    assert len(load._stalled) == module._MAX_REMEMBERED


@pytest.mark.parametrize(
    ("others", "part"),
    [(1, ALONE // 2), (9, ALONE // 10), (99, AT_LEAST), (499, IN_ALL // 500), (IN_ALL, 0)],
)
def test_namespaces_with_bindings_have_equal_parts_of_those_that_may_wait(others, part):
    clock = Clock()
    load = BindingLoad(SETTINGS, clock)
    for number in range(others):
        load.begin(f"n{number}")
    for _ in range(max(part, 1)):
        load.begin("stuck")
    clock.now += STALLED
    assert load.holds_back("stuck") == (not part)
    load.begin("stuck")
    assert load.holds_back("stuck")
    assert not part or not any(load.holds_back(f"n{number}") for number in range(others))


async def test_the_end_of_a_binding_that_lets_a_namespace_go_on_is_news_and_no_other_is():
    clock, news = Clock(), []
    load = BindingLoad(SETTINGS, clock)
    async with writing(load, stuck=ALONE // 2 + 2, other=2) as writes:
        clock.now += STALLED
        load.on_let_go = lambda: news.append("stuck" if not load.holds_back("stuck") else "")
        await writes.end("stuck")
        await writes.end("other")
        assert news == []
        await writes.end("stuck")
        assert news == ["stuck"]
        await writes.end("stuck")
        assert news == ["stuck"]


async def test_so_is_the_end_of_one_that_shows_that_a_namespace_has_not_stalled():
    clock, news = Clock(), []
    load = BindingLoad(SETTINGS, clock)
    async with writing(load, slow=ALONE + 100) as writes:
        clock.now += STALLED
        await writes.end("slow", 48)
        assert load.holds_back("slow")
        load.on_let_go = lambda: news.append(load.holds_back("slow"))
        clock.now += 0.5
        await writes.end("slow")
        assert news == [False]


async def test_so_is_the_end_of_the_last_binding_of_a_namespace_whose_part_others_get():
    clock, news = Clock(), []
    load = BindingLoad(SETTINGS, clock)
    async with writing(load, stuck=ALONE // 2 + 1, other=1) as writes:
        clock.now += STALLED
        load.on_let_go = lambda: news.append(load.holds_back("stuck"))
        assert load.holds_back("stuck")
        await writes.end("other")
        assert news == [False]


async def test_events_wait_for_bindings_that_wait_for_their_turn():
    load = BindingLoad(SETTINGS, Clock())
    async with writing(load, busy=48) as writes:
        assert not load.busy
        await writes.begin("busy")
        assert load.busy
    assert not load.busy


async def test_events_do_not_wait_for_bindings_that_hang_though_others_go_on():
    clock = Clock()
    load = BindingLoad(SETTINGS, clock)
    async with writing(load, stuck=250, free=1) as writes:
        assert load.busy
        clock.now += STALLED
        assert not load.busy
        await writes.begin("free")
        await writes.end("free", 2)
        assert not load.busy
        await writes.end("stuck", 48)
        assert not load.busy, "they have ended after a long time, and the next ones may, too"
        clock.now += 0.5
        await writes.end("stuck")
        assert load.busy, "this one has ended quickly"


def test_what_a_session_may_send_at_a_time_is_more_than_writes_that_hang_hold():
    evictions, reconciler = EvictionPlaces(EvictionSettings()), reconciler_module._PLACES
    held = 1 + FairPlaces(SETTINGS.max_concurrent_bindings).max_held
    held += evictions.nominations.max_held + evictions.evictions.max_held
    held += 2 * FairPlaces(ReportPace().max_concurrent).max_held + FairPlaces(EventSettings().concurrency).max_held
    held += 3 * FairPlaces(reconciler, beside=reconciler).max_held
    assert held + 75 < SessionSettings().max_requests


async def test_deletions_of_podcpubindings_that_hang_make_their_namespace_stall():
    """Each ended within 4 s, and the next one began: they held 42 places, and as of 250 of them no cycle began."""
    settings = replace(SETTINGS, binding_timeout_seconds=0.2, stalled_seconds=0.1)
    hangs = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            await hangs.wait()
        return web.json_response({})

    async with faulty([answer]) as server:
        load, context = BindingLoad(settings), scheduling(server.session).context
        pins = build_parts(context, ClusterState(), load, instance="me", settings=settings).pins
        objects = [{"metadata": {"namespace": "team", "name": f"p{number}", "uid": "u"}} for number in range(10)]
        deletions = [asyncio.create_task(pins._delete_object(each)) for each in objects]
        await eventually(lambda: load._writes and not load._not_stalled(), within_seconds=5.0)
        hangs.set()
        await asyncio.gather(*deletions, return_exceptions=True)


async def test_writes_that_are_broken_off_show_not_that_their_namespace_goes_on():
    clock = Clock()
    load = BindingLoad(SETTINGS, clock)

    async def prepare() -> None:
        async with load.place_of_preparation("stuck"):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(prepare()) for _ in range(300)]
    await asyncio.sleep(0)
    clock.now += STALLED
    assert load.holds_back("stuck")
    for _ in range(3):  # each has its place for a moment, before the time for its pod is over
        next(task for task in tasks if not task.done()).cancel()
        await asyncio.sleep(0.01)
        assert load.holds_back("stuck")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
