"""A namespace whose pods find no node, each by a shape of its own, does not keep another's pod from its node."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty
from support.scheduler_builders import scheduling
from support.scheduling_builders import capacity, node, raw_pod
from support.waiting import eventually

NODES, CROWD = 500, 2000


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
