"""Statuses of SchedulingProfiles as the API server gets them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from concerto.controllers.scheduling.load_providers import LoadProviders
from concerto.controllers.scheduling.profiles import ProfileController
from concerto.kube import Conflict
from concerto.kube.status_writes import StatusChanged
from support.faulty_server import Faulty, faulty, refuses
from support.scheduler_builders import scheduling
from support.scheduling_builders import NOW, capacity

Object = dict[str, Any]
KEY = ("", "x")


class Store:
    """Keeps a profile, and takes patches of its status."""

    def __init__(self) -> None:
        metadata = {"name": "x", "uid": "u", "generation": 1, "resourceVersion": "1"}
        self.obj: Object = {
            "apiVersion": "concerto.dev/v1alpha1",
            "kind": "SchedulingProfile",
            "metadata": metadata | {"creationTimestamp": "2026-03-01T12:00:00Z"},
            "spec": {"schedulerName": "concerto"},
        }
        self.hanging: asyncio.Event | None = None
        self.change: dict[str, Any] = {}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            body = json.loads(await request.read())
            if self.hanging is not None:
                await self.hanging.wait()
            metadata = self.obj["metadata"]
            if body["metadata"].get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
                return await refuses(409, "Conflict")(request)
            metadata = metadata | {"resourceVersion": str(1 + int(metadata["resourceVersion"]))}
            self.obj = self.obj | {"metadata": metadata, "status": body["status"] | self.change}
        return web.json_response(self.obj)


def controller(server: Faulty) -> ProfileController:
    made = scheduling(server.session, lambda: NOW)
    context = made.context
    providers = LoadProviders(
        server.session, "concerto-system", made.parts.cluster, context.recorder, context.metrics, context.clock
    )
    return ProfileController(context, made.parts, providers)


async def test_a_status_that_the_api_server_stores_late_replaces_none_that_was_made_later():
    store = Store()
    async with faulty([store]) as server:
        tested = controller(server)
        store.hanging = release = asyncio.Event()
        late = asyncio.create_task(tested.reconcile(KEY, store.obj))
        await server.asked(2)
        store.hanging = None
        store.obj = store.obj | {"metadata": store.obj["metadata"] | {"generation": 2, "resourceVersion": "2"}}
        await tested.reconcile(KEY, store.obj)
        assert store.obj["status"]["observedGeneration"] == 2
        release.set()
        with pytest.raises(Conflict):
            await late
    assert store.obj["status"]["observedGeneration"] == 2


async def test_telemetry_that_is_too_old_before_an_agent_reports_shows_in_the_status():
    store = Store()
    store.obj["spec"]["staleAfter"] = "20s"
    async with faulty([store]) as server:
        tested = controller(server)
        tested._parts.cluster.ledger.set_capacity(capacity("n1", 5), NOW)
        await tested.reconcile(KEY, store.obj)
    (consistent,) = (c for c in store.obj["status"]["conditions"] if c["type"] == "SettingsConsistent")
    assert (consistent["status"], consistent["reason"]) == ("False", "StaleTooSoon")
    assert "node n1" in consistent["message"]


async def test_a_status_that_is_changed_while_it_is_written_is_a_failure():
    store = Store()
    store.change = {"decisions": 7}
    async with faulty([store]) as server:
        tested = controller(server)
        with pytest.raises(StatusChanged, match=r"status\.decisions"):
            await tested.reconcile(KEY, store.obj)
