"""Limits a server's connections, so that callers who connect again and again cannot starve the node's measuring.

Each TLS connection costs about 0.3 MiB of memory before its first request, and a handshake about a millisecond of CPU.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of a server's connections.

    Attributes:
        connections: most open connections; a new one closes the one that has been open for longest.
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
        context: ssl.SSLContext,
        settings: ConnectionLimits | None = None,
    ) -> None:
        """A limiter that accepts nothing before `run`.

        Args:
            server: makes a handler for each connection.
            listener: bound, and listening.
            context: for TLS.
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
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._accept,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._settings.handshake_seconds,
                ssl_shutdown_timeout=self._settings.handshake_seconds,
            )
        except OSError as error:
            log.debug("a connection ended in its handshake: %s", error)
            connection.close()

    def _accept(self) -> RequestHandler:
        connections = self._server.connections
        for handler in connections[: max(0, len(connections) - self._settings.connections + 1)]:
            if handler.transport is not None:
                handler.transport.abort()
        return self._server()
