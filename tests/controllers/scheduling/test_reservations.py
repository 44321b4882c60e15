"""What reservations cost, and that a pass over them loses nothing that a status has shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from aiohttp import web

from concerto.controllers.scheduling import reservations as module
from concerto.controllers.scheduling.reservations import ReservationController
from support.faulty_server import faulty
from support.scheduler_builders import scheduling
from support.scheduling_builders import NOW, capacity, node
from support.step_counts import steps_of
from support.waiting import eventually

Object = dict[str, Any]


def reservation(name: str, count: int = 1000, namespace: str = "team", **spec: Any) -> Object:
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodReservation",
        "metadata": {
            "namespace": namespace, "name": name, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-03-01T12:00:00Z",
        },
        "spec": {"podSelector": {"matchLabels": {"a": "b"}}, "count": count, **spec},
    }  # fmt: skip


class Store:
    """Keeps the objects, and takes patches of their statuses."""

    def __init__(self, *objects: Object) -> None:
        self.objects = {o["metadata"]["name"]: o for o in objects}
        self.version = 1
        self.requests = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        name = request.path.split("/podreservations/")[1].split("/")[0]
        obj, status = self.objects[name], json.loads(await request.read())["status"]
        self.version += 1
        metadata = obj["metadata"] | {"resourceVersion": str(self.version)}
        self.objects[name] = obj | {"metadata": metadata, "status": status}
        return web.json_response(self.objects[name])


async def controller(server: Any, nodes: int, each: float = 20.0):
    made = scheduling(server.session, lambda: NOW)
    made.use(reservations={"maxUnitsPerNamespace": 100})
    for number in range(nodes):
        made.parts.cluster.set_node(node(f"n{number:04d}"))
        made.parts.cluster.set_capacity(capacity(f"n{number:04d}", each, room=each), NOW)
    return made, ReservationController(made.context, made.parts)


def run_without_waiting(coroutine: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def steps_of_a_look(reservations: int, nodes: int) -> float:
    """At each reservation of a namespace that may hold no more."""
    objects = [reservation(f"r{number}") for number in range(reservations)]
    store = Store(*objects)
    async with faulty([store]) as server:
        made, tested = await controller(server, nodes=nodes)
        for obj in objects:
            await tested.reconcile(("team", obj["metadata"]["name"]), obj)
        assert made.parts.cluster.ledger.reservations.held_in("team") == 100
        asked = store.requests
        unfulfilled = list(store.objects.values())[-100:]
        looks = [tested._look_again(obj) for obj in unfulfilled]
        steps = steps_of(lambda: [run_without_waiting(look) for look in looks])
        assert store.requests == asked
    return steps / len(looks)


async def test_a_look_at_a_reservation_walks_neither_all_nodes_nor_all_reservations_and_asks_nothing():
    small, large = await steps_of_a_look(200, nodes=20), await steps_of_a_look(400, nodes=200)
    assert large < 1.2 * small


async def test_room_that_comes_free_is_taken_in_the_next_pass(monkeypatch):
    monkeypatch.setattr(module, "_PASS_SECONDS", 0.01)
    store = Store(reservation("r", count=3))
    async with faulty([store]) as server:
        made, tested = await controller(server, nodes=1, each=1.0)
        tested.objects = lambda: list(store.objects.values())
        await tested.reconcile(("team", "r"), store.objects["r"])
        assert store.objects["r"]["status"]["phase"] == "Pending"
        running = asyncio.create_task(tested.run())
        made.parts.cluster.set_capacity(capacity("n0000", 9.0, room=9.0, version=2), NOW)
        await eventually(lambda: store.objects["r"]["status"]["phase"] == "Active")
        made.parts.cluster.remove_node("n0000")
        await eventually(lambda: store.objects["r"]["status"]["phase"] == "Pending")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert store.objects["r"]["status"]["placements"] == []


async def test_a_pass_over_an_object_that_the_watch_shows_late_keeps_the_consumers_that_were_written():
    store = Store(reservation("r", count=3))
    async with faulty([store]) as server:
        made, tested = await controller(server, nodes=1)
        late = store.objects["r"]
        await tested.reconcile(("team", "r"), late)
        made.parts.cluster.ledger.reservations.consume(("team", "r"), "uid-p", "n0000")
        consumer = {"namespace": "team", "name": "p", "uid": "uid-p", "node": "n0000"}
        written = store.objects["r"]
        store.objects["r"] = written | {"status": written["status"] | {"consumedBy": [consumer]}}
        await tested.reconcile(("team", "r"), store.objects["r"])
        assert store.objects["r"]["status"]["consumedBy"] == [consumer]
        await tested._look_again(late)
    assert store.objects["r"]["status"]["consumedBy"] == [consumer]


async def test_a_reservation_that_ends_is_looked_at_when_it_ends():
    obj = reservation("r", ttlSeconds=3600)
    obj["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    async with faulty([Store(obj)]) as server:
        _, tested = await controller(server, nodes=1)
        assert await tested.reconcile(("team", "r"), obj) == 3600 - NOW
        assert await tested.reconcile(("team", "r"), reservation("r")) is None
