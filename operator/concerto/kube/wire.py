"""HTTP/1.1 for requests whose answers end: one at a time on each of a few kept connections.

Why not aiohttp, which carries our watches? A pod placed is two requests, its binding and its event, and aiohttp takes
two to three times the CPU for each (e2e/bench/test_bench_requests.py): a fifth of all that the scheduler used.
Known to it are the answers of an API server and of what may stand before one: by length, in chunks, or to the end of
the connection. No redirects, no compression (none is asked for), no proxies.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

_HEAD_MOST_BYTES = 64 * 1024
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+").fullmatch
_NO_BODY = (204, 304)


class NotSent(Exception):
    """The request has not left: there was no connection to send it on."""


class Lost(Exception):
    """The request was sent, and no whole answer came: what has become of it is unknown."""


class TooLarge(Exception):
    """The answer's body is larger than the caller takes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said.

    Attributes:
        status: HTTP status code, never 1xx.
        headers: by name in lower case.
        payload: the body.
    """

    status: int
    headers: Mapping[str, str]
    payload: bytes


class Wire:
    """A pool of connections to one server."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext | None,
        tls_server_name: str | None,
        headers: Mapping[str, str],
        connect_timeout_seconds: float,
        keep_seconds: float,
    ) -> None:
        """Nothing is opened yet.

        Args:
            server: base URL.
            tls: how to speak TLS; None for plain ``http://``.
            tls_server_name: the name to expect in the certificate, if not the URL's host.
            headers: sent with every request.
            connect_timeout_seconds: for TCP and TLS together.
            keep_seconds: how long a connection that is not used is kept.
        """
        url = urlsplit(server)
        self._host, self._port = url.hostname or "", url.port or (443 if tls else 80)
        self._prefix = url.path
        self._tls = tls
        self._tls_server_name = (tls_server_name or self._host) if tls else None
        self._common = _lines({"Host": url.netloc, **headers})
        self._connect_timeout_seconds = connect_timeout_seconds
        self._keep_seconds = keep_seconds
        self._idle: deque[tuple[float, _Connection]] = deque()  # the last used is the last
        self._open: set[_Connection] = set()
        self._closed = False

    def close(self) -> None:
        """Break all connections, and open no more; requests in progress are lost."""
        self._closed = True
        for connection in list(self._open):
            connection.transport.abort()

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout_seconds: float,
        largest_bytes: int | None = None,
    ) -> Answer:
        """Send one request and return its answer, whatever it says.

        Args:
            method: HTTP verb.
            target: encoded path and query.
            headers: of this request.
            body: to send.
            timeout_seconds: from here to the end of the answer.
            largest_bytes: of the answer's body.

        Raises:
            NotSent: no connection, in time.
            Lost: it broke, or the time was over, or what came is not HTTP.
            TooLarge: the answer is.
            ValueError: the target or a header has characters that it can't have.
        """
        if not _one_line(target) or " " in target:
            raise ValueError(f"a path has characters that it can't have: {target!r}")
        length = f"Content-Length: {len(body)}\r\n" if body is not None else ""
        head = f"{method} {self._prefix}{target} HTTP/1.1\r\n{self._common}{_lines(headers)}{length}\r\n"
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                connection = self._kept() or await self._connect()
                answer = await connection.exchange(head.encode() + (body or b""), largest_bytes)
        except TimeoutError as error:
            if connection is None:
                raise NotSent("no connection in time") from error
            raise Lost(f"no answer within {timeout_seconds:g} s") from error
        except (OSError, ValueError) as error:
            raise (NotSent if connection is None else Lost)(str(error) or type(error).__name__) from error
        finally:
            if connection is not None:
                self._keep(connection)
        return answer

    def _kept(self) -> _Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if connection.reusable and not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> _Connection:
        if self._closed:
            raise NotSent("this side is closed")
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._open), self._host, self._port,
                    ssl=self._tls, server_hostname=self._tls_server_name,
                )  # fmt: skip
        except (OSError, TimeoutError) as error:
            raise NotSent(str(error) or "no connection in time") from error
        return connection

    def _keep(self, connection: _Connection) -> None:
        if not connection.reusable:
            connection.transport.abort()  # cancelled, too: the rest of that answer is nobody's
            return
        now = asyncio.get_running_loop().time()
        self._idle.append((now, connection))
        while now - self._idle[0][0] > self._keep_seconds:
            self._idle.popleft()[1].transport.abort()


