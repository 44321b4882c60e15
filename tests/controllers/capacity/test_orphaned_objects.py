"""Objects named after nodes that are not there: said once, after a while, and again when it may be forgotten."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from concerto.controllers.capacity.orphaned_objects import NodelessObjects, NodelessSettings
from concerto.kube import Object
from concerto.kube.events import EventRecorder
from support.faulty_server import faulty


def named(kind: str, name: str) -> Object:
    return {"apiVersion": "concerto.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "uid": f"{kind}-{name}"}}


class EventLog:
    """Events as they arrive at an API server."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    async def __call__(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if request.method == "POST":
            assert body["reason"] == "NodeNotFound"
            assert f"There is no node {body['regarding']['name']}" in body["note"]
            self.events.append((body["regarding"]["kind"], body["regarding"]["name"]))
        return web.Response(status=201, text="{}")


async def test_what_is_named_after_no_node_gets_an_event() -> None:
    now, reported = 0.0, EventLog()
    nodes = {("", "n1"): named("Node", "n1")}
    capacities = {("", name): named("NodeCapacity", name) for name in ("n1", "n2", "going")}
    models = {("", name): named("SubspaceSnapshot", name) for name in ("cluster", "n1", "n3")}
    async with faulty([reported]) as server:
        recorder = EventRecorder(server.session, component="c", instance="i")
        settings = NodelessSettings(patience_seconds=10.0, again_seconds=100.0)
        looks = NodelessObjects(nodes, [capacities, models], recorder, lambda: now, settings)

        async def after(seconds: float) -> list[tuple[str, str]]:
            nonlocal now
            now += seconds
            reported.events.clear()
            looks.look()
            assert await recorder.drain(10)
            return sorted(reported.events)

        writing = asyncio.create_task(recorder.run())
        assert await after(0) == [], "its node may be about to join"
        del capacities["", "going"]
        assert await after(10) == [("NodeCapacity", "n2"), ("SubspaceSnapshot", "n3")], "and not cluster"
        assert await after(50) == [], "it is said already"
        nodes["", "n2"] = named("Node", "n2")
        assert await after(1) == []
        del nodes["", "n2"]
        assert await after(1) == [], "its node may be back in a moment"
        writing.cancel()
