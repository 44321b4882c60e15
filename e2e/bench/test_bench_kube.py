"""What it costs to take in what an API server sends, against Python's own decoder, and to send it small requests."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import orjson
import pytest
import uvloop

from concerto.controllers.operator import GARBAGE_THRESHOLDS
from concerto.kube import ClusterConfig, Session
from concerto.kube.session import Object

pytestmark = pytest.mark.bench

PODS = 500
REPEATS = 7
REQUESTS = 3000
IN_FLIGHT = 16


def pod(number: int) -> Object:
    """A pod as an API server sends it, with what its controllers, its kubelet and managed fields add."""
    time_ = "2026-11-28T16:00:00Z"
    fields: Object = {f"f:field{n}": {".": {}, "f:name": {}, "f:value": {}} for n in range(25)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-5d4f7c9b8-{number:05d}",
            "generateName": "web-5d4f7c9b8-",
            "namespace": f"team-{number % 50}",
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
            "resourceVersion": str(1_000_000 + number),
            "creationTimestamp": time_,
            "labels": {"app": "web", "pod-template-hash": "5d4f7c9b8"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"}],
            "managedFields": [
                {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time_, "fieldsV1": fields}
                for manager in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/team/web:1.2.3",
                    "resources": {"requests": {"cpu": "250m", "memory": "128Mi"}},
                    "env": [{"name": f"SETTING_{n}", "value": f"value of setting {n}"} for n in range(8)],
                    "volumeMounts": [{"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets"}],
                }
            ],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": time_}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
        },
    }


def cpu_seconds(decoder: Callable[[bytes], Any], documents: list[bytes]) -> float:
    """CPU time to decode all documents once, the best of some rounds."""
    best = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        began = time.process_time()
        for document in documents:
            decoder(document)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.parametrize("kind", ["list", "watch"])
def test_decoding(kind: str, say: Callable[[str], None]) -> None:
    pods = [pod(number) for number in range(PODS)]
    if kind == "list":
        documents = [json.dumps({"kind": "PodList", "items": pods}).encode()]
    else:
        documents = [json.dumps({"type": "MODIFIED", "object": each}).encode() for each in pods]
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    own, standard = cpu_seconds(orjson.loads, documents), cpu_seconds(json.loads, documents)
    say(f"{kind} of {PODS} pods: {own / PODS * 1e6:.0f} us a pod, json {standard / PODS * 1e6:.0f} us: "
        f"{standard / own:.2f} times as fast")  # fmt: skip
    assert [orjson.loads(document) for document in documents] == [json.loads(document) for document in documents]


class Server(threading.Thread):
    """Answers each request at once, in a thread of its own.

    Attributes:
        url: where.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.url = ""
        self._listens = threading.Event()
        self.start()
        self._listens.wait()

    def run(self) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

        async def listen() -> None:
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._listens.set()
            await server.serve_forever()

        asyncio.run(listen())


async def microseconds(send: Callable[[], Awaitable[object]]) -> float:
    """CPU time of this thread for one request."""
    waiting = iter(range(REQUESTS))

    async def work() -> None:
        for _ in waiting:
            await send()

    began = time.thread_time()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return 1e6 * (time.thread_time() - began) / REQUESTS


def test_requests(say: Callable[[str], None]) -> None:
    url = Server().url
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "pod"}, "target": {"name": "node"}}

    async def by_session() -> float:
        async with await Session.open(ClusterConfig(url)) as session:
            return await microseconds(lambda: session.create("/api/v1/namespaces/team/pods/pod/binding", body))

    async def by_aiohttp() -> float:
        async with aiohttp.ClientSession() as client:

            async def send() -> object:
                async with client.post(f"{url}/api/v1/namespaces/team/pods/pod/binding", json=body) as answer:
                    return await answer.json()

            return await microseconds(send)

    ours, theirs = uvloop.run(by_session()), uvloop.run(by_aiohttp())
    say(f"a small request: {ours:.0f} us of CPU, by aiohttp {theirs:.0f} us")
    assert ours < theirs
