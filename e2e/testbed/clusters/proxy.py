"""A wire between one client and the API server that a test can cut, or let hang."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Wire:
    """Passes bytes between a local port and another, TLS and all.

    Attributes:
        port: where to connect to instead.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._passing = asyncio.Event()  # of the connections made from now on
        self._passing.set()
        self._refuse = False
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._drop_all()

    async def cut(self) -> None:
        """Reset all connections, and every new one."""
        self._refuse = True
        await self._drop_all()

    def hang(self) -> None:
        """Let all present connections stand open and silent for good; new ones pass. A route that was lost does so."""
        self._passing.clear()
        self._passing = asyncio.Event()
        self._passing.set()

    def freeze(self) -> None:
        """Pass nothing on, of new connections neither, and close nothing, until mended."""
        self._passing.clear()

    def mend(self) -> None:
        """Pass everything on again, what has piled up first."""
        self._refuse = False
        self._passing.set()

    async def _drop_all(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        passing = self._passing
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if self._refuse:
                writer.transport.abort()
                return
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            try:
                await asyncio.gather(
                    self._pass(reader, there_writer, passing), self._pass(there_reader, writer, passing)
                )
            finally:
                writer.transport.abort()
                there_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        while data := await reader.read(65536):
            await passing.wait()
            writer.write(data)
            await writer.drain()
        writer.write_eof()
