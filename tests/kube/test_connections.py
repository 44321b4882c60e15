"""The connections that requests are sent on, against a server that writes raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from concerto.kube import ClusterConfig, ConfigError, KubeError, Session
from concerto.kube.connections import Answer, ConnectionLost, ConnectionPool, NotSent, Tls
from support.waiting import eventually

PLAIN = Tls(None, None)
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
Request = Callable[[], Awaitable[None]]
"""Returns once a whole request has come; raises once the client has gone."""
Script = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Gives each connection that is opened to the next of the scripts, the last one for ever.

    Attributes:
        opened: connections so far.
        asked: the lines that requests begin with.
    """

    def __init__(self, *scripts: Script) -> None:
        self.opened = 0
        self.asked: list[str] = []
        self._scripts = scripts

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.opened, len(self._scripts) - 1)]
        self.opened += 1

        async def request() -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.partition(b"\r\n")[0].decode())

        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await script(request, writer)
        writer.close()


def answers(*answers: bytes) -> Script:
    """These to one request each, then the end of the connection."""

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await request()
            writer.write(answer)
            await writer.drain()

    return script


class Client:
    """A pool of connections to a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pool = ConnectionPool(URL(f"http://127.0.0.1:{port}"), 5.0)

    async def get(self, path: str = "/", seconds: float = 5.0, max_bytes: int | None = None) -> Answer:
        deadline = asyncio.get_running_loop().time() + seconds
        return await self.pool.exchange(f"GET {path} HTTP/1.1\r\n\r\n".encode(), PLAIN, deadline, max_bytes)

    async def disconnected(self) -> None:
        """Returns once no connection is open."""
        await eventually(lambda: not len(self.pool))


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Client]:
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    client = Client(listening.sockets[0].getsockname()[1])
    try:
        yield client
    finally:
        client.pool.close()
        listening.close()


WHOLE = {
    "a length": (FINE, Answer(200, b"fine", None)),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204, b"", None)),
    "chunks": (
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfin\r\n1\r\ne\r\n0\r\n\r\n",
        Answer(201, b"fine", None),
    ),
    "a wait": (
        b"HTTP/1.1 429 Too Many Requests\r\nretry-AFTER: 7\r\nContent-Length: 0\r\n\r\n",
        Answer(429, b"", 7.0),
    ),
    "a wait until a date": (
        b"HTTP/1.1 503 Oh\r\nRetry-After: Sat, 28 Nov 2026 16:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
        Answer(503, b"", None),
    ),
    "a word in between": (b"HTTP/1.1 100 Continue\r\n\r\n" + FINE, Answer(200, b"fine", None)),
}


@pytest.mark.parametrize(("sent", "expected"), WHOLE.values(), ids=WHOLE.keys())
async def test_answers_are_read_to_their_end_and_the_connection_is_used_again(sent: bytes, expected: Answer) -> None:
    server = Server(answers(sent, FINE))
    async with client_of(server) as client:
        assert await client.get("/a") == expected
        assert (await client.get("/b")).payload == b"fine"
    assert (server.opened, server.asked) == (1, ["GET /a HTTP/1.1", "GET /b HTTP/1.1"])


async def test_an_answer_may_come_byte_by_byte() -> None:
    async def slowly(request: Request, writer: asyncio.StreamWriter) -> None:
        await request()
        for byte in FINE:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with client_of(Server(slowly)) as client:
        assert await client.get() == Answer(200, b"fine", None)


async def test_a_server_that_ends_its_connections_gets_another() -> None:
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    server = Server(answers(last), answers(FINE), answers(FINE))
    async with client_of(server) as client:
        await client.get()
        await client.get()
        await client.disconnected()  # this one the server has ended without a word
        assert (await client.get()).payload == b"fine"
    assert server.opened == 3


NO_ANSWER = {
    "cut short": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfi"),
    "nothing at all": answers(b""),
    "not HTTP": answers(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "another protocol": answers(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n..."),
}


@pytest.mark.parametrize("script", NO_ANSWER.values(), ids=NO_ANSWER.keys())
async def test_without_a_whole_answer_nobody_knows_what_was_done(script: Script) -> None:
    server = Server(script, answers(FINE))
    async with client_of(server) as client:
        with pytest.raises(ConnectionLost):
            await client.get()
        assert (await client.get()).payload == b"fine"


async def hangs(request: Request, writer: asyncio.StreamWriter) -> None:
    await request()
    await request()  # raises once the client has gone


async def test_the_end_of_its_time_ends_a_request_and_its_connection() -> None:
    server = Server(hangs, answers(FINE))
    async with client_of(server) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.get(seconds=0.05)
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert (await client.get()).payload == b"fine"
    assert server.opened == 2


async def test_the_late_answer_to_a_request_that_was_given_up_is_not_the_next_ones() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(request: Request, writer: asyncio.StreamWriter) -> None:
        await request()
        asked.set()
        await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold")
        await hangs(request, writer)

    async with client_of(Server(late, answers(FINE))) as client:
        given_up = asyncio.ensure_future(client.get())
        await asked.wait()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        go_on.set()
        assert (await client.get()).payload == b"fine"


@pytest.mark.parametrize("at_once", [True, False], ids=["with the answer", "afterwards"])
async def test_what_nobody_asked_for_is_no_answer(at_once: bool) -> None:
    unasked = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 3\r\n\r\nold"
    answered = asyncio.Event()

    async def talks(request: Request, writer: asyncio.StreamWriter) -> None:
        await request()
        writer.write(FINE + unasked if at_once else FINE)
        await answered.wait()
        if not at_once:
            writer.write(unasked)
        await request()

    server = Server(talks, answers(FINE))
    async with client_of(server) as client:
        assert (await client.get()).payload == b"fine"
        answered.set()
        await client.disconnected()
        assert (await client.get()).payload == b"fine"
    assert server.opened == 2


async def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
        await request()
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            await writer.drain()

    async with client_of(Server(endless)) as client:
        with pytest.raises(KubeError, match="larger than 5000 bytes"):
            await client.get(max_bytes=5000)


async def test_without_a_connection_nothing_was_sent() -> None:
    async with client_of(Server(answers(FINE))) as client:
        pass
    closed = Client(client.port)
    with pytest.raises(NotSent):
        await closed.get()


async def test_requests_end_with_their_session() -> None:
    asked = asyncio.Event()

    async def waits(request: Request, writer: asyncio.StreamWriter) -> None:
        await request()
        asked.set()
        await request()

    async with client_of(Server(waits)) as client:
        request = asyncio.ensure_future(client.get())
        await asked.wait()
    with pytest.raises(ConnectionLost):
        await request


HEADS = {
    "a name that nobody has encoded": ("/x y\r\nInjected: z", "GET /prefix/x%20y%0D%0AInjected:%20z HTTP/1.1"),
    "a name in another script": ("/grün", "GET /prefix/gr%C3%BCn HTTP/1.1"),
    "an encoded name": ("/a%2Fb", "GET /prefix/a%2Fb HTTP/1.1"),
}


@pytest.mark.parametrize(("path", "expected"), HEADS.values(), ids=HEADS.keys())
async def test_the_head_of_a_request(path: str, expected: str) -> None:
    server = Server(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/prefix"
    async with listening, await Session.open(ClusterConfig(address)) as session:
        assert await session.get(path) == {}
    assert server.asked == [expected]


async def test_a_token_that_would_be_two_headers_is_not_sent() -> None:
    async with await Session.open(ClusterConfig("http://127.0.0.1:1", token="secret\r\nX: y")) as session:
        with pytest.raises(ConfigError, match="line break") as caught:
            await session.get("/")
    assert "secret" not in str(caught.value)
