"""Callers of the HTTP endpoints hold up neither each other nor the process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from concerto.kube.access_review import MAX_TOKEN_BYTES
from concerto.serving.connection_limiter import ConnectionLimits
from concerto.serving.fair_turns import TurnSettings
from concerto.serving.http_server import HttpServer, HttpServerThread
from concerto.serving.limited_requests import RequestLimits
from support.waiting import eventually

LIMITS = ConnectionLimits(connections=16, pause_seconds=0.0)


async def hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


ROUTES = [web.get("/", hello)]


@asynccontextmanager
async def served(limits: ConnectionLimits = LIMITS) -> AsyncIterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", ROUTES, limits)
    await server.start()
    try:
        yield server
    finally:
        await server.cleanup()


@asynccontextmanager
async def client(address: str = "127.0.0.1") -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(10)) as session:
        yield session


async def text(session: aiohttp.ClientSession, port: int) -> str:
    async with session.get(f"http://127.0.0.1:{port}/") as response:
        return await response.text()


async def idle_connections(port: int, count: int) -> list[asyncio.StreamWriter]:
    return [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(count)]


async def test_connections_that_ask_nothing_keep_nobody_out_and_use_few_descriptors():
    async with served() as server, client() as late, client("127.0.0.2") as early:
        assert await text(early, server.port) == "hello"
        idle = await idle_connections(server.port, 300)
        assert await text(late, server.port) == "hello"
        runner = server._runner
        assert runner is not None and runner.server is not None
        assert len(runner.server.connections) <= LIMITS.connections
        for writer in idle:
            writer.close()


async def test_the_connection_of_another_address_survives_a_flood():
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
        idle = await idle_connections(server.port, 100)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(10):
            assert b"200 OK" in await reader.readline()
        writer.close()
        for each in idle:
            each.close()


async def slow_server(answer: asyncio.Event, limits: ConnectionLimits) -> HttpServer:
    async def slow(_: web.Request) -> web.Response:
        await answer.wait()
        return web.Response(text="slow")

    server = HttpServer("127.0.0.1:0", [web.get("/slow", slow), *ROUTES], limits)
    await server.start()
    return server


async def request(
    port: int, path: str, address: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return reader, writer


async def in_progress(server: HttpServer, count: int) -> None:
    await eventually(lambda: len(server._requests._peers) == count)


async def test_a_request_that_is_being_answered_survives_a_flood_of_its_own_address():
    answer = asyncio.Event()
    server = await slow_server(answer, LIMITS)
    reader, writer = await request(server.port, "/slow")
    await in_progress(server, 1)
    idle = await idle_connections(server.port, 100)
    async with client("127.0.0.2") as other:
        assert await text(other, server.port) == "hello"  # so all of the flood has been accepted
    answer.set()
    async with asyncio.timeout(10):
        assert b"200 OK" in await reader.readline()
    for each in (writer, *idle):
        each.close()
    await server.cleanup()


async def test_where_all_requests_of_an_address_are_being_answered_its_next_one_is_refused_and_anothers_is_not():
    answer = asyncio.Event()
    server = await slow_server(answer, ConnectionLimits(connections=3, pause_seconds=0.0))
    asked = [await request(server.port, "/slow") for _ in range(3)]
    await in_progress(server, 3)
    reader, refused = await request(server.port, "/")
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    async with client("127.0.0.2") as other:
        assert await text(other, server.port) == "hello"
    answer.set()
    async with asyncio.timeout(10):
        for asked_first, _ in asked[:2]:
            assert b"200 OK" in await asked_first.readline()
    for writer in (refused, *(writer for _, writer in asked)):
        writer.close()
    await server.cleanup()


async def test_a_client_that_asks_on_and_on_waits_for_another_behind_its_address():
    limits = ConnectionLimits(pause_seconds=0.0, turns=TurnSettings(per_second=5.0, burst=1))
    answered = []

    async def ask(name: str, reader: asyncio.StreamReader) -> None:
        assert b"200 OK" in await reader.readline()
        answered.append(name)

    async with served(limits) as server, client() as noisy:
        assert await text(noisy, server.port) == "hello"
        crowd = [await request(server.port, "/") for _ in range(4)]
        await in_progress(server, 4)
        quiet = await request(server.port, "/", "127.0.0.2")
        async with asyncio.timeout(10):
            await asyncio.gather(ask("quiet", quiet[0]), *(ask("noisy", reader) for reader, _ in crowd))
        for _, writer in (*crowd, quiet):
            writer.close()
    assert answered.index("quiet") <= 1


async def test_a_probe_is_answered_at_once_while_all_else_waits_and_only_once_a_connection():
    limits = ConnectionLimits(pause_seconds=0.0, turns=TurnSettings(per_second=0.01, burst=1))
    server = HttpServer("127.0.0.1:0", [*ROUTES, web.get("/healthz", hello)], limits)
    await server.start()
    crowd = [await request(server.port, "/", f"127.0.0.{number}") for number in range(2, 6)]
    await in_progress(server, 3)
    reader, writer = await request(server.port, "/healthz")
    async with asyncio.timeout(10):
        assert await reader.readuntil(b"hello")
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    await in_progress(server, 4)
    for _, each in (*crowd, (reader, writer)):
        each.close()
    await server.cleanup()


async def test_a_client_gets_in_where_each_connection_is_of_another_address_and_waits():
    limits = ConnectionLimits(connections=3, pause_seconds=0.0, turns=TurnSettings(per_second=0.01, burst=1))
    async with served(limits) as server, client() as first:
        assert await text(first, server.port) == "hello"
        await first.close()
        await eventually(lambda: not server._requests._peers)
        crowd = []
        for number in range(2, 6):
            crowd.append(await request(server.port, "/", f"127.0.0.{number}"))
            await in_progress(server, min(number - 1, 3))
        reader, _ = crowd[2]
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "the last of those that were there"
        await in_progress(server, 3)
        for _, writer in crowd:
            writer.close()


def request_of(size: int) -> bytes:
    header = b"X: " + b"x" * 8000 + b"\r\n"
    return b"GET / HTTP/1.1\r\nHost: x\r\n" + header * (size // len(header)) + b"\r\n"


TOO_MUCH = {
    "headers of one request": request_of(100_000),
    "headers without an end": request_of(100_000)[:-2],
    "requests that wait for their turn": request_of(9000) * 12,
    "many small requests": request_of(0) * 5000,
    "a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000,
}


@pytest.mark.parametrize("sent", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_a_client_that_sends_too_much_before_it_is_answered_is_closed(sent):
    answer = asyncio.Event()
    server = await slow_server(answer, LIMITS)
    reader, writer = await request(server.port, "/slow")
    await in_progress(server, 1)
    writer.write(sent)
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    async with client() as other:
        assert await text(other, server.port) == "hello"
    writer.close()
    await server.cleanup()


async def test_a_client_that_asks_one_after_the_other_keeps_its_connection():
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(10):
            for _ in range(8):
                writer.write(request_of(16_000))
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_a_client_that_does_not_read_its_answer_is_closed():
    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(20_000_000))

    limits = ConnectionLimits(pause_seconds=0.0, requests=RequestLimits(send_seconds=0.1))
    server = HttpServer("127.0.0.1:0", [web.get("/", large)], limits)
    await server.start()
    _, writer = await request(server.port, "/")
    writer.transport.pause_reading()
    runner = server._runner
    assert runner is not None and runner.server is not None
    connected = runner.server
    await eventually(lambda: connected.requests_count == 1 and not connected.connections)
    writer.close()
    await server.cleanup()


async def test_a_token_as_long_as_the_api_server_is_asked_about_gets_through():
    async def length(request: web.Request) -> web.Response:
        return web.Response(text=str(len(request.headers["Authorization"])))

    server = HttpServer("127.0.0.1:0", [web.get("/", length)])
    await server.start()
    async with client() as session:
        headers = {"Authorization": "Bearer " + "t" * MAX_TOKEN_BYTES}
        async with session.get(f"http://127.0.0.1:{server.port}/", headers=headers) as response:
            assert await response.text() == str(len("Bearer ") + MAX_TOKEN_BYTES)
    await server.cleanup()


def test_a_thread_answers_while_the_loop_of_the_process_is_held():
    thread = HttpServerThread(HttpServer("127.0.0.1:0", ROUTES, LIMITS))
    thread.start()
    try:
        port = thread._servers[0].port
        answers: list[bytes] = []

        def ask() -> None:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answers.append(connection.recv(4096))

        async def held() -> None:
            asker = threading.Thread(target=ask)
            asker.start()
            asker.join(timeout=10)  # without an await: this loop stands still until the answer has come

        asyncio.run(held())
        assert answers and b"200 OK" in answers[0]
    finally:
        thread.stop()
    assert not thread._thread.is_alive()


def test_an_address_that_is_taken_is_an_error_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        HttpServer(f"127.0.0.1:{taken.getsockname()[1]}", ROUTES)


def test_an_address_that_cannot_be_bound_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=re.escape(f"cannot listen on {bind}: Address already in use")):
            HttpServer(bind, ROUTES)
    for bind in ("192.0.2.1:80", f"{'a' * 64}.example:80", "a..b:80", "\udcff:80"):
        with pytest.raises(OSError, match=re.escape(f"cannot listen on {bind}: ")):
            HttpServer(bind, ROUTES)


async def no_lifespan(_):
    raise ValueError("not today")
    yield


def test_a_server_that_cannot_start_leaves_no_address_taken():
    first = HttpServer("127.0.0.1:0", ROUTES)
    thread = HttpServerThread(first, HttpServer("127.0.0.1:0", ROUTES, lifespans=[no_lifespan]))
    with pytest.raises(ValueError, match="not today"):
        thread.start()
    thread._thread.join(timeout=5)
    thread.stop()
    with pytest.raises(OSError):
        first.port  # noqa: B018 - the listener is closed


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@asynccontextmanager
async def served_everywhere() -> AsyncIterator[int]:
    server = HttpServer(":0", ROUTES, LIMITS)
    await server.start()
    try:
        yield server.port
    finally:
        await server.cleanup()


async def answers(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        line = await reader.readline()
    writer.close()
    return b"200 OK" in line


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_without_a_host_kubelet_finds_it_at_a_pods_ipv4_address_and_at_its_ipv6_address():
    async with served_everywhere() as port:
        assert await answers("127.0.0.1", port)
        assert await answers("::1", port), "a pod of an IPv6 cluster has no other address"


@pytest.mark.parametrize("refused", ["socket", "bind"])
async def test_without_a_host_it_listens_on_ipv4_where_the_kernel_has_no_ipv6(refused, monkeypatch):
    class Socket(socket.socket):
        def __init__(self, family=-1, *args, **kwargs):
            if family == socket.AF_INET6 and refused == "socket":
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *args, **kwargs)

        def bind(self, address):
            if self.family == socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            super().bind(address)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Socket)
        server = HttpServer(":0", ROUTES, LIMITS)
    await server.start()
    try:
        assert await answers("127.0.0.1", server.port)
    finally:
        await server.cleanup()


async def test_an_idle_connection_is_closed_after_its_keep_alive_time():
    async with served(ConnectionLimits(keep_alive_seconds=0.1)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        began = time.monotonic()
        async with asyncio.timeout(10):
            assert b"hello" in await reader.read(-1)
        assert time.monotonic() - began >= 0.1
        writer.close()


UNREADABLE = {
    "a token that is too long": b"Authorization: Bearer secret" + b"t" * 17_000,
    "a token with a zero byte": b"Authorization: Bearer secret\x00",
    "a header without a name": b": Bearer secret",
}


@pytest.mark.parametrize("header", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_callers_send_is_not_logged(header, caplog):
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
        async with asyncio.timeout(10):
            assert b"400" in await reader.readline()
        writer.close()
    assert "secret" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_what_fails_in_a_handler_is_logged(caplog):
    async def fails(_: web.Request) -> web.Response:
        raise ValueError("a fault of ours")

    server = HttpServer("127.0.0.1:0", [web.get("/", fails)])
    await server.start()
    async with client() as session:
        assert "500" in await text(session, server.port)
    await server.cleanup()
    assert "a fault of ours" in caplog.text
