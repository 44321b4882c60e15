"""Whose turn it is to have pods searched for that are evicted for it, among keys NAMESPACE/NAME of some priority."""

from __future__ import annotations

import asyncio
from collections import Counter

from concerto.controllers.scheduling.turns import Turns, TurnSettings
from support.step_counts import steps_of
from support.waiting import eventually

NOW = 1000.0


class Keys:
    """Turns whose clock a test sets, and the order in which keys had theirs."""

    def __init__(self, **settings):
        self.now = NOW
        self.priorities = Counter()
        self.gone = set()
        self.order = []
        self.again = set()
        self.tidied = 0
        self.turns = Turns(
            TurnSettings(**settings),
            lambda: self.now,
            lambda key: self.priorities[key],
            lambda key: key.partition("/")[0],
            lambda key: key not in self.gone,
        )

    def add(self, *keys):
        for key in keys:
            self.turns.add(key)

    async def search(self, key):
        self.order.append(key)
        self.now += 1.0
        if key in self.again:
            self.turns.add(key)
        if len(self.order) == self.limit:
            await asyncio.Event().wait()

    def tidy(self):
        self.tidied += 1

    async def serve(self, turns):
        """The keys that have had so many turns."""
        self.order.clear()
        self.limit = turns
        running = asyncio.create_task(self.turns.serve(self.search, self.tidy))
        await eventually(lambda: len(self.order) >= turns)
        running.cancel()
        return list(self.order)


async def test_a_namespace_with_many_keys_keeps_another_waiting_for_one_turn():
    keys = Keys()
    keys.add(*(f"crowd/{i}" for i in range(1000)))
    keys.now += 600
    keys.add("quiet/a")
    assert "quiet/a" in await keys.serve(3)


async def test_in_a_namespace_the_key_that_is_due_for_longest_is_next():
    keys = Keys()
    for name in ("c", "a", "b"):
        keys.now += 1.0
        keys.add(f"n/{name}")
    assert await keys.serve(3) == ["n/c", "n/a", "n/b"]


async def test_a_higher_priority_is_next_and_each_second_turn_is_that_of_one_that_waits_for_too_long():
    keys = Keys()
    keys.again = {"n/high", "m/high"}
    keys.priorities.update({"n/high": 9, "m/high": 9})
    keys.add("n/low", "n/low2", "n/low3", *keys.again)
    first = await keys.serve(10)
    assert {each.partition("/")[2] for each in first} == {"high"}
    later = await keys.serve(6)
    assert later[:1] + later[2:3] + later[4:5] == ["n/low", "n/low2", "n/low3"]


async def test_turns_of_a_namespaces_higher_priority_are_not_counted_as_those_of_its_lower_one():
    keys = Keys()
    keys.again = {"mixed/high"}
    keys.priorities["mixed/high"] = 9
    keys.add("mixed/high", "mixed/low", *(f"crowd/{i}" for i in range(1000)))
    keys.now += 60
    assert "mixed/low" in await keys.serve(6)


async def test_a_key_that_rests_and_one_whose_priority_changes():
    keys = Keys()
    keys.add("n/a", "n/b")
    keys.turns.rest("n/a", 60.0)
    assert await keys.serve(1) == ["n/b"]
    keys.priorities["n/a"] = 5
    keys.add("n/a", "n/b")
    assert await keys.serve(1) == ["n/b"]
    keys.add("n/b")
    keys.now += 60.0
    assert await keys.serve(2) == ["n/b", "n/a"], "n/b has waited for too long"
    assert len(keys.turns) == 0


async def test_nothing_stays_of_keys_that_need_no_turn():
    keys = Keys()
    keys.add(*(f"n/{i}" for i in range(5000)))
    for i in range(5000):
        keys.turns.rest(f"n/{i}", 5.0)
        keys.turns.seconds_idle(f"n/{i}")
    keys.gone = {f"n/{i}" for i in range(5000)}
    keys.add("n/left")
    await keys.serve(1)
    for _ in range(5):
        keys.now += 6.0
        keys.turns._prune()
    assert len(keys.turns) == 0
    assert not any((keys.turns._idle, keys.turns._not_before, keys.turns._rests, list(keys.turns._waiting)))


async def test_the_searches_own_memory_is_tidied_however_many_keys_are_due():
    keys = Keys()
    keys.again = {"n/a"}
    keys.add("n/a")
    await keys.serve(10)  # a second each
    assert keys.tidied >= 10


async def test_keys_that_come_and_go_while_an_older_one_rests_do_not_pile_up():
    keys = Keys()
    keys.add("n/old")
    for i in range(5000):
        keys.add(f"n/{i}")
        keys.turns._waiting.drop(f"n/{i}")
    (lane,) = keys.turns._waiting._lanes.values()
    assert len(lane.heap) < 200


def test_a_turn_costs_the_same_however_many_keys_wait():
    def steps(count):
        keys = Keys()
        keys.add(*(f"n{i % 10}/{i}" for i in range(count)))
        return steps_of(lambda: keys.turns._next(keys.now))

    assert steps(5000) < 1.2 * steps(500)


async def test_keys_that_need_no_search_hold_up_nothing_else_however_many_namespaces_have_some(monkeypatch):
    keys, compared = Keys(), []
    keys.add(*(f"n{i}/a" for i in range(500)))
    keys.gone |= {f"n{i}/a" for i in range(499)}
    monkeypatch.setattr("concerto.controllers.scheduling.turns._PRUNE_SECONDS", 1e9)
    monkeypatch.setattr("concerto.controllers.scheduling.turns._MAX_COMPARED", 1000)
    keys.turns._pruned_at = NOW
    firsts = keys.turns._waiting.firsts
    monkeypatch.setattr(keys.turns._waiting, "firsts", lambda: compared.append(len(keys.turns)) or firsts())
    in_a_row: list[int] = []
    others = asyncio.create_task(count_in_turns(compared, in_a_row))
    assert await keys.serve(1) == ["n499/a"]
    others.cancel()
    assert max(in_a_row) <= 1500


async def count_in_turns(compared, found):
    """How many keys were compared between two turns of the event loop."""
    while True:
        await asyncio.sleep(0)
        found.append(sum(compared))
        compared.clear()
