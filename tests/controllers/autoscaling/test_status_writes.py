"""No status of a PredictiveHPA replaces one that was made later, and this costs no request while nobody interferes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.status_writes import StatusWriter
from concerto.controllers.autoscaling.tracked import TrackedObject
from support.autoscaling_world import NOW, merged, phpa
from support.faulty_server import Faulty, faulty


class Store:
    """Keeps one object; its resourceVersion is a precondition of patches that name it.

    Attributes:
        obj: the object.
        hanging: patches that come while this is set are carried out once it is set in its turn.
        tasks: of patches, which are carried out whoever still waits for them.
    """

    def __init__(self) -> None:
        self.obj: dict[str, Any] = phpa("web")
        self.hanging: asyncio.Event | None = None
        self.tasks: list[asyncio.Task[web.Response]] = []

    def change(self, change: dict[str, Any]) -> None:
        version = str(int(self.obj["metadata"]["resourceVersion"]) + 1)
        self.obj = merged(merged(self.obj, change), {"metadata": {"resourceVersion": version}})

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(self.obj)
        self.tasks.append(asyncio.ensure_future(self.carry_out(json.loads(await request.read()), self.hanging)))
        return await asyncio.shield(self.tasks[-1])

    async def carry_out(self, body: dict[str, Any], hanging: asyncio.Event | None) -> web.Response:
        if hanging is not None:
            await hanging.wait()
        if any(self.obj["metadata"][key] != value for key, value in body["metadata"].items()):
            return web.json_response({"kind": "Status", "code": 409, "reason": "Conflict"}, status=409)
        self.change({"status": body["status"]})
        return web.json_response(self.obj)


def writer(server: Faulty, leads: bool = True) -> StatusWriter:
    return StatusWriter(server.session, PredictiveHPASettings(), lambda: leads)


async def test_a_status_that_the_api_server_stores_late_replaces_none_that_was_made_later():
    store = Store()
    async with faulty([store]) as server:
        tested, tracked = writer(server), TrackedObject.from_object(store.obj, NOW)
        store.hanging = release = asyncio.Event()
        late = asyncio.create_task(tested.write(tracked, {"desiredReplicas": 2}, NOW))
        await server.asked(1)
        late.cancel()  # its time is over
        store.hanging = None
        await tested.write(tracked, {"desiredReplicas": 5}, NOW + 15)
        release.set()
        await asyncio.gather(*store.tasks)
        assert store.obj["status"] == {"desiredReplicas": 5}
        await tested.write(tracked, {"desiredReplicas": 6}, NOW + 30)
        tracked.update(store.obj)
        await tested.write(tracked, {"desiredReplicas": 7}, NOW + 45)
    assert [line.split()[0] for line in server.seen] == ["PATCH"] * 4
    assert tracked.status == store.obj["status"] == {"desiredReplicas": 7}


async def test_an_object_that_somebody_else_has_changed_meanwhile_is_read_once_and_written():
    store = Store()
    async with faulty([store]) as server:
        tested, tracked = writer(server), TrackedObject.from_object(store.obj, NOW)
        store.change({"metadata": {"labels": {"a": "b"}}})
        await tested.write(tracked, {"desiredReplicas": 5}, NOW)
        tracked.update(phpa("web"))  # an event from before the write
        await tested.write(tracked, {"desiredReplicas": 6}, NOW + 15)
    assert [line.split()[0] for line in server.seen] == ["PATCH", "GET", "PATCH", "PATCH"]
    assert store.obj["status"] == {"desiredReplicas": 6}


async def test_a_process_that_leads_no_more_writes_over_nothing():
    store = Store()
    async with faulty([store]) as server:
        tested, tracked = writer(server, leads=False), TrackedObject.from_object(store.obj, NOW)
        store.change({"status": {"desiredReplicas": 9}})
        await tested.write(tracked, {"desiredReplicas": 5}, NOW)
    assert store.obj["status"] == {"desiredReplicas": 9}


async def test_an_object_that_was_made_anew_under_its_name_does_not_get_the_status_of_the_one_before():
    store = Store()
    async with faulty([store]) as server:
        tested, tracked = writer(server), TrackedObject.from_object(store.obj, NOW)
        store.change({"metadata": {"uid": "new"}})
        await tested.write(tracked, {"desiredReplicas": 5}, NOW)
    assert "status" not in store.obj
