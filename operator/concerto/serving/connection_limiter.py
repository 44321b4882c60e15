"""Limits a server's connections, so that callers who connect again and again cannot starve the process behind it.

Each TLS connection costs about 0.3 MiB of memory before its first request, and a handshake about a millisecond of CPU.
Connections without end use up the descriptors with which the process reaches the API server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from concerto.serving.fair_turns import TurnSettings
from concerto.serving.limited_requests import LimitedRequests, RequestLimits
from concerto.serving.request_turns import RequestTurns, address_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of a server's connections.

    Attributes:
        connections: most open connections. A new one closes one of the address that has the most: the oldest without
            a request, else the newest. If that is the new one, it is closed. Where each address has only one, that is
            closed whose request has its turn last.
        handshakes: most TLS handshakes at a time; a new one aborts the one that has lasted longest.
        handshake_seconds: longest time for a TLS handshake.
        pause_seconds: pause between two accepted connections.
        queue: most connections that wait in the kernel.
        keep_alive_seconds: a connection without a request is closed after so long.
        requests: limits of the requests of each connection.
        turns: how many requests are answered, of all connections.
    """

    connections: int = 16
    handshakes: int = 8
    handshake_seconds: float = 2.0
    pause_seconds: float = 0.02
    queue: int = 64
    keep_alive_seconds: float = 15.0
    requests: RequestLimits = field(default_factory=RequestLimits)
    turns: TurnSettings = field(default_factory=TurnSettings)


class ConnectionLimiter:
    """Accepts the connections of a server, within limits."""

    def __init__(
        self,
        server: web.Server,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        settings: ConnectionLimits,
        requests: RequestTurns,
    ) -> None:
        """A limiter that accepts nothing before `run`.

        Args:
            server: makes a handler for each connection.
            listener: bound, listening, and not blocking.
            context: for TLS; None serves without it.
            settings: the limits.
            requests: which connections have a request.
        """
        self._server = server
        self._listener = listener
        self._context = context
        self._settings = settings
        self._requests = requests
        self._handshakes: dict[asyncio.Task[None], None] = {}  # in order

    async def run(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, peer = await loop.sock_accept(self._listener)
                except OSError as error:  # it went away again, or there are no descriptors left
                    log.debug("a connection was not accepted: %s", error)
                else:
                    if len(self._handshakes) >= self._settings.handshakes:
                        oldest = next(iter(self._handshakes))
                        oldest.cancel()
                        del self._handshakes[oldest]
                    task = asyncio.ensure_future(self._handshake(connection, address_of(peer)))
                    self._handshakes[task] = None
                    task.add_done_callback(lambda done: self._handshakes.pop(done, None))
                await asyncio.sleep(self._settings.pause_seconds)
        finally:
            for task in self._handshakes:
                task.cancel()
            self._listener.close()

    async def _handshake(self, connection: socket.socket, address: str) -> None:
        if not self._makes_room_for(address):
            connection.close()
            return
        tls = self._context is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: LimitedRequests(self._server(), self._settings.requests),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._settings.handshake_seconds if tls else None,
                ssl_shutdown_timeout=self._settings.handshake_seconds if tls else None,
            )
        except OSError as error:
            log.debug("a connection ended in its handshake: %s", error)
            connection.close()

    def _makes_room_for(self, newcomer: str) -> bool:
        """Close a connection if there are as many as may be; false if the new one is to be closed."""
        open_ones = [(_address(h), h) for h in self._server.connections if h.transport is not None]
        if len(open_ones) < self._settings.connections:
            return True
        counts = Counter(address for address, _ in open_ones)
        counts[newcomer] += 1
        most = max(counts.values())
        # Of one address with many connections one goes, and never another address's only one
        of_busiest = [handler for address, handler in open_ones if counts[address] == most]
        idle = [handler for handler in of_busiest if handler not in self._requests]
        # Where each is of another address, the new one may be a probe, which does not wait for a turn
        last = self._requests.last_of(of_busiest) if most == 1 else None
        if idle:
            victim = idle[0]  # the oldest
        elif last is not None:
            victim = last
        elif counts[newcomer] == most:
            return False
        else:
            victim = of_busiest[-1]  # what was asked first is answered first
        if victim.transport is not None:
            victim.transport.abort()
        return True


def _address(handler: RequestHandler) -> str:
    peer = handler.transport.get_extra_info("peername") if handler.transport is not None else None
    return address_of(peer)
