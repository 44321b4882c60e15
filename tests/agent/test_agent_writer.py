"""Statuses of the agent's objects: a late attempt replaces no later status, and nothing stays of an earlier one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from concerto.kube import Conflict, KubeError, Resource, SessionSettings
from concerto.kube.resources import NODE_CAPACITIES, NODE_CPU_TOPOLOGIES
from concerto_agent.writer import Object, Writer
from support.faulty_server import faulty

IMPATIENT = SessionSettings(request_timeout_seconds=0.2, attempts=1)


class Server:
    """The API server's part: an object of which a stale version is refused."""

    def __init__(self) -> None:
        self.version, self.status = 1, {"capacity": 0.0}
        self.held: asyncio.Event | None = None  # the next write is carried out once this is set, then `carried_out`
        self.carried_out = asyncio.Event()

    def obj(self) -> Object:
        metadata = {"name": "n", "uid": "u", "generation": 1, "resourceVersion": str(self.version)}
        return {"metadata": metadata, "status": self.status}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method != "PATCH":
            return web.json_response(self.obj())
        body: dict[str, Any] = json.loads(await request.read())
        held, self.held = self.held, None
        if held is None:
            return self.write(body)
        # as a webhook keeps it: carried out though the client does not wait any more
        asyncio.get_running_loop().create_task(self.write_later(held, body))
        await asyncio.sleep(60.0)
        return web.Response()

    async def write_later(self, held: asyncio.Event, body: dict[str, Any]) -> None:
        await held.wait()
        self.write(body)
        self.carried_out.set()

    def write(self, body: dict[str, Any]) -> web.StreamResponse:
        named = (body.get("metadata") or {}).get("resourceVersion")
        if named not in (None, str(self.version)):
            return web.json_response({"kind": "Status", "code": 409, "reason": "Conflict"}, status=409)
        merged = self.status | body["status"]
        self.version, self.status = self.version + 1, {k: v for k, v in merged.items() if v is not None}
        return web.json_response(self.obj())


@pytest.fixture(params=["write_status", "apply_status"])
def write(request):
    resource = {"write_status": NODE_CAPACITIES, "apply_status": NODE_CPU_TOPOLOGIES}[request.param]
    return resource, lambda writer, capacity: getattr(writer, request.param)(resource, {"capacity": capacity})


@asynccontextmanager
async def with_a_write_held(resource: Resource) -> AsyncIterator[tuple[Server, Writer, asyncio.Event]]:
    """The next write of the object is carried out once the event is set."""
    server = Server()
    async with faulty([server], IMPATIENT) as made:
        writer = Writer(made.session, "n")
        writer.saw(resource, server.obj())
        late = server.held = asyncio.Event()
        yield server, writer, late


async def test_an_attempt_that_is_carried_out_late_does_not_replace_a_later_status(write):
    resource, put = write
    async with with_a_write_held(resource) as (server, writer, late):
        with pytest.raises(KubeError):
            await put(writer, 1.0)
        await put(writer, 2.0)
        late.set()
        await server.carried_out.wait()
    assert server.status == {"capacity": 2.0}


async def test_an_attempt_without_an_answer_that_was_carried_out_costs_no_conflict(write):
    resource, put = write
    async with with_a_write_held(resource) as (server, writer, late):
        late.set()
        with pytest.raises(KubeError):
            await put(writer, 1.0)
        await server.carried_out.wait()
        await put(writer, 2.0)
    assert server.status == {"capacity": 2.0}


async def test_what_an_earlier_agent_writes_after_it_hung_does_not_replace_a_later_status(write):
    resource, put = write
    server = Server()
    async with faulty([server]) as made:
        hung, later = Writer(made.session, "n"), Writer(made.session, "n")
        for writer in (hung, later):
            await writer.read(resource)
        await put(later, 2.0)
        with pytest.raises(Conflict):
            await put(hung, 1.0)
        assert server.status == {"capacity": 2.0}
        await put(hung, 3.0)
    assert server.status == {"capacity": 3.0}, "an agent that goes on has seen what there is"


async def test_after_the_api_servers_storage_was_restored_statuses_are_written_again(write):
    resource, put = write
    server = Server()
    server.version = 50
    async with faulty([server]) as made:
        writer = Writer(made.session, "n")
        await put(writer, 1.0)
        server.version = 7
        writer.saw(resource, server.obj())
        with pytest.raises(Conflict):
            await put(writer, 2.0)
        await put(writer, 3.0)
        await put(writer, 4.0)
    assert server.status == {"capacity": 4.0}


async def test_what_a_status_has_no_more_is_removed_and_conditions_alone_remove_nothing():
    """An agent that was started without metrics of pods left the address of its predecessor's in the status."""
    server = Server()
    async with faulty([server]) as made:
        writer = Writer(made.session, "n")
        before = {"agent": {"version": "1", "metrics": {"port": 9104}}, "systemCPU": 0.1, "capacity": 1.0}
        writer.saw(NODE_CAPACITIES, server.obj() | {"status": before})
        bodies: list[Object] = []

        async def takes(request: web.Request) -> web.StreamResponse:
            bodies.append(json.loads(await request.read())["status"])
            return web.json_response(server.obj() | {"status": before})

        made.script[:] = [takes]
        await writer.write_status(NODE_CAPACITIES, {"agent": {"version": "2"}, "capacity": 2.0})
        await writer.write_conditions(NODE_CAPACITIES, [])
    assert bodies == [
        {"agent": {"version": "2", "metrics": None}, "systemCPU": None, "capacity": 2.0},
        {"conditions": []},
    ]
