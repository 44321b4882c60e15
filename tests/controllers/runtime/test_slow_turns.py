"""Turns that take long go on beside the next ones, as many as there may be."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from concerto.controllers.runtime.slow_turns import SlowTurns


async def fails() -> None:
    raise ValueError("this turn")


async def test_a_quick_turn_is_waited_for_and_its_error_is_raised():
    turns, done = SlowTurns(slow_seconds=20), []

    async def quick() -> None:
        await asyncio.sleep(0.01)
        done.append(1)

    await turns.run("a", quick())
    assert done == [1]
    assert "a" not in turns
    with pytest.raises(ValueError, match="this turn"):
        await turns.run("a", fails())


async def test_a_slow_turn_goes_on_beside_others_until_it_ends():
    news: list[str] = []
    turns, release = SlowTurns(lambda: news.append("ended"), slow_seconds=0.01), asyncio.Event()
    await turns.run("a", wait_for(release))
    assert "a" in turns and "b" not in turns
    release.set()
    await asyncio.sleep(0.01)
    assert "a" not in turns
    assert news == ["ended"]


async def test_with_many_slow_turns_the_next_one_waits_for_one_to_end():
    turns, release = SlowTurns(slow_seconds=0.001, max_slow=2), [asyncio.Event() for _ in range(3)]
    for number in range(2):
        await turns.run(f"n{number}", wait_for(release[number]))
    third = asyncio.create_task(turns.run("n2", wait_for(release[2])))
    await asyncio.sleep(0.05)
    assert not third.done()
    release[1].set()
    await third
    assert ["n0" in turns, "n1" in turns, "n2" in turns] == [True, False, True]
    turns.cancel()
    await asyncio.sleep(0.01)
    assert "n0" not in turns and "n2" not in turns


async def test_who_is_cancelled_cancels_the_turn():
    turns, ended = SlowTurns(slow_seconds=20), asyncio.Event()

    async def turn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        ended.set()

    running = asyncio.create_task(turns.run("a", turn()))
    await asyncio.sleep(0.01)
    running.cancel()
    async with asyncio.timeout(20):
        await ended.wait()


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()