class _Connection(asyncio.Protocol):
    """One connection, with one request on it at most.

    Attributes:
        transport: what it is made of.
        reusable: whether nothing is under way on it, and nothing has come that was not asked for.
    """

    transport: asyncio.Transport

    def __init__(self, opened: set[_Connection]) -> None:
        self.reusable = False
        self._opened = opened
        self._received = bytearray()
        self._ended: BaseException | None = None
        self._more: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.reusable = True
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        if self.reusable:
            # An answer to nothing (a time limit of something in between, say) must not pass for that of the next
            self.reusable = False
            self.transport.abort()
            return
        self._received += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        self.reusable = False
        self._ended = exc or EOFError()
        self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def exchange(self, request: bytes, largest_bytes: int | None) -> Answer:
        """Send and receive; `reusable` afterwards only if the answer was whole.

        Raises:
            OSError: the connection was lost.
            ValueError: this is not HTTP.
            TooLarge: the body is.
        """
        self.reusable = False
        self.transport.write(request)
        status = 100
        while status < 200:
            version, status, headers = _head(await self._until(b"\r\n\r\n"))
        lasts = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
        if status in _NO_BODY:
            payload = b""
        elif coding := headers.get("transfer-encoding"):
            if coding.lower() != "chunked":
                raise ValueError(f"an answer in {coding!r}")
            payload = await self._chunks(largest_bytes)
        elif "content-length" in headers:
            length = _number(headers["content-length"], 10)
            _limit(length, largest_bytes)
            payload = await self._exactly(length)
        else:
            lasts = False
            while self._ended is None:
                _limit(len(self._received), largest_bytes)
                await self._wait()
            payload = bytes(self._received)
        self.reusable = lasts and self._ended is None and not self._received
        return Answer(status, headers, payload)

    async def _chunks(self, largest_bytes: int | None) -> bytes:
        pieces, size = [], 0
        while length := _number((await self._until(b"\r\n")).split(b";")[0].decode("latin-1"), 16):
            size += length
            _limit(size, largest_bytes)
            pieces.append(await self._exactly(length))
            if await self._exactly(2) != b"\r\n":
                raise ValueError("a chunk that is longer than it says")
        while await self._until(b"\r\n"):
            pass  # trailers
        return b"".join(pieces)

    async def _until(self, end: bytes) -> bytes:
        """What comes before ``end``; that is taken, too."""
        while (at := self._received.find(end)) < 0:
            if len(self._received) > _HEAD_MOST_BYTES:
                raise ValueError("a head without end")
            await self._wait()
        return (await self._exactly(at + len(end)))[:at]

    async def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            await self._wait()
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def _wait(self) -> None:
        if self._ended is not None:
            raise ConnectionResetError(str(self._ended) or "the server has closed the connection")
        self._more = asyncio.get_running_loop().create_future()
        await self._more


def _one_line(text: str) -> bool:
    return text.isascii() and "\r" not in text and "\n" not in text and "\0" not in text


def _lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if not _one_line(value):
            raise ValueError(f"header {name} has characters that it can't have")  # not which: it may be a token
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _head(raw: bytes) -> tuple[str, int, dict[str, str]]:
    """Version, status and headers.

    Raises:
        ValueError: it is not the head of an answer.
    """
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP: {first[:80]!r}")
    fields = (line.partition(":") for line in lines)
    return version, int(status), {name.lower(): value.strip() for name, _, value in fields}


def _number(text: str, base: int) -> int:
    if not _HEXADECIMAL(text.strip()):  # or a sign would do
        raise ValueError(f"not a length: {text[:80]!r}")
    return int(text, base)


def _limit(size: int, largest_bytes: int | None) -> None:
    if largest_bytes is not None and size > largest_bytes:
        raise TooLarge(f"the answer is larger than {largest_bytes} bytes")
