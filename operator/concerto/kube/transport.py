"""One attempt of one request: connections, TLS, credentials, and how far the attempt came."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from concerto.kube.config import ClusterConfig
from concerto.kube.connection_problems import connection_problem
from concerto.kube.credentials import Credentials
from concerto.kube.errors import TooLarge
from concerto.kube.own_version import own_version
from concerto.kube.tls import TlsContexts

JSON = "application/json"
MAX_BYTES = 32 * 2**20
"""Of an answer, and of a line of a stream. The API server takes requests of 3 MiB, of which JSON makes 18 MiB at most:
each letter may take six. More is a fault, and would cost the process its memory."""
MAX_REFUSAL_BYTES = 2**20
"""Of an answer that refuses a request. What else may be said in so many bytes is decoded in some 20 ms."""
_UNACKNOWLEDGED_MILLISECONDS = 4000
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class NotSent(Exception):
    """The API server cannot have carried out the request: there was no connection."""


class ConnectionLost(Exception):
    """The request was sent, and there is no whole answer: the API server may have carried it out."""


@dataclass(frozen=True)
class Outgoing:
    """A request as it is sent.

    Attributes:
        method: HTTP verb.
        path: encoded already.
        params: query parameters.
        data: the body; None without one.
        content_type: of the body.
    """

    method: str
    path: str
    params: Mapping[str, str] | None = None
    data: bytes | None = None
    content_type: str = JSON

    def __str__(self) -> str:
        """``GET /api/v1/nodes``."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
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


