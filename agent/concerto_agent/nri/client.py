"""Keeps the plugin registered with the node's container runtime: connects, answers, and connects again."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from concerto.api.doubling import doubling_waits
from concerto_agent.nri.messages import Runtime
from concerto_agent.nri.protobuf import WireError
from concerto_agent.nri.session import Decide, Refused, Session

log = logging.getLogger(__name__)

_READ_BYTES = 65536


@dataclass(frozen=True)
class NriSettings:
    """How the plugin is connected.

    Attributes:
        socket: the runtime's socket for plugins.
        registration_seconds: how long the runtime may take to register the plugin.
        write_seconds: how long the runtime may take to read an answer.
        first_wait_seconds: wait before the second attempt to connect; doubled with each further one.
        max_wait_seconds: longest such wait. An attempt without a runtime costs microseconds.
    """

    socket: Path
    registration_seconds: float = 30.0
    write_seconds: float = 5.0
    first_wait_seconds: float = 0.05
    max_wait_seconds: float = 1.0


class AnotherAgent(Exception):
    """Another agent of this node is registered. Two that set CPUs would make the runtime refuse every container."""


class NriClient:
    """The plugin's connection, made again whenever it ends.

    Attributes:
        runtime: the runtime that calls the plugin for each container now; None while none does.
        connections: times that the plugin was registered, since the start.
    """

    def __init__(self, settings: NriSettings, decide: Decide) -> None:
        """Nothing is connected before `run`.

        Args:
            settings: where and how.
            decide: the cpuset of a container, within milliseconds; see `Session`.
        """
        self.runtime: Runtime | None = None
        self.connections = 0
        self._settings = settings
        self._decide = decide

    async def run(self) -> None:
        """Stay registered until cancelled."""
        loop = asyncio.get_running_loop()
        waits, complaint = self._waits(), ""
        while True:
            before, began, problem = self.connections, loop.time(), ""
            try:
                await self._connect_and_serve()
            except (FileNotFoundError, ConnectionRefusedError):
                pass  # no runtime, or one without NRI: cgroup files are written as without the plugin
            except TimeoutError:
                problem = "the runtime does not go on in time"
            except (EOFError, ConnectionError):
                problem = "the runtime has ended the connection"
            except (OSError, WireError, Refused, AnotherAgent) as error:
                problem = str(error)
            if self.connections != before:
                complaint = ""
                if loop.time() - began > self._settings.max_wait_seconds:
                    waits = self._waits()
            if problem and problem != complaint:
                log.warning("not registered with the container runtime (%s): %s", self._settings.socket, problem)
            complaint = problem
            await asyncio.sleep(next(waits))

    def _waits(self) -> Iterator[float]:
        return doubling_waits(self._settings.first_wait_seconds, self._settings.max_wait_seconds)

    async def _connect_and_serve(self) -> None:
        """One connection, until it ends.

        Raises:
            OSError, EOFError, TimeoutError, WireError, Refused, AnotherAgent: it ended, or did not come about.
        """
        with _only_agent(self._settings.socket.parent):
            reader, writer = await asyncio.open_unix_connection(self._settings.socket)
            try:
                await self._serve(reader, writer)
            finally:
                self.runtime = None
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(self._decide)
        writer.write(session.register())
        async with asyncio.timeout(self._settings.registration_seconds) as registration:
            while data := await reader.read(_READ_BYTES):
                if answer := session.receive(data):
                    writer.write(answer)
                    async with asyncio.timeout(self._settings.write_seconds):
                        await writer.drain()
                if session.synchronized and self.runtime is None:
                    registration.reschedule(None)
                    self.runtime = session.runtime
                    self.connections += 1
                    log.info("registered with %s %s", self.runtime.name, self.runtime.version)
        raise EOFError


@contextmanager
def _only_agent(directory: Path) -> Iterator[None]:
    """Hold the lock of the socket's folder, which ends with this process at the latest.

    Raises:
        AnotherAgent: it is held.
        OSError: there is no such folder.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherAgent("another agent of this node is registered") from None
        yield
    finally:
        os.close(descriptor)
