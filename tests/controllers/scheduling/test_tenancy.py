"""Nothing that one namespace has many of keeps another's pod from its node: pods without a node, or hanging writes."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web

from concerto.controllers.scheduling.binding_load import PipelineSettings
from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty
from support.gang_builders import add, group
from support.scheduler_builders import scheduling
from support.scheduling_builders import capacity, node, raw_pod
from support.waiting import eventually

NODES, CROWD, STUCK = 500, 2000, 600
TINY = {"requests": {"cpu": "1m"}}


async def stores_and_binds(request: web.Request) -> web.StreamResponse:
    if request.path.endswith("podreservations") and request.method == "POST":
        body = await request.json()
        body["metadata"] |= {"uid": "record", "resourceVersion": "1"}
        return web.json_response(body, status=201)
    return web.json_response({}, status=201 if request.method == "POST" else 200)


async def test_thousands_of_pods_of_as_many_shapes_do_not_hold_up_another_namespace():
    async with faulty([stores_and_binds]) as server:
        made = scheduling(server.session, time.time)
        cluster = made.parts.cluster
        for number in range(NODES):
            cluster.set_node(node(f"n{number}"))
            cluster.set_capacity(capacity(f"n{number}", 20.0, at=time.time()), time.time())
        for number in range(CROWD):
            requests = {"cpu": f"{100_000 + number}m"}
            made.informers.pods.on_change(None, raw_pod(f"crowd-{number}", namespace="crowd", requests=requests))
        cycles: list[int] = []
        take = made.scheduler._take

        def counted(result, now) -> None:
            cycles.append(len(result.unschedulable))
            take(result, now)

        made.scheduler._take = counted  # type: ignore[method-assign]
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: len(cycles) >= 2)
        made.informers.pods.on_change(None, raw_pod("one", namespace="quiet"))
        before = len(cycles)
        while not cluster.is_bound("uid-one"):
            made.parts.pending.requeue(Change.ENDED | Change.CAPACITY)  # as in a busy cluster, the crowd is requeued
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(cycles) - before <= 4, "it has its turn in the cycle after the next"
    assert max(cycles) < CROWD, "no cycle looks at all of them"


@pytest.mark.parametrize("grouped", [False, True], ids=["pods", "gangs"])
async def test_pods_whose_bindings_hang_keep_none_of_another_namespace_from_its_node(grouped):
    release, patient = asyncio.Event(), PipelineSettings(binding_timeout_seconds=3600.0, shutdown_grace_seconds=0.0)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/api/v1/namespaces/stuck/"):
            await release.wait()
        return await stores_and_binds(request)

    async with faulty([answer]) as server:
        made = scheduling(server.session, time.time, settings=patient)
        cluster = made.parts.cluster
        for number in range(10):
            cluster.set_node(node(f"n{number}"))
            cluster.set_capacity(capacity(f"n{number}", 200.0, at=time.time()), time.time())
        for number in range(STUCK):
            over = {"schedulingGroup": {"podGroupName": f"g{number // 10}"}} if grouped else {}
            if grouped and number % 10 == 0:
                add(cluster, group(f"g{number // 10}", 10, namespace="stuck"))
            made.informers.pods.on_change(None, raw_pod(f"stuck-{number}", namespace="stuck", **TINY, **over))
        running = asyncio.create_task(made.scheduler.run())
        try:
            await eventually(lambda: made.parts.load.holds_back("stuck"))
            await asyncio.sleep(0.3)  # more cycles would begin
            decided = sum(f"uid-stuck-{number}" not in made.parts.pending.queue for number in range(STUCK))
            assert 250 < decided <= 500, "its own pods are held back"
            made.informers.pods.on_change(None, raw_pod("one", namespace="quiet", **TINY))
            await eventually(lambda: cluster.is_bound("uid-one"))
            assert sum("/namespaces/stuck/" in line for line in server.seen) == 1
            release.set()
            await eventually(lambda: all(cluster.is_bound(f"uid-stuck-{number}") for number in range(STUCK)))
        finally:
            release.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_pod_whose_binding_finds_no_place_beside_those_that_hang_is_decided_on_again():
    release, patient = asyncio.Event(), PipelineSettings(binding_timeout_seconds=3600.0, shutdown_grace_seconds=0.0)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/binding"):
            await release.wait()
        return await stores_and_binds(request)

    async with faulty([answer]) as server:
        made = scheduling(server.session, time.time, settings=patient)
        made.use(reservations={"unboundTTL": "1s"})
        cluster = made.parts.cluster
        cluster.set_node(node("n", allocatable={"pods": 200}))
        cluster.set_capacity(capacity("n", 200.0, at=time.time()), time.time())
        for number in range(100):
            made.informers.pods.on_change(None, raw_pod(f"stuck-{number}", namespace="stuck", **TINY))
        running = asyncio.create_task(made.scheduler.run())
        try:
            await eventually(lambda: len(made.pipeline._binding) == 100)
            await eventually(lambda: len(made.pipeline._binding) == 1)
            notes = [series.event["note"] for series in made.context.recorder._series.values()]
            assert len(notes) == 99
            assert {"does not answer to bindings that came before" in note for note in notes} == {True}
            release.set()
            await eventually(lambda: all(cluster.is_bound(f"uid-stuck-{number}") for number in range(100)))
        finally:
            release.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_no_pod_of_another_namespace_takes_the_room_of_one_of_a_higher_priority_while_bindings_take_their_time():
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/binding"):
            await asyncio.sleep(0.3)
        return await stores_and_binds(request)

    crowd = PipelineSettings.max_waiting_bindings + 150
    async with faulty([answer]) as server:
        made = scheduling(server.session, time.time)
        cluster, pods = made.parts.cluster, made.informers.pods
        cluster.set_node(node("n", allocatable={"pods": 2 * crowd}))
        cluster.set_capacity(capacity("n", crowd + 1.0, at=time.time()), time.time())
        for number in range(crowd):
            pods.on_change(None, raw_pod(f"crowd-{number}", namespace="crowd", **TINY))
        running = asyncio.create_task(made.scheduler.run())
        try:
            await eventually(lambda: len(made.pipeline._binding) > PipelineSettings.max_waiting_bindings)
            pods.on_change(None, raw_pod("urgent", namespace="crowd", priority=1000, **TINY))
            pods.on_change(None, raw_pod("other", namespace="quiet", **TINY))
            await eventually(lambda: cluster.is_placed("uid-urgent") or cluster.is_placed("uid-other"))
            assert cluster.is_placed("uid-urgent")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
