"""Lets requests through one after the other, at a bounded rate, so that no client keeps others from their answers.

Requests beyond the rate wait. Addresses take turns, and the connections of one address take turns: next is the one
whose last request went through longest ago. So a client that asks without pause waits for its own requests, also where
it shares its address with others.

An address or connection that is new counts as if it had its last turn when its request came: a client that uses ever
new ones gains nothing by it. Nor does one gain much that has been silent for long (``max_lead``): a request waits for
those that came before it, and for few that came later.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Hashable
from dataclasses import dataclass, field

_WHOLE = 1.0 - 1e-9
"""Part of a token that counts as one: a wait for the rest may be too short for the clock."""


@dataclass(frozen=True)
class TurnSettings:
    """How many requests are let through.

    Attributes:
        per_second: requests in the long run.
        burst: requests at once, after a pause.
        max_lead: so many turns before its request came, at most, an address or a connection counts as having had its
            last one. It should be above the number of connections.
        max_addresses: addresses whose last turn is remembered; of more, the longest ago is forgotten. One that asks
            once in ``max_addresses / per_second`` seconds, 82 by default, is always remembered.
        max_connections: the same of connections.
    """

    per_second: float = 50.0
    burst: int = 50
    max_lead: int = 64
    max_addresses: int = 4096
    max_connections: int = 1024


@dataclass(eq=False)
class _Waiting:
    """A request that waits for its turn."""

    address: str
    connection: Hashable
    came_after: int  # turns
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FairTurns:
    """The turns of one server; each connection has one request at a time, so their number bounds those that wait."""

    def __init__(
        self,
        clock: Callable[[], float],
        settings: TurnSettings | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Nobody waits yet.

        Args:
            clock: seconds, never jumping.
            settings: the rate.
            sleep: returns after so many seconds.
        """
        self._clock = clock
        self._settings = settings or TurnSettings()
        self._sleep = sleep
        self._tokens = float(self._settings.burst)
        self._counted_at = clock()
        self._waiting: list[_Waiting] = []
        self._turns = 0
        self._of_addresses = _LastTurns(self._settings.max_addresses)
        self._of_connections = _LastTurns(self._settings.max_connections)
        self._letting_through: asyncio.Task[None] | None = None

    async def wait(self, address: str, connection: Hashable) -> None:
        """Return when it is this request's turn; a caller that is cancelled no longer waits.

        Args:
            address: of the client.
            connection: what tells the connection from others of the address.
        """
        request = _Waiting(address, connection, self._turns)
        self._waiting.append(request)
        if self._letting_through is None or self._letting_through.done():
            self._let_through()
            if self._waiting:
                self._letting_through = asyncio.create_task(self._let_through_later())
        try:
            await request.turn
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

    def _let_through(self) -> None:
        """Give turns while there are tokens."""
        settings, now = self._settings, self._clock()
        self._tokens = min(settings.burst, self._tokens + (now - self._counted_at) * settings.per_second)
        self._counted_at = now
        while self._waiting and self._tokens >= _WHOLE:
            # min keeps the order of arrival among those that are alike
            request = min(self._waiting, key=self._last_turns)
            self._waiting.remove(request)
            self._tokens = max(0.0, self._tokens - 1.0)
            self._remember(request)
            if not request.turn.done():
                request.turn.set_result(None)

    async def _let_through_later(self) -> None:
        while self._waiting:
            await self._sleep((1.0 - self._tokens) / self._settings.per_second)
            self._let_through()

    def last_of(self, connections: Container[Hashable]) -> Hashable | None:
        """Of these connections, the one whose request has its turn last; None if none of them waits."""
        waiting = [request for request in reversed(self._waiting) if request.connection in connections]
        return max(waiting, key=self._last_turns).connection if waiting else None

    def _last_turns(self, request: _Waiting) -> tuple[int, int]:
        """When its address and its connection had their last turns, as far as that counts."""
        came_after = request.came_after
        of_address = self._of_addresses.get(request.address, came_after)
        of_connection = self._of_connections.get((request.address, request.connection), came_after)
        earliest = came_after - self._settings.max_lead
        return max(of_address, earliest), max(of_connection, earliest)

    def _remember(self, request: _Waiting) -> None:
        self._turns += 1
        self._of_addresses.set(request.address, self._turns)
        self._of_connections.set((request.address, request.connection), self._turns)


class _LastTurns:
    """The last turn of each key, of so many keys that had theirs last."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._turns: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def get(self, key: Hashable, unknown: int) -> int:
        return self._turns.get(key, unknown)

    def set(self, key: Hashable, turn: int) -> None:
        self._turns[key] = turn
        self._turns.move_to_end(key)
        if len(self._turns) > self._max_keys:
            self._turns.popitem(last=False)
