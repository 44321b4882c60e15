"""HTTP servers with limited connections and requests: on the caller's event loop, or in a thread of their own."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from concerto.serving.connection_limiter import ConnectionLimiter, ConnectionLimits
from concerto.serving.request_turns import RequestTurns

_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT, errno.ENOPROTOOPT})
"""How a kernel without IPv6 refuses such a socket."""
_LIMITS = ConnectionLimits(connections=64, pause_seconds=0.002)
_TLS_LIMITS = ConnectionLimits()

Lifespan = Callable[[web.Application], AsyncIterator[None]]
"""Opens what handlers use, yields, and closes it, all on the event loop that serves."""


@web.middleware
async def close_unless_ok(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Closes the connection after any answer but 200: who asks in vain again pays for another one, and waits for it."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.force_close()
        raise
    if response.status != 200:
        response.force_close()
    return response


def request_logger() -> logging.Logger:
    """Where a server logs what fails in its handlers, and nothing of requests that are not valid HTTP.

    aiohttp logs such a request with a traceback, which quotes the header that is wrong. That may be a token, and
    anybody could fill the log. The caller gets status 400.
    """
    logger = logging.getLogger("concerto.serving.requests")
    logger.addFilter(_is_not_of_the_caller)  # no second one where it is there already
    return logger


def _is_not_of_the_caller(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


class HttpServer:
    """Serves routes on the event loop on which it is started."""

    def __init__(
        self,
        bind: str,
        routes: Iterable[web.RouteDef],
        limits: ConnectionLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        lifespans: Iterable[Lifespan] = (),
    ) -> None:
        """The address is bound at once; nothing is accepted before `start`.

        Args:
            bind: ``host:port``; an empty host is every address, of IPv4 and of IPv6, and port 0 takes a free one.
            routes: what is served.
            limits: of connections and requests.
            tls: context for TLS; None serves without it.
            lifespans: what is open while the server runs.

        Raises:
            OSError: the address cannot be bound.
        """
        self._limits = limits or (_TLS_LIMITS if tls is not None else _LIMITS)
        self._tls = tls
        self._lifespans = list(lifespans)
        self._listener = _listen(bind, self._limits.queue)
        self._routes = list(routes)
        self._requests = RequestTurns(self._limits.turns)
        self._runner: web.AppRunner | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is bound."""
        return int(self._listener.getsockname()[1])

    async def start(self) -> None:
        """Accept connections from now on."""
        app = web.Application(middlewares=[self._requests.middleware(), close_unless_ok])
        app.router.add_routes(self._routes)
        app.cleanup_ctx.extend(self._lifespans)
        # Whoever goes away no longer waits for an answer
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=request_logger(),
            keepalive_timeout=self._limits.keep_alive_seconds,
            max_field_size=self._limits.requests.max_field_bytes,
            handler_cancellation=True,
        )
        await self._runner.setup()
        assert self._runner.server is not None, "starting"
        limiter = ConnectionLimiter(self._runner.server, self._listener, self._tls, self._limits, self._requests)
        self._accepting = asyncio.create_task(limiter.run())

    async def cleanup(self) -> None:
        """Close every connection and the listener."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        self._listener.close()


class HttpServerThread:
    """Runs servers in a thread with an event loop of its own: callers can hold up nothing but each other."""

    def __init__(self, *servers: HttpServer) -> None:
        """Nothing is accepted before `start`."""
        self._servers = servers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="http", daemon=True)

    def start(self) -> None:
        """Return once connections are accepted; raises what kept a server from starting."""
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Close every connection, and end the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=5)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            for server in self._servers:
                await server.start()
        except Exception as error:
            for server in self._servers:
                await server.cleanup()
            self._loop = None
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        await self._stop.wait()
        for server in self._servers:
            await server.cleanup()


def _listen(bind: str, queue: int) -> socket.socket:
    host, _, port = bind.rpartition(":")
    try:
        if not host:
            return _listen_everywhere(int(port), queue)
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bound(family, address, queue)
    except UnicodeError as error:  # of a label of a name, which is empty or too long
        raise OSError(errno.EINVAL, f"cannot listen on {bind}: not a name of a host") from error
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {bind}: {error.strerror}") from error


def _listen_everywhere(port: int, queue: int) -> socket.socket:
    """One socket for IPv4 and IPv6: a pod of an IPv6 cluster has no other address, and kubelet asks there."""
    try:
        return _bound(socket.AF_INET6, ("::", port), queue)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    return _bound(socket.AF_INET, ("0.0.0.0", port), queue)


def _bound(family: int, address: tuple[Any, ...], queue: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address[0] == "::":  # whatever sysctl net.ipv6.bindv6only says
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(queue)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
