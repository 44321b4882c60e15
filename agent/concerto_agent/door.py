"""Lets few in at a time: a node's own measuring must not pay for strangers who connect, and wait, and connect again.

Each TLS connection costs about 0.3 MiB of memory before a word is said, and a handshake about a millisecond of CPU.
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
class DoorSettings:
    """Who is let in.

    Attributes:
        connections: open ones, at most; a new one takes the place of the one that has been open for longest.
        handshakes: the same for connections whose TLS handshake is not over.
        handshake_seconds: for the TLS handshake.
        pause_seconds: between two that are let in.
        queue: connections that wait in the kernel, at most.
    """

    connections: int = 16
    handshakes: int = 8
    handshake_seconds: float = 2.0
    pause_seconds: float = 0.02
    queue: int = 64


class Door:
    """Accepts connections for a server."""

    def __init__(
        self, server: web.Server, listener: socket.socket, context: ssl.SSLContext, settings: DoorSettings | None = None
    ) -> None:
        """Nobody is let in before `run`.

        Args:
            server: makes a handler for each connection.
            listener: bound, and listening.
            context: for TLS.
            settings: who is let in.
        """
        self._server = server
        self._listener = listener
        self._context = context
        self._settings = settings or DoorSettings()
        self._greeting: dict[asyncio.Task[None], None] = {}  # in order

    async def run(self) -> None:
        """Let connections in until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # it went away again, or there are no descriptors left
                    log.debug("a connection was not accepted: %s", error)
                else:
                    if len(self._greeting) >= self._settings.handshakes:
                        oldest = next(iter(self._greeting))
                        oldest.cancel()
                        del self._greeting[oldest]
                    task = asyncio.ensure_future(self._greet(connection))
                    self._greeting[task] = None
                    task.add_done_callback(lambda done: self._greeting.pop(done, None))
                await asyncio.sleep(self._settings.pause_seconds)
        finally:
            for task in self._greeting:
                task.cancel()
            self._listener.close()

    async def _greet(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._enter,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._settings.handshake_seconds,
                ssl_shutdown_timeout=self._settings.handshake_seconds,
            )
        except OSError as error:
            log.debug("a connection ended in its handshake: %s", error)
            connection.close()

    def _enter(self) -> RequestHandler:
        open_ones = self._server.connections
        for handler in open_ones[: max(0, len(open_ones) - self._settings.connections + 1)]:
            if handler.transport is not None:
                handler.transport.abort()
        return self._server()
