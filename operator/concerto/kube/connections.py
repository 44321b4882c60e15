"""A pool of HTTP/1.1 connections to one server, each for one request at a time.

An operator that binds pods sends little else than small requests. aiohttp, which has more to offer, takes several times
as much CPU for each (`pytest -s -m bench e2e/bench/test_bench_kube.py`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohappyeyeballs import AddrInfoType, start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from yarl import URL

from concerto.kube.errors import KubeError

KEEP_IDLE_SECONDS = 60.0
"""API servers close what has been idle for 90 s: a connection is given up before, and never used in that moment."""
_SECOND_ADDRESS_AFTER_SECONDS = 0.25
_UNACKNOWLEDGED_MILLISECONDS = 4000
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class NotSent(Exception):
    """The API server cannot have carried out the request: there was no connection."""


class ConnectionLost(Exception):
    """The request was sent, and there is no whole answer: the API server may have carried it out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server answered.

    Attributes:
        status: HTTP status code.
        payload: the body.
        retry_after_seconds: as the ``Retry-After`` header asks, or None.
    """

    status: int
    payload: bytes
    retry_after_seconds: float | None


@dataclass(frozen=True, slots=True)
class Tls:
    """How connections are encrypted. Those that were made with another context are not used any more.

    Attributes:
        context: with the authorities to trust and the client's certificate; None: plain HTTP.
        server_name: the name to expect in the server's certificate.
    """

    context: ssl.SSLContext | None
    server_name: str | None


class Connection(asyncio.Protocol):
    """One connection, for one request at a time.

    Attributes:
        context: the TLS context that it was made with.
        idle_since: when its last request has ended, in the event loop's time.
    """

    def __init__(self, context: ssl.SSLContext | None, on_lost: Callable[[Connection], None]) -> None:
        """Made by the event loop.

        Args:
            context: that it is made with.
            on_lost: called when it has ended.
        """
        self.context = context
        self.idle_since = 0.0
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._max_bytes: int | None = None
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._retry_after: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, deadline: float, max_bytes: int | None) -> Answer:
        """Send a request, and return its answer; the connection ends with any error.

        Args:
            request: all of it, as it is sent.
            deadline: in the event loop's time.
            max_bytes: of the answer's body; None: any.

        Raises:
            ConnectionLost: there is no whole answer.
            KubeError: the answer is larger than ``max_bytes``.
        """
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer, self._max_bytes = loop.create_future(), max_bytes
        timer = loop.call_at(deadline, self._fail, TimeoutError())
        try:
            self._transport.write(request)
            return await self._answer
        except asyncio.CancelledError:
            self.abort()
            raise
        except KubeError:
            raise
        except Exception as error:
            raise ConnectionLost(text_of(error)) from error
        finally:
            timer.cancel()
            self._answer = None
            self.idle_since = loop.time()

    def abort(self) -> None:
        """End it at once; what has not been sent is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End it; nothing is in flight."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio's

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio.Protocol."""
        self._fail(error or ConnectionResetError("the server has closed the connection"))
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Of asyncio.Protocol."""
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(error)

    def on_message_begin(self) -> None:
        """Of httptools."""
        if self._answer is None or self._answer.done():
            self.abort()  # nothing was asked: this must not be taken for the next answer

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools."""
        if len(name) == 11 and name.lower() == b"retry-after":
            self._retry_after = seconds_to_wait(value.decode("latin-1"))

    def on_body(self, piece: bytes) -> None:
        """Of httptools."""
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            self._fail(KubeError(f"the answer is larger than {self._max_bytes} bytes"))

    def on_message_complete(self) -> None:
        """Of httptools."""
        status = self._parser.get_status_code()
        answer = Answer(status, b"".join(self._pieces), self._retry_after)
        self._pieces, self._bytes, self._retry_after = [], 0, None
        if status < 200:
            return  # the answer itself follows
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class ConnectionPool:
    """Connections to one server. Has no bound of its own: callers bound what is in flight."""

    def __init__(self, server: URL, connect_timeout_seconds: float) -> None:
        """Nothing is sent yet.

        Args:
            server: scheme, host and port count.
            connect_timeout_seconds: for TCP and TLS together.
        """
        self._host, self._port = server.host or "", server.port or 443
        self._connect_timeout_seconds = connect_timeout_seconds
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []  # the last used is used next, so that those that are not needed grow old
        self._closed = False

    def __len__(self) -> int:
        """Connections that are open, idle or not."""
        return len(self._all)

    async def exchange(self, request: bytes, tls: Tls, deadline: float, max_bytes: int | None = None) -> Answer:
        """Send a request on a connection that is idle, or on a new one.

        Args:
            request: all of it, as it is sent.
            tls: how the connection is to be encrypted.
            deadline: in the event loop's time.
            max_bytes: of the answer's body; None: any.

        Raises:
            NotSent: there was no connection; its cause is the reason.
            ConnectionLost: the server may have carried it out.
            KubeError: the answer is larger than ``max_bytes``.
        """
        connection = self._take(tls) or await self._connect(tls, deadline)
        if self._closed:
            connection.abort()
            raise NotSent("the session is closed")
        answer = await connection.exchange(request, deadline, max_bytes)
        if connection.is_open and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """End all connections; requests in flight end with `ConnectionLost`."""
        self._closed = True
        self._idle.clear()
        for connection in list(self._all):
            connection.abort()

    def _take(self, tls: Tls) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - KEEP_IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.context is tls.context and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, tls: Tls, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + self._connect_timeout_seconds)):
                addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                opened = await start_connection(
                    addresses, happy_eyeballs_delay=_SECOND_ADDRESS_AFTER_SECONDS, socket_factory=open_socket
                )
                try:
                    return await self._encrypt(opened, tls)
                except BaseException:
                    opened.close()
                    raise
        except (OSError, TimeoutError, RuntimeError) as error:  # of uvloop some are RuntimeErrors
            raise NotSent(text_of(error)) from error

    async def _encrypt(self, opened: socket.socket, tls: Tls) -> Connection:
        encryption: dict[str, Any] = {}
        if tls.context is not None:
            encryption = {"ssl": tls.context, "server_hostname": tls.server_name or self._host}
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(tls.context, self._lost), sock=opened, **encryption
        )
        self._all.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


def open_socket(address: AddrInfoType) -> socket.socket:
    """A socket whose unsent data ends with it.

    Without this the kernel goes on sending what a request has left in its buffer, minutes after the request has timed
    out and even after the process has exited: a binding would reach the API server when another leader decides.
    """
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: where this process is stopped, and closes nothing
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)
    return opened


def seconds_to_wait(retry_after: str | None) -> float | None:
    """The seconds of a ``Retry-After`` header; None without one."""
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:  # the date form, which no API server sends
        return None


def text_of(error: BaseException) -> str:
    """The message of an error; without one its kind."""
    return str(error) or type(error).__name__
