"""Requests are let through in turn: by address, and by connection among those of one address."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from concerto.serving.fair_turns import FairTurns, TurnSettings


@dataclass
class Door:
    """Turns with a clock that moves only while the turns are waited for, and the order in which callers got theirs."""

    per_second: float = 1.0
    burst: int = 1
    now: float = 1000.0
    order: list[str] = field(default_factory=list)
    callers: list[asyncio.Task] = field(default_factory=list)

    def __post_init__(self):
        settings = TurnSettings(self.per_second, self.burst, max_remembered=8)
        self.turns = FairTurns(lambda: self.now, settings, self.pass_time)

    async def pass_time(self, seconds):
        await asyncio.sleep(0)
        self.now += seconds

    async def ask(self, *callers):
        """Callers are ADDRESS:CONNECTION; those that need not wait have had their turn on return."""
        for caller in callers:
            self.callers.append(asyncio.create_task(self._ask(caller)))
        await asyncio.sleep(0)

    async def _ask(self, caller):
        await self.turns.wait(*caller.split(":"))
        self.order.append(caller)

    async def all(self):
        async with asyncio.timeout(10):
            await asyncio.gather(*self.callers)
        return self.order


async def test_a_burst_does_not_wait():
    door = Door(burst=3)
    await door.ask("a:1", "a:1", "b:1", "b:1")
    assert (door.order, door.now) == (["a:1", "a:1", "b:1"], 1000.0)
    assert await door.all() == ["a:1", "a:1", "b:1", "b:1"]
    assert door.now == pytest.approx(1001.0)


async def test_a_connection_that_asks_on_and_on_waits_for_another_of_its_address():
    door = Door()
    await door.ask("a:noisy")
    await door.ask("a:noisy", "a:noisy", "a:noisy", "a:quiet")
    assert await door.all() == ["a:noisy", "a:quiet", "a:noisy", "a:noisy", "a:noisy"]


async def test_addresses_take_turns_however_many_connections_each_has():
    door = Door()
    await door.ask("a:1")
    await door.ask("a:2", "a:3", "a:4", "b:1", "b:1")
    assert await door.all() == ["a:1", "b:1", "a:2", "b:1", "a:3", "a:4"]


async def test_alike_requests_keep_their_order():
    door = Door()
    await door.ask("a:1", "a:2", "a:3", "a:4")
    assert await door.all() == ["a:1", "a:2", "a:3", "a:4"]


async def test_a_caller_that_goes_away_takes_no_turn():
    door = Door()
    await door.ask("a:1", "a:2", "a:3")
    door.callers.pop(1).cancel()
    assert await door.all() == ["a:1", "a:3"]
    assert door.now == pytest.approx(1001.0)


async def test_the_rate_holds_in_the_long_run():
    door = Door(per_second=4.0, burst=2)
    await door.ask(*(f"a:{n}" for n in range(42)))
    await door.all()
    assert door.now == pytest.approx(1000.0 + 40 / 4.0)


async def test_what_is_remembered_is_bounded():
    door = Door(burst=100)
    await door.ask(*(f"{n}:1" for n in range(50)))
    await door.all()
    assert len(door.turns._last_turn) == 8