class Transport:
    """A pool of connections to one API server. Belongs to the event loop that it was opened in."""

    def __init__(self, config: ClusterConfig, connect_timeout_seconds: float, max_requests: int) -> None:
        """Nothing is sent yet.

        Args:
            config: the API server.
            connect_timeout_seconds: for TCP and TLS together.
            max_requests: in flight at a time, streams not counted.
        """
        self._config = config
        self._slots = asyncio.Semaphore(max_requests)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._credentials = config.credential_source()
        self._tls = TlsContexts(config)
        # The pool itself has no limit: a request that waits for a connection inside the pool may run out of time there,
        # and then look as if it had been sent
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, socket_factory=_open_socket)
        self._client = aiohttp.ClientSession(
            connector=connector,
            # Compression costs the API server more than a cluster's own network saves
            headers={"User-Agent": _user_agent(), "Accept": JSON, "Accept-Encoding": "identity"},
            skip_auto_headers=("Content-Type",),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def check(self) -> None:
        """Fetch credentials and TLS material once.

        Raises:
            ConfigError: they cannot be used.
        """
        self._tls.context(await self._credentials.current())

    async def close(self) -> None:
        """Close all connections; streams in progress end with an error."""
        await self._client.close()

    async def send(self, request: Outgoing, *, timeout_seconds: float, max_bytes: int | None = None) -> Answer:
        """Send a request once, or twice where a 401 shows that there are newer credentials.

        Args:
            request: what to send.
            timeout_seconds: for all of it: waiting for other requests to end, connection and answer.
            max_bytes: a larger answer is an error; None: as if the connection had been lost after `MAX_BYTES`.

        Raises:
            NotSent: the API server cannot have carried it out.
            ConnectionLost: it may have.
            ConfigError: there are no credentials.
            TooLarge: the answer is larger than ``max_bytes``.
        """
        url = URL(f"{self._config.server}{_target(request.path, request.params)}", encoded=True)
        content_type = request.content_type if request.data is not None else None

        async def attempt(credentials: Credentials) -> Answer:
            left = max(deadline - loop.time(), 0.001)  # 0 would be no limit
            timeout = aiohttp.ClientTimeout(total=left, sock_connect=self._connect_timeout_seconds)
            async with self._client.request(
                request.method,
                url,
                data=request.data,
                headers=_headers(credentials, content_type),
                timeout=timeout,
                ssl=self._tls.context(credentials),
                server_hostname=self._config.tls_server_name,
                proxy=self._config.proxy_url,
                allow_redirects=False,
            ) as response:
                payload = await read_body(response.content, max_bytes or MAX_BYTES)
                if payload is None and max_bytes is None:
                    raise ConnectionLost(f"the answer is larger than {MAX_BYTES} bytes")
                if payload is None:
                    raise TooLarge(f"{request}: the answer is larger than {max_bytes} bytes")
                return Answer(response.status, payload, _retry_after(response))

        credentials = await self._credentials.current()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        try:
            async with asyncio.timeout_at(deadline) if self._slots.locked() else nullcontext():
                await self._slots.acquire()
        except TimeoutError as error:
            raise NotSent(f"as many requests as are allowed were in flight for {timeout_seconds:g} s") from error
        try:
            answer = await attempt(credentials)
            if answer.status == 401 and await self._credentials.refresh(credentials):
                deadline = loop.time() + timeout_seconds  # the first one was not carried out
                answer = await attempt(await self._credentials.current())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
            self._on_connect_error(error)
            raise NotSent(self._problem(error, request.path)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionLost(self._problem(error, request.path)) from error
        finally:
            self._slots.release()
        return answer

    async def open_stream(
        self, path: str, *, params: Mapping[str, str], inactivity_seconds: float
    ) -> aiohttp.ClientResponse:
        """The response to a GET whose answer has no end; the caller closes it.

        Raises:
            ConnectionLost: no connection, or it was lost before the answer began.
            ConfigError: there are no credentials.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._connect_timeout_seconds, sock_read=inactivity_seconds
        )
        url = URL(self._config.server + path, encoded=True)

        async def attempt(credentials: Credentials) -> aiohttp.ClientResponse:
            return await self._client.get(
                url,
                params=params,
                headers=_headers(credentials, None),
                timeout=timeout,
                ssl=self._tls.context(credentials),
                server_hostname=self._config.tls_server_name,
                proxy=self._config.proxy_url,
                allow_redirects=False,
            )

        credentials = await self._credentials.current()
        try:
            response = await attempt(credentials)
            if response.status == 401 and await self._credentials.refresh(credentials):
                response.close()
                response = await attempt(await self._credentials.current())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._on_connect_error(error)
            raise ConnectionLost(self._problem(error, path)) from error
        return response

    def _on_connect_error(self, error: Exception) -> None:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            self._tls.expect_rotation()

    def _problem(self, error: Exception, path: str) -> str:
        return connection_problem(error, self._config.server + path)


async def read_refusal(response: aiohttp.ClientResponse, timeout_seconds: float) -> Answer:
    """The answer of a stream that the API server refused to begin; empty if it does not come in time, or is large."""
    try:
        async with asyncio.timeout(timeout_seconds):
            payload = await read_body(response.content, MAX_REFUSAL_BYTES) or b""
    except (aiohttp.ClientError, TimeoutError, OSError):
        payload = b""
    return Answer(response.status, payload, _retry_after(response))


async def read_body(content: aiohttp.StreamReader, max_bytes: int) -> bytes | None:
    """The whole body of an answer, held once; None if it has more than ``max_bytes``."""
    body = BytesIO()  # to join its pieces would hold it twice
    async for piece in content.iter_any():
        body.write(piece)
        if body.tell() > max_bytes:
            return None
    return body.getvalue()


async def read_lines(content: aiohttp.StreamReader, url: str) -> AsyncIterator[list[bytes]]:
    """The whole lines of a stream, each up to `MAX_BYTES` long, in batches as they arrive.

    A line is held once, also while it comes in, and not after the caller has taken it out of its batch: a watch may be
    silent for a minute afterwards.

    Args:
        content: the stream.
        url: what was requested.

    Raises:
        ConnectionLost: the stream did not end properly, or a line is too long.
    """
    begun = BytesIO()  # a line whose end has not come yet
    while True:
        try:
            chunk = await content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionLost(connection_problem(error, url)) from error
        if not chunk:
            return  # a line without its end is a line cut short: nobody may act on it
        head, newline, rest = chunk.partition(b"\n")
        begun.write(head)
        if begun.tell() > MAX_BYTES:
            raise ConnectionLost(f"{url}: a line of more than {MAX_BYTES} bytes")
        if newline:
            *more, last = rest.split(b"\n")
            lines = [line for line in (begun.getvalue(), *more) if line]
            begun = BytesIO()
            begun.write(last)
            yield lines
            lines.clear()
        # Reading from a full buffer does not suspend: without this a busy watch would starve all other tasks
        await asyncio.sleep(0)


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose unsent data ends with it.

    Without this the kernel goes on sending what a request has left in its buffer, minutes after the request has timed
    out and even after the process has exited: a binding would reach the API server when another leader decides.
    """
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: where this process is stopped, and closes nothing
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)
    return opened


def _user_agent() -> str:
    version = own_version()
    return "concerto" if version is None else f"concerto/{version}"


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}{'&' if '?' in path else '?'}{_query(tuple(params.items()))}" if params else path


@lru_cache(maxsize=64)  # what is sent most has the name of the leader, and nothing else
def _query(params: tuple[tuple[str, str], ...]) -> str:
    return urlencode(params, safe="(),!/:")


def _headers(credentials: Credentials, content_type: str | None) -> dict[str, str]:
    headers = {}
    if credentials.authorization:
        headers["Authorization"] = credentials.authorization
    if content_type:
        headers["Content-Type"] = content_type
    return headers


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After")
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:  # the date form, which no API server sends
        return None
