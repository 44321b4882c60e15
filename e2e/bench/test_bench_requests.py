"""What a request costs the client: ours beside aiohttp, to a server that answers at once. Fails nothing.

Run: ``pytest e2e/bench/test_bench_requests.py -m bench -s``
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import pytest
import uvloop

from concerto.controllers.binder import build_binding
from concerto.kube import ClusterConfig, Session

pytestmark = pytest.mark.bench

REQUESTS = 5000
AT_ONCE = 16
ANSWER = b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{"kind":"Status"}'


class _AtOnce(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)  # type: ignore[attr-defined]


@pytest.fixture
def server() -> Iterator[str]:
    """Its address; it runs in a thread of its own, whose CPU is not counted."""
    loop = uvloop.new_event_loop()
    listening = loop.run_until_complete(loop.create_server(_AtOnce, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


async def _cost(post: Callable[[], Awaitable[object]]) -> float:
    """CPU microseconds of this thread for each request."""

    async def some(count: int) -> None:
        for _ in range(count):
            await post()

    await some(100)
    began = time.thread_time()
    await asyncio.gather(*(some(REQUESTS // AT_ONCE) for _ in range(AT_ONCE)))
    return (time.thread_time() - began) / REQUESTS * 1e6


def test_requests(server: str) -> None:
    path = "/api/v1/namespaces/bench/pods/p-00001/binding"
    body = build_binding("bench", "p-00001", "5d9c2b3a-0d7e-4c0e-9a38-3f5a0c6d6a11", "node-0001")

    async def ours() -> float:
        async with await Session.open(ClusterConfig(server, token="t" * 900)) as session:
            return await _cost(lambda: session.create(path, body))

    async def aiohttps() -> float:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer " + "t" * 900}) as client:

            async def post() -> object:
                async with client.post(server + path, json=body) as response:
                    return await response.json()

            return await _cost(post)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(3):
            mine, theirs = runner.run(ours()), runner.run(aiohttps())
            print(f"\nCPU of a request: {mine:.0f} µs, by aiohttp {theirs:.0f} µs")
