"""Turns that take long go on beside the next ones, as many as there may be."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import pytest

from concerto.controllers.runtime.slow_turns import SlowTurns
from support.waiting import eventually


def nothing() -> None:
    pass


async def fails() -> None:
    raise ValueError("this turn")


async def test_a_quick_turn_is_waited_for_and_its_error_is_raised():
    turns, done = SlowTurns(nothing, slow_seconds=20), []

    async def quick() -> None:
        await asyncio.sleep(0.01)
        done.append(1)

    await turns.run("a", quick)
    assert done == [1]
    assert turns.may_have("a")
    with pytest.raises(ValueError, match="this turn"):
        await turns.run("a", fails)


async def test_a_slow_turn_goes_on_beside_others_until_it_ends():
    news: list[str] = []
    turns, release = SlowTurns(lambda: news.append("ended"), slow_seconds=0.01), asyncio.Event()
    await turns.run("a", release.wait)
    assert not turns.may_have("a")
    assert turns.may_have("b")
    release.set()
    await eventually(lambda: turns.may_have("a"))
    assert news == ["ended"]


async def test_beside_as_many_slow_turns_as_there_may_be_a_quick_one_ends_and_another_slow_one_waits_for_one_to_end():
    turns, release = SlowTurns(nothing, slow_seconds=0.001, max_slow=2), [asyncio.Event() for _ in range(3)]
    for number in range(2):
        await turns.run(f"n{number}", release[number].wait)
    await turns.run("quick", partial(asyncio.sleep, 0))
    third = asyncio.create_task(turns.run("n2", release[2].wait))
    await asyncio.sleep(0.05)
    assert not third.done()
    release[1].set()
    await third
    assert [turns.may_have(f"n{number}") for number in range(3)] == [False, True, False]
    turns.cancel()
    await eventually(lambda: all(turns.may_have(f"n{number}") for number in range(3)))


async def test_who_is_cancelled_cancels_the_turn():
    turns, ended = SlowTurns(nothing, slow_seconds=20), asyncio.Event()

    async def turn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        ended.set()

    running = asyncio.create_task(turns.run("a", turn))
    await asyncio.sleep(0.01)
    running.cancel()
    async with asyncio.timeout(20):
        await ended.wait()
