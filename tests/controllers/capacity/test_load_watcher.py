"""The load-watcher API, from requests to answers in the forms of upstream's load-watcher and of Trimaran."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from jsonschema import Draft4Validator

from concerto.api.nodecapacity import Window
from concerto.controllers.capacity.load_watcher import Watcher, WatcherSettings
from concerto.serving.http_server import HttpServer
from support.scheduling_builders import NOW, capacity, cluster_state, node
from support.waiting import eventually

WINDOWS = tuple(
    Window(resource, window, average, 0.05, 0.5, 300)
    for resource, average in (("cpu", 0.2004), ("memory", 0.3))
    for window in ("5m", "15m")
)
# Trimaran, appendix; its patternProperties match only names that are digits, so the shape of a node is used as well
NODE_SCHEMA = {
    "type": "object",
    "properties": {
        "metrics": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "type": {"type": "string"},
                    "rollup": {"type": "string"},
                    "value": {"type": "integer"},
                },
                "required": ["name", "type", "rollup", "value"],
            },
        },
        "tags": {"type": "object"},
        "metadata": {"type": "object"},
    },
    "required": ["metrics"],
}
KEP_SCHEMA = {
    "type": "object",
    "properties": {
        "timestamp": {"type": "integer"},
        "window": {
            "type": "object",
            "properties": {
                "duration": {"type": "string"},
                "start": {"type": "integer"},
                "end": {"type": "integer"},
            },
            "required": ["duration", "start", "end"],
        },
        "source": {"type": "string"},
        "data": {"type": "object", "additionalProperties": NODE_SCHEMA},
    },
    "required": ["timestamp", "window", "source", "data"],
}


@dataclass
class Served:
    """The API over a cluster, with a clock that is set by hand."""

    client: TestClient
    time: list[float] = field(default_factory=lambda: [NOW])

    async def get(self, path: str) -> tuple[int, object]:
        async with self.client.get(path) as answer:
            body = await answer.text()
            return answer.status, json.loads(body) if answer.content_type == "application/json" else body


@pytest.fixture
async def serve():
    clients = []

    async def start(cluster, **settings):
        time = [NOW]
        app = web.Application()
        app.router.add_routes(Watcher(cluster, lambda: time[0], WatcherSettings(**settings)).routes())
        client = TestClient(TestServer(app))
        await client.start_server()
        clients.append(client)
        return Served(client, time)

    yield start
    for client in clients:
        await client.close()


def cluster(*names):
    return cluster_state([node(n) for n in names], (), [capacity(n, windows=WINDOWS, at=NOW - 10) for n in names])


async def test_todays_form_is_the_default(serve):
    api = await serve(cluster("node-1", "12"))
    status, body = await api.get("/watcher")
    assert status == 200
    assert {k: v for k, v in body.items() if k != "data"} == {
        "timestamp": 1000,
        "window": {"duration": "15m", "start": 90, "end": 990},
        "source": "Concerto",
    }
    nodes = body["data"]["NodeMetricsMap"]
    assert list(nodes) == ["12", "node-1"]
    assert nodes["12"]["metrics"] == [
        {"name": f"host.{r}.utilisation", "type": t, "operator": o, "rollup": "15m", "value": v}
        for r, t, average in (("cpu", "CPU", 20.04), ("memory", "Memory", 30.0))
        for o, v in (("Latest", 50.0), ("AVG", average), ("STD", 5.0))
    ]


@pytest.mark.parametrize("path", ["/watcher", "/watcher/ahead"])
async def test_a_nodes_clock_does_not_move_the_window(serve, path):
    nodes = cluster("node-1", "ahead")
    nodes.set_capacity(capacity("ahead", windows=WINDOWS, at=NOW + 3600, version=2), NOW - 4)
    _, body = await (await serve(nodes)).get(path)
    assert body["window"] == {"duration": "15m", "start": 96, "end": 996}


async def test_the_keps_form_fits_its_schema_for_every_node_name(serve):
    api = await serve(cluster("node-1", "12"))
    status, body = await api.get("/watcher?format=kep")
    assert status == 200
    Draft4Validator(KEP_SCHEMA).validate(body)
    assert set(body["data"]) == {"node-1", "12"}
    assert body["data"]["node-1"]["metrics"][:2] == [
        {"name": "host.cpu.utilisation", "type": "cpu", "rollup": "AVG", "value": 20},
        {"name": "host.cpu.utilisation", "type": "cpu", "rollup": "STD", "value": 5},
    ]


@pytest.mark.parametrize("path", ["/watcher/node-1", "/watcher?host=node-1", "/watcher/node-1?window=5m"])
async def test_one_host(serve, path):
    api = await serve(cluster("node-1", "node-2"))
    status, body = await api.get(path)
    assert (status, list(body["data"]["NodeMetricsMap"])) == (200, ["node-1"])
    assert body["window"]["duration"] == ("5m" if "5m" in path else "15m")


REFUSED = {
    "an unknown host": ("/watcher/nobody", 404),
    "an unknown host as a parameter": ("/watcher?host=nobody", 404),
    "a window that nobody measured": ("/watcher?window=10m", 404),
    "a window that there is not": ("/watcher?window=1h", 400),
    "a form that there is not": ("/watcher?format=xml", 400),
}


@pytest.mark.parametrize(("path", "expected"), REFUSED.values(), ids=REFUSED)
async def test_what_is_not_there_is_said_so(serve, path, expected):
    api = await serve(cluster("node-1"))
    status, body = await api.get(path)
    assert status == expected
    assert body


async def test_nothing_can_be_written(serve):
    api = await serve(cluster("node-1"))
    async with api.client.post("/watcher", data="{}") as answer:
        assert answer.status == 405


async def test_a_node_whose_agent_has_not_reported_for_long_is_left_out(serve):
    api = await serve(cluster("node-1"), stale_after_seconds=60.0)
    assert (await api.get("/watcher/health"))[0] == 200
    api.time[0] = NOW + 51  # the status came when it was 10 s old
    assert (await api.get("/watcher/node-1"))[0] == 404
    assert (await api.get("/watcher"))[0] == 404
    assert (await api.get("/watcher/health"))[0] == 503


async def test_a_node_without_windows_or_without_a_node_object_is_left_out(serve):
    made = cluster("node-1")
    made.set_node(node("bare"))
    made.set_capacity(capacity("bare"), NOW)
    made.set_capacity(capacity("gone", windows=WINDOWS), NOW)
    api = await serve(made)
    assert list((await api.get("/watcher"))[1]["data"]["NodeMetricsMap"]) == ["node-1"]
    assert (await api.get("/watcher/bare"))[0] == (await api.get("/watcher/gone"))[0] == 404


@asynccontextmanager
async def served(watcher: Watcher) -> AsyncIterator[str]:
    """The API as the operator serves it; gives the URL of all nodes."""
    server = HttpServer("127.0.0.1:0", watcher.routes())
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/watcher"
    finally:
        await server.cleanup()


@asynccontextmanager
async def connection() -> AsyncIterator[aiohttp.ClientSession]:
    """A client with one connection."""
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(10)) as session:
        yield session


async def ask(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        await answer.read()
        return answer.status


async def test_a_client_that_goes_away_while_the_answer_is_made_keeps_no_other_from_it(monkeypatch):
    watcher = Watcher(cluster("node-1"), lambda: NOW)
    go_on, render = asyncio.Event(), watcher._render
    made = []

    async def slowly(*args):
        made.append(args)
        await go_on.wait()
        return await render(*args)

    monkeypatch.setattr(watcher, "_render", slowly)
    async with served(watcher) as url, connection() as first, connection() as second:
        gone = asyncio.create_task(ask(first, url))
        await eventually(lambda: made)
        asked = asyncio.create_task(ask(second, url))
        gone.cancel()
        go_on.set()
        assert await asked == 200
        assert len(made) == 1


async def test_an_answer_is_given_again_for_a_few_seconds(serve):
    made = cluster("node-1")
    api = await serve(made, keep_seconds=5.0)
    first = (await api.get("/watcher"))[1]
    made.set_node(node("late"))
    made.set_capacity(capacity("late", windows=WINDOWS), NOW)
    api.time[0] += 5.0
    assert (await api.get("/watcher"))[1] == first
    api.time[0] += 0.1
    assert set((await api.get("/watcher"))[1]["data"]["NodeMetricsMap"]) == {"late", "node-1"}


async def test_network_and_io_have_upstreams_types_and_other_resources_are_not(serve):
    windows = tuple(Window(r, "15m", 0.25, 0.0, 0.5, 900) for r in ("cpu", "network", "io", "gpu"))
    api = await serve(cluster_state([node("a")], (), [capacity("a", windows=windows)]))
    for form, types in (("", ["CPU", "Bandwidth", "Storage"]), ("?format=kep", ["cpu", "network", "io"])):
        body = (await api.get(f"/watcher{form}"))[1]["data"]
        metrics = body.get("NodeMetricsMap", body)["a"]["metrics"]
        assert list(dict.fromkeys(metric["type"] for metric in metrics)) == types


LABELS = {
    "topology.kubernetes.io/zone": "zone-1",
    "topology.kubernetes.io/region": "region-1",
    "node.kubernetes.io/instance-type": "large",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "cloud.google.com/gke-nodepool": "critical-apps",
}
TAGS = {"region": "region-1", "instanceType": "large", "architecture": "amd64", "operatingSystem": "linux"}


@pytest.mark.parametrize("path", ["/watcher", "/watcher/a", "/watcher?format=kep"])
async def test_metadata_and_tags_are_the_labels_of_the_node(serve, path):
    api = await serve(cluster_state([node("a", labels=LABELS)], (), [capacity("a", windows=WINDOWS)]))
    body = (await api.get(path))[1]["data"]
    entry = body.get("NodeMetricsMap", body)["a"]
    assert entry["metadata"] == {"dataCenter": "zone-1", "pool": "critical-apps"}
    assert entry["tags"] == TAGS


async def test_a_node_without_such_labels_has_none(serve):
    api = await serve(cluster("node-1"))
    entry = (await api.get("/watcher"))[1]["data"]["NodeMetricsMap"]["node-1"]
    assert (entry["metadata"], entry["tags"]) == ({}, {})
