"""Limits what a connection makes a server hold: requests without an answer, and answers that nobody reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_END_OF_HEADERS = b"\r\n\r\n"


@dataclass(frozen=True)
class RequestLimits:
    """Limits of the requests of one connection.

    Attributes:
        max_bytes: of requests that have no answer yet, headers and bodies. A connection that sends more is closed.
        max_field_bytes: of one header. A request with a longer one gets status 400.
        send_seconds: longest time until a client has read an answer that does not fit in the buffers of the kernel.
    """

    max_bytes: int = 32_768
    max_field_bytes: int = 16_400
    send_seconds: float = 30.0


class LimitedRequests(asyncio.Protocol):
    """Passes what a client sends to the server's protocol, within limits.

    Attributes:
        has_been_answered: whether a request of the connection has had its answer.
    """

    def __init__(self, protocol: asyncio.Protocol, limits: RequestLimits) -> None:
        """Nothing has come.

        Args:
            protocol: reads requests and writes answers.
            limits: for this connection.
        """
        self._protocol = protocol
        self._limits = limits
        self.has_been_answered = False
        self._transport: asyncio.Transport | None = None
        self._bytes = 0
        self._unanswered = 0
        self._last = b""  # received, too short for an end of headers
        self._sending: asyncio.TimerHandle | None = None

    def answered(self) -> None:
        """One of the requests has its answer."""
        self.has_been_answered = True
        self._unanswered = max(0, self._unanswered - 1)
        if not self._unanswered:
            self._bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport), "of a stream"
        self._transport = transport
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass it on unless it is too much."""
        seen = self._last + data
        self._unanswered += seen.count(_END_OF_HEADERS)
        self._last = seen[1 - len(_END_OF_HEADERS) :]
        self._bytes += len(data)
        if self._bytes > self._limits.max_bytes:
            self._abort()
        else:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends nothing more."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        self._sending = asyncio.get_running_loop().call_later(self._limits.send_seconds, self._abort)
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The client has read nearly everything."""
        self._stop_timer()
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_timer()
        self._protocol.connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
