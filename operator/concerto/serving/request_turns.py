"""Which connections of a server have a request, and when each request is answered."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from concerto.serving.fair_turns import FairTurns, TurnSettings
from concerto.serving.limited_requests import LimitedRequests

_C = TypeVar("_C")
_PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that kubelet asks on a new connection each time."""


class RequestTurns:
    """Has the requests of a server wait for their turns, and keeps which connections have one.

    What is only being written to a connection counts no longer. The first request of a connection does not wait if it
    is a probe: the rate at which connections are accepted bounds these, and strangers from a thousand addresses could
    keep kubelet waiting otherwise.
    """

    def __init__(self, settings: TurnSettings) -> None:
        """No request has come.

        Args:
            settings: how many requests are answered.
        """
        self._turns = FairTurns(time.monotonic, settings)
        self._peers: dict[object, Hashable] = {}  # by connection

    def __contains__(self, connection: object) -> bool:
        """Whether the connection has a request that is being answered or waits for its turn."""
        return connection in self._peers

    def last_of(self, connections: Iterable[_C]) -> _C | None:
        """Of these connections, the one whose request has its turn last; None if none of them waits for its turn."""
        by_peer = {self._peers[connection]: connection for connection in connections if connection in self._peers}
        last = self._turns.last_of(by_peer)
        return None if last is None else by_peer[last]

    def middleware(self) -> Middleware:
        """Has the requests of an application wait for their turns."""

        @web.middleware
        async def in_turn(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection, transport = request.protocol, request.transport
            if transport is None:  # the client has gone
                return await handler(request)
            client, peer = transport.get_protocol(), transport.get_extra_info("peername")
            assert isinstance(client, LimitedRequests), "as the limiter makes them"
            self._peers[connection] = peer
            try:
                if client.has_been_answered or request.path not in _PROBES:
                    await self._turns.wait(address_of(peer), peer)
                return await handler(request)
            finally:
                self._peers.pop(connection, None)
                client.answered()

        return in_turn


def address_of(peer: object) -> str:
    """The address of a socket's peer; empty if it has none."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
