"""One attempt of one request: connections, TLS, credentials, and how far the attempt came."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from concerto.kube.config import ClusterConfig
from concerto.kube.connections import (
    KEEP_IDLE_SECONDS,
    Answer,
    ConnectionLost,
    ConnectionPool,
    NotSent,
    Tls,
    open_socket,
    seconds_to_wait,
    text_of,
)
from concerto.kube.credentials import Credentials
from concerto.kube.errors import ConfigError, KubeError
from concerto.kube.tls import TlsContexts

JSON = "application/json"
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})
_IN_TARGET = re.compile("[!-~]+")


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


class Transport:
    """The way to one API server. Belongs to the event loop that it was opened in.

    Requests have a pool of connections of their own. Streams, and all that goes through a proxy, are aiohttp's.
    """

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
        server = URL(config.server)
        self._pool = ConnectionPool(server, connect_timeout_seconds)
        self._path_prefix = server.raw_path.rstrip("/")
        # Compression costs the API server more than a cluster's own network saves
        headers = {"User-Agent": _user_agent(), "Accept": JSON, "Accept-Encoding": "identity"}
        self._common_headers = _lines({"Host": server.host_port_subcomponent or "", **headers})
        # The pool itself has no limit: a request that waits for a connection inside the pool may run out of time there,
        # and then look as if it had been sent
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_SECONDS, socket_factory=open_socket),
            headers=headers,
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
        self._pool.close()
        await self._client.close()

    async def send(self, request: Outgoing, *, timeout_seconds: float, max_bytes: int | None = None) -> Answer:
        """Send a request once, or twice where a 401 shows that there are newer credentials.

        Args:
            request: what to send.
            timeout_seconds: for all of it: waiting for other requests to end, connection and answer.
            max_bytes: a larger answer is an error; None: any.

        Raises:
            NotSent: the API server cannot have carried it out.
            ConnectionLost: it may have.
            ConfigError: there are no credentials.
            KubeError: the answer is larger than ``max_bytes``.
        """
        attempt = self._send_directly if self._config.proxy_url is None else self._send_through_proxy
        credentials = await self._credentials.current()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        try:
            async with asyncio.timeout_at(deadline) if self._slots.locked() else nullcontext():
                await self._slots.acquire()
        except TimeoutError as error:
            raise NotSent(f"as many requests as are allowed were in flight for {timeout_seconds:g} s") from error
        try:
            answer = await attempt(request, credentials, deadline, max_bytes)
            if answer.status == 401 and await self._credentials.refresh(credentials):
                deadline = loop.time() + timeout_seconds  # the first one was not carried out
                answer = await attempt(request, await self._credentials.current(), deadline, max_bytes)
        finally:
            self._slots.release()
        return answer

    async def _send_directly(
        self, request: Outgoing, credentials: Credentials, deadline: float, max_bytes: int | None
    ) -> Answer:
        data = request.data or b""
        own = _headers(credentials, request)
        if data or request.method not in _WITHOUT_BODY:
            own["Content-Length"] = str(len(data))
        target = _target(self._path_prefix + request.path, request.params)
        head = f"{request.method} {target} HTTP/1.1\r\n{self._common_headers}{_lines(own)}\r\n"
        context = self._tls.context(credentials)
        tls = Tls(context if isinstance(context, ssl.SSLContext) else None, self._config.tls_server_name)
        try:
            return await self._pool.exchange(head.encode() + data, tls, deadline, max_bytes)
        except NotSent as error:
            self._on_connect_error(error.__cause__)
            raise

    async def _send_through_proxy(
        self, request: Outgoing, credentials: Credentials, deadline: float, max_bytes: int | None
    ) -> Answer:
        left = max(deadline - asyncio.get_running_loop().time(), 0.001)  # 0 would be no limit
        try:
            async with self._client.request(
                request.method,
                URL(self._config.server + request.path, encoded=True),
                params=request.params,
                data=request.data,
                headers=_headers(credentials, request),
                timeout=aiohttp.ClientTimeout(total=left, sock_connect=self._connect_timeout_seconds),
                ssl=self._tls.context(credentials),
                server_hostname=self._config.tls_server_name,
                proxy=self._config.proxy_url,
                allow_redirects=False,
            ) as response:
                payload = await _payload(response, max_bytes)
                return Answer(response.status, payload, seconds_to_wait(response.headers.get("Retry-After")))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
            self._on_connect_error(error)
            raise NotSent(text_of(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionLost(text_of(error)) from error

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
                headers=_headers(credentials),
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
            raise ConnectionLost(text_of(error)) from error
        return response

    def _on_connect_error(self, error: BaseException | None) -> None:
        if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
            self._tls.expect_rotation()


async def read_refusal(response: aiohttp.ClientResponse, timeout_seconds: float) -> Answer:
    """The answer of a stream that the API server refused to begin; an empty payload if it does not come in time."""
    try:
        async with asyncio.timeout(timeout_seconds):
            payload = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError):
        payload = b""
    return Answer(response.status, payload, seconds_to_wait(response.headers.get("Retry-After")))


async def read_lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """The whole lines of a stream, of any length, in batches as they arrive.

    Raises:
        ConnectionLost: the stream did not end properly.
    """
    begun: list[bytes] = []  # pieces of a line whose end has not come yet
    while True:
        try:
            chunk = await content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionLost(text_of(error)) from error
        if not chunk:
            return  # a line without its end is a line cut short: nobody may act on it
        head, newline, rest = chunk.partition(b"\n")
        begun.append(head)
        if newline:
            lines = [b"".join(begun)]
            *more, last = rest.split(b"\n")
            begun = [last] if last else []
            yield [line for line in (*lines, *more) if line]
        # Reading from a full buffer does not suspend: without this a busy watch would starve all other tasks
        await asyncio.sleep(0)


def _user_agent() -> str:
    try:
        return f"concerto/{version('concerto-k8s')}"
    except PackageNotFoundError:
        return "concerto"


def _headers(credentials: Credentials, request: Outgoing | None = None) -> dict[str, str]:
    headers = {}
    if credentials.authorization:
        headers["Authorization"] = credentials.authorization
    if request is not None and request.data is not None:
        headers["Content-Type"] = request.content_type
    return headers


def _lines(headers: Mapping[str, str]) -> str:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers):
        raise ConfigError(f"one of the headers {', '.join(headers)} has a line break")  # it may be a token: not shown
    return lines


def _target(path: str, params: Mapping[str, str] | None) -> str:
    """Path and query as they are sent; what may not stand in a path is encoded, should anybody have left it there."""
    target = f"{path}?{_query(tuple(params.items()))}" if params else path
    return target if _IN_TARGET.fullmatch(target) else quote(target, safe="!$%&'()*+,/:;=?@[]~")


@lru_cache(maxsize=64)  # what is sent most has the name of the leader, and nothing else
def _query(params: tuple[tuple[str, str], ...]) -> str:
    return urlencode(params, safe="(),!/:")


async def _payload(response: aiohttp.ClientResponse, max_bytes: int | None) -> bytes:
    if max_bytes is None:
        return await response.read()
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > max_bytes:
            raise KubeError(f"the answer is larger than {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)
