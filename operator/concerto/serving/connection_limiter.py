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
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of a server's connections.

    Attributes:
        connections: most open connections. A new one closes the oldest one of the address that has the most.
        handshakes: most TLS handshakes at a time; a new one aborts the one that has lasted longest.
        handshake_seconds: longest time for a TLS handshake.
        pause_seconds: pause between two accepted connections.
        queue: most connections that wait in the kernel.
    """

    connections: int = 16
    handshakes: int = 8
    handshake_seconds: float = 2.0
    pause_seconds: float = 0.02
    queue: int = 64


class ConnectionLimiter:
    """Accepts the connections of a server, within limits."""

    def __init__(
        self,
        server: web.Server,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        settings: ConnectionLimits | None = None,
    ) -> None:
        """A limiter that accepts nothing before `run`.

        Args:
            server: makes a handler for each connection.
            listener: bound, listening, and not blocking.
            context: for TLS; None serves without it.
            settings: the limits.
        """
        self._server = server
        self._listener = listener
        self._context = context
        self._settings = settings or ConnectionLimits()
        self._handshakes: dict[asyncio.Task[None], None] = {}  # in order

    async def run(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # it went away again, or there are no descriptors left
                    log.debug("a connection was not accepted: %s", error)
                else:
                    if len(self._handshakes) >= self._settings.handshakes:
                        oldest = next(iter(self._handshakes))
                        oldest.cancel()
                        del self._handshakes[oldest]
                    task = asyncio.ensure_future(self._handshake(connection))
                    self._handshakes[task] = None
                    task.add_done_callback(lambda done: self._handshakes.pop(done, None))
                await asyncio.sleep(self._settings.pause_seconds)
        finally:
            for task in self._handshakes:
                task.cancel()
            self._listener.close()

    async def _handshake(self, connection: socket.socket) -> None:
        tls = self._context is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._accept,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._settings.handshake_seconds if tls else None,
                ssl_shutdown_timeout=self._settings.handshake_seconds if tls else None,
            )
        except OSError as error:
            log.debug("a connection ended in its handshake: %s", error)
            connection.close()

    def _accept(self) -> RequestHandler:
        open_ones = [handler for handler in self._server.connections if handler.transport is not None]
        if len(open_ones) >= self._settings.connections:
            addresses = Counter(_address(handler) for handler in open_ones)
            busiest = max(addresses.values())
            # Oldest first: of one caller with many connections its oldest goes, and never another caller's only one
            for handler in open_ones:
                if addresses[_address(handler)] == busiest and handler.transport is not None:
                    handler.transport.abort()
                    break
        return self._server()


def _address(handler: RequestHandler) -> str:
    peer = handler.transport.get_extra_info("peername") if handler.transport is not None else None
    return str(peer[0]) if peer else ""
