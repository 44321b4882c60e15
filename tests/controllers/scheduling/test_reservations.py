"""What reservations cost, and that a pass over them loses nothing that a status has shown."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from concerto.api.podreservation import Assignment
from concerto.controllers.runtime.reconciler import Reconciler
from concerto.controllers.scheduling import reservations as module
from concerto.controllers.scheduling.reservations import ReservationController
from concerto.kube import Reflector
from concerto.kube.resources import POD_RESERVATIONS
from support.faulty_server import faulty, refuses
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
    """Keeps the objects, and takes patches of their statuses.

    Attributes:
        hanging: patches that come while this is set are carried out once it is set in its turn.
    """

    def __init__(self, *objects: Object) -> None:
        self.objects = {o["metadata"]["name"]: o for o in objects}
        self.version = 1
        self.requests = 0
        self.hanging: asyncio.Event | None = None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        name = request.path.split("/podreservations/")[1].split("/")[0]
        if request.method == "GET":
            return web.json_response(self.objects[name])
        body = json.loads(await request.read())
        if self.hanging is not None:
            await self.hanging.wait()
        obj, status = self.objects[name], body["status"]
        if body["metadata"].get("resourceVersion") not in (None, obj["metadata"]["resourceVersion"]):
            return web.json_response({"kind": "Status", "code": 409, "reason": "Conflict"}, status=409)
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
        steps = steps_of(lambda: [tested._look_again(obj) for obj in unfulfilled])
        assert store.requests == asked
    return steps / len(unfulfilled)


async def test_a_look_at_a_reservation_walks_neither_all_nodes_nor_all_reservations_and_asks_nothing():
    small, large = await steps_of_a_look(200, nodes=20), await steps_of_a_look(400, nodes=200)
    assert large < 1.2 * small


async def test_room_that_comes_free_is_taken_in_the_next_pass_and_shown_in_the_turn_that_this_asks_for(monkeypatch):
    monkeypatch.setattr(module, "_PASS_SECONDS", 0.01)
    store, marked = Store(reservation("r", count=3)), asyncio.Event()
    async with faulty([store]) as server:
        made, tested = await controller(server, nodes=1, each=1.0)
        tested.objects = lambda: list(store.objects.values())
        tested.mark = lambda namespace, name: marked.set()

        async def is_marked_and_has_its_turn() -> str:
            asked = store.requests
            marked.clear()
            async with asyncio.timeout(20):
                await marked.wait()
            assert store.requests == asked
            await tested.reconcile(("team", "r"), store.objects["r"])
            return str(store.objects["r"]["status"]["phase"])

        await tested.reconcile(("team", "r"), store.objects["r"])
        assert store.objects["r"]["status"]["phase"] == "Pending"
        running = asyncio.create_task(tested.run())
        made.parts.cluster.set_capacity(capacity("n0000", 9.0, room=9.0, version=2), NOW)
        assert await is_marked_and_has_its_turn() == "Active"
        made.parts.cluster.remove_node("n0000")
        assert await is_marked_and_has_its_turn() == "Pending"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert store.objects["r"]["status"]["placements"] == []


async def test_a_pass_holds_room_for_one_whose_status_was_refused_and_leaves_that_to_its_back_off(monkeypatch):
    monkeypatch.setattr(module, "_PASS_SECONDS", 0.01)
    store, marked = Store(reservation("bad", count=3), reservation("good", count=3)), []
    async with faulty([store]) as server:
        made, tested = await controller(server, nodes=1, each=3.0)
        for name in ("good", "bad"):
            await tested.reconcile(("team", name), store.objects[name])
        tested.mark = lambda *key: marked.append(key)
        tested.backs_off = lambda *key: key == ("team", "bad")
        tested.objects = lambda: list(store.objects.values())
        running = asyncio.create_task(tested.run())
        made.parts.cluster.set_capacity(capacity("n0000", 9.0, room=9.0, version=2), NOW)
        await eventually(lambda: made.parts.cluster.ledger.reservations.held_in("team") == 6)
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not marked


async def test_a_pass_over_an_object_that_the_watch_shows_late_keeps_the_consumers_that_were_written():
    store = Store(reservation("r", count=3))
    async with faulty([store]) as server:
        made, tested = await controller(server, nodes=1)
        late = store.objects["r"]
        await tested.reconcile(("team", "r"), late)
        made.parts.cluster.ledger.reservations.consume(("team", "r"), "uid-p", "n0000")
        consumer = {"namespace": "team", "name": "p", "uid": "uid-p", "node": "n0000"}
        written, store.version = store.objects["r"], 3
        store.objects["r"] = written | {
            "metadata": written["metadata"] | {"resourceVersion": "3"},
            "status": written["status"] | {"consumedBy": [consumer]},
        }
        await tested.reconcile(("team", "r"), store.objects["r"])
        assert store.objects["r"]["status"]["consumedBy"] == [consumer]
        marked: list[tuple[str, str]] = []
        tested.mark = lambda *key: marked.append(key)
        tested._look_again(late)
        assert not marked
        await tested.reconcile(("team", "r"), late)
    assert store.objects["r"]["status"]["consumedBy"] == [consumer]


async def test_a_status_that_the_api_server_stores_late_replaces_none_that_shows_who_has_used_a_unit():
    store, key = Store(reservation("r", count=3)), ("team", "r")
    async with faulty([store]) as server:
        made, tested = await controller(server, nodes=1)
        store.hanging = release = asyncio.Event()
        late = asyncio.create_task(tested.reconcile(key, store.objects["r"]))
        await server.asked(1)
        store.hanging = None
        made.parts.cluster.ledger.reservations.consume(key, "uid-p", "n0000")
        assignment = Assignment("team", "p", "uid-p", "n0000", "Capacity", "1", 9.0, reservation=key)
        made.parts.records.assignment_of = {"uid-p": assignment}.get
        await tested.reconcile(key, store.objects["r"])
        consumers = store.objects["r"]["status"]["consumedBy"]
        assert [each["uid"] for each in consumers] == ["uid-p"]
        release.set()
        await late
    assert store.objects["r"]["status"]["consumedBy"] == consumers


async def test_the_event_about_a_status_is_recorded_although_the_write_had_no_answer_at_first():
    store = Store(reservation("r", count=3))

    async def loses_the_answer(request: web.Request) -> web.StreamResponse:
        await store(request)
        return await refuses(504, "Timeout")(request)

    async with faulty([loses_the_answer, store]) as server:
        made, tested = await controller(server, nodes=0)
        await tested.reconcile(("team", "r"), store.objects["r"])
        recorded = [series.event["action"] for series in made.context.recorder._series.values()]
    assert store.objects["r"]["status"]["phase"] == "Pending"
    assert recorded == ["Reserving"]


async def test_a_status_that_a_webhook_changes_in_another_way_each_time_is_not_written_without_pause():
    """It was written 288 times in 2 s."""
    store = Store(reservation("r", count=3))

    async def changing(request: web.Request) -> web.StreamResponse:
        answer = await store(request)
        if request.method == "PATCH":
            before = store.objects["r"]
            conditions = [each | {"message": f"at {store.version}"} for each in before["status"]["conditions"]]
            store.objects["r"] = after = before | {"status": before["status"] | {"conditions": conditions}}
            key, seen = ("team", "r"), reflector.store["team", "r"]
            reflector.store[key] = after
            queue.on_change(seen, after)
            return web.json_response(after)
        return answer

    async with faulty([changing]) as server:
        made, tested = await controller(server, nodes=1)
        reflector = Reflector(server.session, POD_RESERVATIONS)
        reflector.store["team", "r"] = store.objects["r"]
        queue = Reconciler(
            server.session, reflector, tested.reconcile, made.context.metrics, recorder=made.context.recorder
        )
        tested.mark, tested.backs_off, tested.objects = queue.mark, queue.backs_off, queue.objects
        queue.start()
        running = asyncio.create_task(queue.run())
        await asyncio.sleep(2.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        writes = sum(line.startswith("PATCH") for line in server.seen)
        reasons = [series.event["reason"] for series in made.context.recorder._series.values()]
    assert 2 <= writes <= 4
    assert "StatusChanged" in reasons


async def test_a_reservation_that_ends_is_looked_at_when_it_ends():
    obj = reservation("r", ttlSeconds=3600)
    obj["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    async with faulty([Store(obj)]) as server:
        _, tested = await controller(server, nodes=1)
        assert await tested.reconcile(("team", "r"), obj) == 3600 - NOW
        edited = reservation("r")
        edited["metadata"]["resourceVersion"] = "3"
        assert await tested.reconcile(("team", "r"), edited) is None
