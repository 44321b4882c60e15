"""Lets requests through one after the other, at a bounded rate, so that no client keeps others from their answers.

Requests beyond the rate wait. Addresses take turns, and the connections of one address take turns: next is the one
whose last request went through longest ago. So a client that asks without pause waits for its own requests, also where
it shares its address with others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

_WHOLE = 1.0 - 1e-9
"""Part of a token that counts as one: a wait for the rest may be too short for the clock."""


@dataclass(frozen=True)
class TurnSettings:
    """How many requests are let through.

    Attributes:
        per_second: requests in the long run.
        burst: requests at once, after a pause.
        max_remembered: addresses and connections whose last turn is remembered; of more, the longest ago is forgotten.
    """

    per_second: float = 50.0
    burst: int = 50
    max_remembered: int = 1024


@dataclass(eq=False)
class _Waiting:
    """A request that waits for its turn."""

    address: str
    connection: Hashable
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
        self._last_turn: OrderedDict[Hashable, int] = OrderedDict()  # by address, and by address and connection
        self._letting_through: asyncio.Task[None] | None = None

    async def wait(self, address: str, connection: Hashable) -> None:
        """Return when it is this request's turn; a caller that is cancelled no longer waits.

        Args:
            address: of the client.
            connection: what tells the connection from others of the address.
        """
        request = _Waiting(address, connection)
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
            request = min(self._waiting, key=self._turns_before)
            self._waiting.remove(request)
            self._tokens = max(0.0, self._tokens - 1.0)
            self._remember(request)
            if not request.turn.done():
                request.turn.set_result(None)

    async def _let_through_later(self) -> None:
        while self._waiting:
            await self._sleep((1.0 - self._tokens) / self._settings.per_second)
            self._let_through()

    def _turns_before(self, request: _Waiting) -> tuple[int, int]:
        """When its address and its connection had their last turns; 0 for those that had none."""
        last = self._last_turn
        return last.get(request.address, 0), last.get((request.address, request.connection), 0)

    def _remember(self, request: _Waiting) -> None:
        self._turns += 1
        for key in (request.address, (request.address, request.connection)):
            self._last_turn[key] = self._turns
            self._last_turn.move_to_end(key)
        while len(self._last_turn) > self._settings.max_remembered:
            self._last_turn.popitem(last=False)
