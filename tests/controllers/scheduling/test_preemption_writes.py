"""Evictions of very many pods at once, as of a PodGroup that is evicted as a whole."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from concerto.controllers.scheduling.preemption_writes import MAX_WRITES, Eviction, PreemptionWrites, for_each
from support.faulty_server import faulty
from support.scheduler_builders import scheduling
from support.scheduling_builders import pod

MANY = 4 * MAX_WRITES


async def test_not_all_victims_are_written_to_at_once_where_they_are_very_many():
    most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        return web.json_response({})

    async with faulty([answer]) as server:
        made = scheduling(server.session)
        urgent = pod("urgent", namespace="quiet", priority=5)
        evictions = [Eviction(pod(f"v{n}", nodeName="n"), "n", urgent) for n in range(MANY)]
        await PreemptionWrites(made.context, made.parts).evict(evictions, lambda: True)
    paths = [line.split(" (dry run)")[0].split("?")[0] for line in server.seen if "DELETE" in line]
    assert len({*paths}) == MANY
    assert MAX_WRITES < most < 2 * MAX_WRITES


async def test_so_many_are_worked_on_at_a_time_and_all_results_come_in_order():
    running = most = 0

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (item % 3))
        running -= 1
        return 2 * item

    assert await for_each(range(MANY), work) == [2 * item for item in range(MANY)]
    assert most == MAX_WRITES


async def test_the_first_error_is_raised_when_all_of_it_has_ended():
    done = []

    async def work(item: int) -> None:
        if item in (5, MANY - 1):
            await asyncio.sleep(0.01 if item == 5 else 0.0)
            raise ValueError(item)
        done.append(item)

    with pytest.raises(ValueError, match=r"^5$"):
        await for_each(range(MANY), work)
    assert len(done) == MANY - 2


async def test_others_get_their_turns_though_nothing_is_waited_for():
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work(item: int) -> None:
        pass

    task = asyncio.create_task(others())
    await for_each(range(MANY), work)
    task.cancel()
    assert turns >= MANY // MAX_WRITES


async def test_with_it_all_that_is_under_way_is_cancelled():
    cancelled = []

    async def work(item: int) -> None:
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    task = asyncio.create_task(for_each(range(MANY), work))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert sorted(cancelled) == list(range(MAX_WRITES))


async def test_nothing_to_do_is_done():
    assert await for_each([], lambda item: asyncio.sleep(0, item)) == []
