"""Requests are let through in turn: by address, and by connection among those of one address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from concerto.serving.fair_turns import FairTurns, TurnSettings


@dataclass
class Door:
    """Turns with a clock that moves only while the turns are waited for, and the order in which callers got theirs."""

    per_second: float = 1.0
    burst: int = 1
    max_lead: int = 8
    meanwhile: Callable[[], tuple[str, ...]] = tuple  # callers who come while others wait for a turn
    now: float = 1000.0
    order: list[str] = field(default_factory=list)
    callers: list[asyncio.Task] = field(default_factory=list)

    def __post_init__(self):
        settings = TurnSettings(self.per_second, self.burst, self.max_lead, max_addresses=20, max_connections=10)
        self.turns = FairTurns(lambda: self.now, settings, self.pass_time)

    async def pass_time(self, seconds):
        await self.ask(*self.meanwhile())
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
    assert await door.all() == ["a:noisy", "a:noisy", "a:quiet", "a:noisy", "a:noisy"]


async def test_addresses_take_turns_however_many_connections_each_has():
    door = Door()
    await door.ask("a:1")
    await door.ask("a:2", "a:3", "a:4", "b:1", "b:1")
    assert await door.all() == ["a:1", "a:2", "b:1", "a:3", "b:1", "a:4"]


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


def strangers(*forms: str) -> Callable[[], tuple[str, ...]]:
    """With each call another caller of each form, up to 300 calls."""
    numbers = count()

    def come() -> tuple[str, ...]:
        number = next(numbers)
        return tuple(form.format(number) for form in forms) if number < 300 else ()

    return come


FLOODS = {
    "addresses never seen": ("x{}:1", "y{}:1", "z{}:1"),
    "connections never seen, of the same address": ("p:x{}", "p:y{}", "p:z{}"),
}


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_whoever_comes_from_ever_new_addresses_keeps_nobody_waiting(flood, is_known):
    door = Door()
    if is_known:
        await door.ask("p:prometheus")
        await door.all()
        door.order.clear()
    door.meanwhile = strangers(*flood)
    await door.ask("a:1", "a:2", "b:1", "p:prometheus")
    await door.all()
    assert door.order.index("p:prometheus") <= 3, "after those at most that came before"


async def test_addresses_that_were_silent_for_long_go_before_others_so_many_turns_at_most():
    door = Door(burst=100)
    old = [f"old{n}:1" for n in range(15)]
    await door.ask(*old, "p:1")
    await door.ask(*(f"b{n}:1" for n in range(4)))
    await door.all()
    door.now, door.meanwhile = door.now - 0.5, strangers("b{}:2")
    door.order.clear()
    door.turns._tokens = 0.0
    await door.ask("p:1")
    for number in range(15):
        await door.ask(f"old{number}:1")
    await door.all()
    assert door.order.index("p:1") <= door.max_lead


async def test_one_that_asks_often_enough_is_remembered_however_many_others_come():
    door = Door(burst=100)
    await door.ask("p:1")
    for number in range(19):
        await door.ask(f"x{number}:1")
    assert door.turns._of_addresses.get("p", -1) == 1
    await door.ask("p:2")
    for number in range(19):
        await door.ask(f"y{number}:1")
    assert door.turns._of_addresses.get("p", -1) == 21
    await door.all()


async def test_the_last_of_those_that_wait():
    door = Door()
    await door.ask("known:1", "known:2", "another:1")
    await door.all()
    await door.ask("known:1", "a:1", "b:2", "b:3", "known:4")
    assert door.turns.last_of({"1", "2"}) == "2"
    assert door.turns.last_of({"2", "3"}) == "3"
    assert door.turns.last_of({"4", "3"}) == "3", "the address that is known has waited for longer"
    assert door.turns.last_of({"5"}) is None
    await door.all()
    assert door.turns.last_of({"4", "3"}) is None


async def test_what_is_remembered_is_bounded():
    door = Door(burst=100)
    await door.ask(*(f"{n}:1" for n in range(50)))
    await door.all()
    assert (len(door.turns._of_addresses), len(door.turns._of_connections)) == (20, 10)
