"""Turns to ask, of one namespace and in all."""

from __future__ import annotations

import asyncio

from concerto.controllers.autoscaling.namespace_turns import NamespaceTurns


async def test_a_namespace_without_answers_holds_up_only_itself():
    turns, answered, begun = NamespaceTurns(3, 1), asyncio.Event(), []

    async def ask(namespace: str) -> None:
        async with turns.turn(namespace):
            begun.append(namespace)
            if namespace == "stuck":
                await answered.wait()

    stuck = [asyncio.ensure_future(ask("stuck")) for _ in range(5)]
    async with asyncio.timeout(10):
        await asyncio.gather(*(ask("a") for _ in range(3)), ask("b"))
    assert sorted(begun) == ["a", "a", "a", "b", "stuck"]
    answered.set()
    await asyncio.gather(*stuck)
    assert begun.count("stuck") == 5


async def test_no_more_than_so_many_ask_at_a_time():
    turns, asking, most = NamespaceTurns(2, 2), 0, 0

    async def ask(namespace: str) -> None:
        nonlocal asking, most
        async with turns.turn(namespace):
            asking += 1
            most = max(most, asking)
            await asyncio.sleep(0)
            asking -= 1

    await asyncio.gather(*(ask(str(number)) for number in range(10)))
    assert most == 2
    assert not turns._limits, "namespaces that ask nothing are forgotten"
