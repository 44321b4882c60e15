"""A container runtime as far as its plugins of NRI see it: registers them on a socket, and calls them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from concerto_agent.nri.frames import PLUGIN_CONNECTION, REQUEST, FrameReader, Message, encode
from concerto_agent.nri.messages import build_request
from concerto_agent.nri.protobuf import Fields, message, text


def container(uid: str, name: str, identity: str = "c" * 64, cpus: str = "") -> bytes:
    """A CreateContainerRequest."""
    resources = message(11, message(3, message(2, text(6, cpus))))
    return message(1, text(3, uid)) + message(2, text(1, identity), text(3, name), resources)


class Peer:
    """The runtime's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader()
        self._found: Iterator[tuple[int, Message]] = iter(())

    async def receive(self) -> Message:
        """The next message of the plugin."""
        while (found := next(self._found, None)) is None:
            self._found = iter(self._frames.feed(await self._reader.read(4096)))
        return found[1]

    async def call(self, method: str, payload: bytes = b"") -> Fields:
        """What a call returns."""
        call = build_request("nri.pkg.api.v1alpha1.Plugin", method, payload)
        self.writer.write(encode(PLUGIN_CONNECTION, Message(1, REQUEST, call)))
        return Fields((await self.receive()).data).message(2)

    async def register(self, name: str = "containerd") -> None:
        """Take the plugin, as containerd does."""
        assert Fields((await self.receive()).data).text(2) == "RegisterPlugin"
        await self.call("Configure", text(2, name))
        await self.call("Synchronize")


@asynccontextmanager
async def runtime(path: Path, serve: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[None]:
    """A runtime on a socket, which takes the place of one that was there; its connections end with it."""
    peers: list[Peer] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(Peer(reader, writer))
        await serve(peers[-1])

    server = await asyncio.start_unix_server(connected, path)
    try:
        yield
    finally:
        server.close()
        for peer in peers:
            peer.writer.transport.abort()
