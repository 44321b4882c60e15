"""The reflector against a real API server: whatever happens on the way, its store becomes what the server has."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from concerto.kube import KubeError, NotFound, Object, Reflector, ReflectorSettings, Resource, Session
from concerto.kube.initial_events import initial_events
from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.clusters.proxy import Wire
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually_async

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True)
WIDGETS = Resource("e2e.concerto.dev", "v1", "widgets", "Widget", True)
OURS = "concerto.dev/test=reflector"
SOON = ReflectorSettings(first_backoff_seconds=0.05, max_backoff_seconds=0.5)


def config_map(name: str, value: str = "") -> Object:
    return {"metadata": {"name": name, "labels": {"concerto.dev/test": "reflector"}}, "data": {"value": value}}


class Journal:
    """What a reflector reports, checked as it comes: every object begins, goes on from where it was, and ends once."""

    def __init__(self) -> None:
        self.alive: dict[str, Object] = {}  # by UID
        self.ended: set[str] = set()
        self.reported: list[str] = []

    def __call__(self, old: Object | None, new: Object | None) -> None:
        if old is None and new is not None:
            self.reported.append(f"+{new['metadata']['name']}")
            assert new["metadata"]["uid"] not in self.alive.keys() | self.ended
        elif old is not None and new is not None:
            self.reported.append(f"~{new['metadata']['name']}")
            assert old["metadata"]["uid"] == new["metadata"]["uid"]
            assert self.alive[old["metadata"]["uid"]] is old
            assert old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"]
        else:
            assert old is not None
            self.reported.append(f"-{old['metadata']['name']}")
            assert self.alive.pop(old["metadata"]["uid"]) is old
            self.ended.add(old["metadata"]["uid"])
        if new is not None:
            self.alive[new["metadata"]["uid"]] = new


@asynccontextmanager
async def running(reflector: Reflector) -> AsyncIterator[Reflector]:
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.synced.wait(), PATIENCE_SECONDS)
        yield reflector
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task  # an assertion of the journal comes out here


def state_of(reflector: Reflector) -> dict[str, str]:
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in reflector.store.values()}


async def state_on_server(session: Session, namespace: str, resource: Resource = CONFIG_MAPS) -> dict[str, str]:
    found = await session.list(resource.path(namespace), label_selector=OURS)
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in found["items"]}


async def test_the_store_follows_a_collection(session: Session, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace)
    for i in range(1200):
        await session.create(path, config_map(f"first-{i:04}"))
    journal = Journal()
    reflector = Reflector(session, CONFIG_MAPS, namespace=namespace, label_selector=OURS, on_change=journal)
    async with running(reflector):
        assert state_of(reflector) == await state_on_server(session, namespace)
        assert len(reflector.store) == 1200
        item = reflector.store[namespace, "first-0000"]
        assert (item["apiVersion"], item["kind"]) == ("v1", "ConfigMap")
        assert "managedFields" not in item["metadata"]

        journal.reported.clear()
        await session.create(path, config_map("second"))
        await session.patch(CONFIG_MAPS.path(namespace, "second"), {"data": {"value": "new"}})
        await session.delete(CONFIG_MAPS.path(namespace, "second"))
        await session.create(path, config_map("second"))
        # out of sight by its label is as good as gone
        await session.patch(
            CONFIG_MAPS.path(namespace, "first-0001"), {"metadata": {"labels": {"concerto.dev/test": "x"}}}
        )
        await eventually_async("all five are reported", lambda: len(journal.reported) >= 5)
        assert journal.reported == ["+second", "~second", "-second", "+second", "-first-0001"]
        assert "managedFields" not in reflector.store[namespace, "second"]["metadata"]
        assert state_of(reflector) == await state_on_server(session, namespace)
        assert reflector.lists == 1


async def test_all_objects_come_as_the_beginning_of_a_watch(session: Session, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace)
    made = [await session.create(path, config_map(name)) for name in ("a", "b")]
    events = initial_events(
        session, path, {"labelSelector": OURS}, decode=orjson.loads, inactivity_seconds=PATIENCE_SECONDS
    )
    *objects, (last, bookmark) = [event async for event in events]
    assert sorted((kind, item["metadata"]["name"]) for kind, item in objects) == [("ADDED", "a"), ("ADDED", "b")]
    assert last == "BOOKMARK"
    assert int(bookmark["metadata"]["resourceVersion"]) >= int(made[-1]["metadata"]["resourceVersion"])


async def test_what_is_not_needed_is_not_kept(session: Session, namespace: str) -> None:
    def trim(item: Object) -> Object:
        return {"metadata": item["metadata"]}

    path = CONFIG_MAPS.path(namespace)
    await session.create(path, config_map("listed", "long"))
    reflector = Reflector(session, CONFIG_MAPS, namespace=namespace, label_selector=OURS, trim=trim)
    async with running(reflector):
        await session.create(path, config_map("watched", "long"))
        await eventually_async("both are there", lambda: len(reflector.store) == 2)
        assert all(set(item) == {"metadata"} for item in reflector.store.values())


async def test_objects_longer_than_any_buffer_come_whole(session: Session, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace)
    reflector = Reflector(session, CONFIG_MAPS, namespace=namespace, label_selector=OURS)
    async with running(reflector):
        for size in (60_000, 65_536, 131_072, 900_000):
            await session.create(path, config_map(f"long-{size}", "x" * size))
        await eventually_async("all four are there", lambda: len(reflector.store) == 4)
        for (_, name), item in reflector.store.items():
            assert len(item["data"]["value"]) == int(name.removeprefix("long-"))
        assert reflector.lists == 1


@pytest.mark.parametrize("kill", [False, True], ids=["in good order", "by SIGKILL"])
async def test_nothing_is_missed_when_the_api_server_restarts(
    control_plane: LocalControlPlane, session: Session, namespace: str, kill: bool
) -> None:
    journal = Journal()
    reflector = Reflector(
        session, CONFIG_MAPS, namespace=namespace, label_selector=OURS, on_change=journal, settings=SOON
    )
    done = asyncio.Event()

    async def churn(worker: int) -> None:
        """Objects come, change and go all the time, as far as the server lets them."""
        number = 0
        while not done.is_set():
            name = f"item-{worker}-{number % 5}"
            with contextlib.suppress(KubeError):
                await session.create(CONFIG_MAPS.path(namespace), config_map(name))
                await session.patch(CONFIG_MAPS.path(namespace, name), {"data": {"value": str(number)}})
            if number % 3:
                with contextlib.suppress(KubeError):
                    await session.delete(CONFIG_MAPS.path(namespace, name))
            number += 1
            await asyncio.sleep(0.01)

    async with running(reflector):
        workers = [asyncio.create_task(churn(worker)) for worker in range(4)]
        await eventually_async("much has come and gone", lambda: len(journal.ended) > 20)
        await asyncio.to_thread(control_plane.restart_apiserver, kill=kill)
        ended = len(journal.ended)
        await eventually_async("and goes on to", lambda: len(journal.ended) > ended + 20)
        done.set()
        await asyncio.gather(*workers)
        last = await session.create(CONFIG_MAPS.path(namespace), config_map("last"))
        await eventually_async("the last one is there", lambda: (namespace, "last") in reflector.store)
        assert state_of(reflector) == await state_on_server(session, namespace)
        assert {item["metadata"]["uid"] for item in reflector.store.values()} == set(journal.alive)
        assert last["metadata"]["uid"] in journal.alive


def compact_etcd(control_plane: LocalControlPlane) -> None:
    """Make etcd forget all revisions but the last, as the API server does every five minutes."""

    def ask(call: str, body: dict) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{control_plane.etcd_port}/v3/kv/{call}", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    key = base64.b64encode(b"/").decode()
    ask("compaction", {"revision": ask("range", {"key": key})["header"]["revision"], "physical": True})


async def test_ends_that_no_watch_shows_any_more_are_found_by_listing_again(
    control_plane: LocalControlPlane, session: Session, wired: Session, wire: Wire, namespace: str
) -> None:
    path = CONFIG_MAPS.path(namespace)
    for name in ("stays", "changes", "goes", "comes-again"):
        await session.create(path, config_map(name))
    journal = Journal()
    reflector = Reflector(
        wired, CONFIG_MAPS, namespace=namespace, label_selector=OURS, on_change=journal, settings=SOON
    )
    async with running(reflector):
        kept = reflector.store[namespace, "stays"]
        await wire.cut()
        journal.reported.clear()
        await session.patch(CONFIG_MAPS.path(namespace, "changes"), {"data": {"value": "new"}})
        await session.delete(CONFIG_MAPS.path(namespace, "goes"))
        await session.delete(CONFIG_MAPS.path(namespace, "comes-again"))
        await session.create(path, config_map("comes-again"))
        await session.create(path, config_map("comes"))
        await asyncio.to_thread(compact_etcd, control_plane)
        await asyncio.to_thread(control_plane.restart_apiserver)  # its watch cache begins anew, after all that
        wire.mend()
        await eventually_async("it has listed again", lambda: reflector.lists > 1)
        assert sorted(journal.reported) == ["+comes", "+comes-again", "-comes-again", "-goes", "~changes"]
        assert state_of(reflector) == await state_on_server(session, namespace)
        assert reflector.store[namespace, "stays"] is kept

        # and the watch goes on from there
        lists = reflector.lists
        await session.delete(CONFIG_MAPS.path(namespace, "stays"))
        await eventually_async("it is gone", lambda: (namespace, "stays") not in reflector.store)
        assert reflector.lists == lists


async def test_a_watch_goes_on_after_a_broken_connection_without_listing(
    session: Session, wired: Session, wire: Wire, namespace: str
) -> None:
    path = CONFIG_MAPS.path(namespace)
    await session.create(path, config_map("goes"))
    reflector = Reflector(wired, CONFIG_MAPS, namespace=namespace, label_selector=OURS, settings=SOON)
    async with running(reflector):
        await wire.cut()
        await session.delete(CONFIG_MAPS.path(namespace, "goes"))
        await session.create(path, config_map("comes"))
        wire.mend()
        await eventually_async(
            "the store has what the server has", lambda: set(reflector.store) == {(namespace, "comes")}
        )
        assert reflector.lists == 1


async def test_a_watch_on_which_nothing_comes_any_more_is_given_up(
    session: Session, wired: Session, wire: Wire, namespace: str
) -> None:
    settings = dataclasses.replace(SOON, inactivity_seconds=1.0)
    reflector = Reflector(wired, CONFIG_MAPS, namespace=namespace, label_selector=OURS, settings=settings)
    async with running(reflector):
        wire.hang()  # what is open now stays open, and silent
        await session.create(CONFIG_MAPS.path(namespace), config_map("comes"))
        await eventually_async("it is there", lambda: (namespace, "comes") in reflector.store)
        assert reflector.lists == 1


async def test_a_fresh_view_is_as_new_as_the_asking(session: Session, namespace: str) -> None:
    reflector = Reflector(session, CONFIG_MAPS, namespace=namespace, label_selector=OURS)
    async with running(reflector):
        for i in range(5):
            await session.create(CONFIG_MAPS.path(namespace), config_map(f"item-{i}"))
            await reflector.refresh()
            assert (namespace, f"item-{i}") in reflector.store
        # many who ask at once are served by few lists
        lists = reflector.lists
        await asyncio.gather(*(reflector.refresh() for _ in range(20)))
        assert lists < reflector.lists <= lists + 2


async def test_a_kind_that_comes_later_is_waited_for(cluster: Cluster, session: Session, namespace: str) -> None:
    reflector = Reflector(session, WIDGETS, namespace=namespace, settings=SOON)
    task = asyncio.create_task(reflector.run())
    try:
        with pytest.raises(NotFound):
            await session.list(WIDGETS.path(namespace))
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        cluster.apply(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": "widgets.e2e.concerto.dev"},
                "spec": {
                    "group": "e2e.concerto.dev",
                    "scope": "Namespaced",
                    "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
                    "versions": [
                        {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
                    ],
                },
            }
        )
        await asyncio.wait_for(reflector.synced.wait(), PATIENCE_SECONDS)
        widget = {"apiVersion": "e2e.concerto.dev/v1", "kind": "Widget", "metadata": {"name": "one"}}
        await session.create(WIDGETS.path(namespace), widget)
        await eventually_async("it is there", lambda: (namespace, "one") in reflector.store)
    finally:
        task.cancel()
        cluster.kubectl("delete", "crd", "widgets.e2e.concerto.dev", "--ignore-not-found")


async def test_a_consumer_that_fails_ends_the_run(session: Session, namespace: str) -> None:
    def fail(old: Object | None, new: Object | None) -> None:
        raise ZeroDivisionError("cannot be reported")

    reflector = Reflector(session, CONFIG_MAPS, namespace=namespace, label_selector=OURS, on_change=fail)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), PATIENCE_SECONDS)
    await session.create(CONFIG_MAPS.path(namespace), config_map("one"))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, PATIENCE_SECONDS)
