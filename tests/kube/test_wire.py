from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from concerto.kube.wire import Answer, Lost, NotSent, TooLarge, Wire

OK = b"HTTP/1.1 200 OK\r\n"
FINE = OK + b"Content-Length: 4\r\n\r\nfine"


@dataclass
class Server:
    """Sends scripted bytes, one script a request.

    Attributes:
        wire: the client.
        script: what is sent; the last one for ever.
        connections: how many were opened.
        requests: heads of what came.
        writers: of the connections, in order.
    """

    wire: Wire
    script: list[bytes]
    connections: int = 0
    requests: list[str] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def ask(self, target: str = "/x", *, seconds: float = 20.0, largest: int | None = None) -> Answer:
        return await self.wire.request("GET", target, {}, None, timeout_seconds=seconds, largest_bytes=largest)


@asynccontextmanager
async def serving(*script: bytes, ends: bool = False, prefix: str = "", keep: float = 60.0) -> AsyncIterator[Server]:
    """A server of these answers; with ``ends`` it closes each connection after one."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        found.writers.append(writer)
        try:
            while True:
                found.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
                for byte in found.script.pop(0) if len(found.script) > 1 else found.script[0]:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
                if ends:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = Server(Wire(f"http://127.0.0.1:{port}{prefix}", None, None, {"Accept": "a/b"}, 5.0, keep), list(script))
    try:
        yield found
    finally:
        found.wire.close()
        server.close()


WHOLE = {
    "by its length": (FINE, b"fine"),
    "in chunks, with what else may stand there": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n3;why=not\r\nfin\r\n1\r\ne\r\n0\r\nLast: word\r\n\r\n", b"fine",
    ),
    "empty in chunks": (OK + b"transfer-encoding: Chunked\r\n\r\n0\r\n\r\n", b""),
    "without a body": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "after a word in between": (b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + FINE, b"fine"),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "payload"), WHOLE.values(), ids=WHOLE)
async def test_a_whole_answer_leaves_the_connection_to_the_next(sent: bytes, payload: bytes) -> None:
    async with serving(sent) as server:
        answers = [await server.ask(), await server.ask()]
        assert [a.payload for a in answers] == [payload] * 2
        assert server.connections == 1


LAST = {
    "that says so": OK + b"Connection: Close\r\nContent-Length: 4\r\n\r\nfine",
    "of an older version": b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nfine",
    "that ends with it": b"HTTP/1.1 200 OK\r\n\r\nfine",
}


@pytest.mark.parametrize("sent", LAST.values(), ids=LAST)
async def test_the_last_answer_of_a_connection_is_whole_too(sent: bytes) -> None:
    async with serving(sent, ends=True) as server:
        assert [(await server.ask()).payload for _ in range(2)] == [b"fine", b"fine"]
        assert server.connections == 2


BROKEN = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 O",
    "half a body": OK + b"Content-Length: 10\r\n\r\nfine",
    "half of its chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n",
    "a chunk that is longer than it says": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nfine\r\n0\r\n\r\n",
    "chunks of no number": OK + b"Transfer-Encoding: chunked\r\n\r\nfine\r\n\r\n",
    "less than nothing in chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n-4\r\nfine\r\n0\r\n\r\n",
    "less than nothing": OK + b"Content-Length: -1\r\n\r\nfine",
    "a coding that was not asked for": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "a status that is none": b"HTTP/1.1 fine\r\n\r\n",
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
async def test_half_an_answer_is_none(sent: bytes) -> None:
    async with serving(sent, FINE, ends=True) as server:
        with pytest.raises(Lost):
            await server.ask()
        assert (await server.ask()).payload == b"fine"


async def test_what_comes_on_a_connection_that_waits_is_not_the_next_answer() -> None:
    async with serving(FINE) as server:
        await server.ask()
        server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await server.writers[0].wait_closed()  # we break it
        assert (await server.ask()).status == 200
        assert server.connections == 2


async def test_an_answer_that_comes_too_late_is_nobodys() -> None:
    async with serving(OK + b"Content-Length: 10\r\n\r\n", FINE) as server:
        with pytest.raises(Lost, match="no answer within") as caught:
            await server.ask(seconds=0.2)
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert (await server.ask()).payload == b"fine"
        assert server.connections == 2


async def test_requests_at_once_have_a_connection_each() -> None:
    async with serving(FINE) as server:
        await asyncio.gather(*(server.ask() for _ in range(3)))
        await server.ask()
        assert server.connections == 3


async def test_connections_that_nobody_uses_are_ended() -> None:
    async with serving(FINE, keep=0.0) as server:
        await asyncio.gather(*(server.ask() for _ in range(3)))
        await server.ask()
        await asyncio.gather(*(w.wait_closed() for w in server.writers[:2]), return_exceptions=True)
        assert sum(w.is_closing() for w in server.writers) >= 2


ENDS = OK + b"Connection: close\r\n"
SIZES = {
    "by its length": ENDS + b"Content-Length: 4\r\n\r\nfine",
    "in chunks": ENDS + b"Transfer-Encoding: chunked\r\n\r\n2\r\nfi\r\n2\r\nne\r\n0\r\n\r\n",
    "to its end": ENDS + b"\r\nfine",
}


@pytest.mark.parametrize("sent", SIZES.values(), ids=SIZES)
async def test_an_answer_is_as_large_as_it_may_be(sent: bytes) -> None:
    async with serving(sent, ends=True) as server:
        assert (await server.ask(largest=4)).payload == b"fine"
        with pytest.raises(TooLarge, match="larger than 3 bytes"):
            await server.ask(largest=3)


async def test_a_server_that_is_not_there_gets_nothing() -> None:
    async with serving(FINE) as server:
        gone = server.wire
    with pytest.raises(NotSent):
        await gone.request("POST", "/x", {}, b"{}", timeout_seconds=5)


async def test_nothing_is_opened_after_the_end() -> None:
    async with serving(FINE) as server:
        await server.ask()
        server.wire.close()
        with pytest.raises(NotSent, match="closed"):
            await server.ask()
        assert server.connections == 1


async def test_the_request_says_what_it_must() -> None:
    async with serving(FINE, prefix="/proxied/c1") as server:
        await server.wire.request("POST", "/x?a=b", {"Authorization": "Bearer t"}, b"", timeout_seconds=5)
        address, port = server.writers[0].get_extra_info("sockname")
        assert server.requests[0].splitlines() == [
            "POST /proxied/c1/x?a=b HTTP/1.1",
            f"Host: {address}:{port}",
            "Accept: a/b",
            "Authorization: Bearer t",
            "Content-Length: 0",
            "",
        ]


SMUGGLED: dict[str, Callable[[Server], object]] = {
    "in the path": lambda server: server.ask("/x HTTP/1.1\r\nX: y"),
    "in a token": lambda server: server.wire.request("GET", "/x", {"A": "t\r\nX: y"}, None, timeout_seconds=5),
}


@pytest.mark.parametrize("sent", SMUGGLED.values(), ids=SMUGGLED)
async def test_nothing_is_smuggled_in(sent: Callable[[Server], object]) -> None:
    async with serving(FINE) as server:
        with pytest.raises(ValueError, match="can't have"):
            await sent(server)  # type: ignore[misc]
        assert server.requests == []
