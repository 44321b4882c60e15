"""Places: how many a namespace holds, and who is next."""

from __future__ import annotations

import asyncio
import random

import pytest

from concerto.controllers.runtime.fair_places import FairPlaces
from support.step_counts import steps_of
from support.waiting import eventually


class Work:
    """Pieces of work, each of which holds its place until it is ended."""

    def __init__(self, places: int, **settings: float) -> None:
        self.places = FairPlaces(places, **settings)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def ask(self, name: str, *namespaces: str) -> None:
        """Ask for a place, for namespaces or else for the one that the name begins with."""
        end = self._ends[name] = asyncio.Event()

        async def work() -> None:
            async with self.places.place(*(namespaces or (name.rstrip("0123456789"),))):
                self.begun.append(name)
                await end.wait()

        self.tasks[name] = asyncio.create_task(work())
        await self.settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def __aenter__(self) -> Work:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_a_namespace_alone_has_half_of_the_places():
    async with Work(8) as work:
        for i in range(10):
            await work.ask(f"a{i}")
        assert work.begun == ["a0", "a1", "a2", "a3"]
        await work.end("a2")
        assert work.begun[4:] == ["a4"]


async def test_namespaces_whose_work_never_ends_leave_places_to_others():
    async with Work(32) as work:
        for name in ("a", "b", "c", "d"):
            for i in range(40):
                await work.ask(f"{name}{i}")
        assert [sum(each.startswith(name) for each in work.begun) for name in "abcd"] == [16, 8, 4, 2]
        await work.ask("e0")
        assert work.begun[-1] == "e0"


async def test_who_comes_later_has_a_place_before_the_rest_of_a_crowd():
    async with Work(4) as work:
        for i in range(100):
            await work.ask(f"crowd{i}")
        await work.ask("quiet0")
        assert work.begun == ["crowd0", "crowd1", "quiet0"]


async def test_namespaces_have_turns():
    async with Work(1) as work:
        for name in ("a0", "a1", "a2", "b0", "b1", "c0"):
            await work.ask(name)
        for _ in range(5):
            await work.end(work.begun[-1])
        assert work.begun == ["a0", "a1", "b0", "c0", "a2", "b1"]


async def test_a_place_counts_for_each_namespace_that_it_is_held_for():
    async with Work(4) as work:
        await work.ask("stuck0", "a", "victims")
        await work.ask("stuck1", "b", "victims")
        await work.ask("stuck2", "c", "victims")
        await work.ask("free", "d")
        assert work.begun == ["stuck0", "stuck1", "free"]


@pytest.mark.parametrize("busy", [2, 16, 32, 40])
async def test_work_for_several_namespaces_has_its_turn_although_each_of_them_always_has_other_work(busy):
    async with Work(32) as work:
        waiting = {f"n{i}x": 0 for i in range(busy)}

        async def ask_for_more() -> None:
            for name in waiting:
                while waiting[name] < 20:
                    await work.ask(f"{name}{len(work.tasks)}")
                    waiting[name] += 1

        await ask_for_more()
        await work.ask("both", "n0x", "n1x")
        ended = 0
        while "both" not in work.begun:
            assert ended < 500
            name = work.begun[ended]
            await work.end(name)
            waiting[name.rstrip("0123456789")] -= 1
            ended += 1
            await ask_for_more()


async def test_places_that_are_given_out_of_turn_to_work_that_never_ends_are_one_at_most():
    async with Work(8) as work:
        for i in range(10):
            await work.ask(f"victims{i}")
        for i in range(10):
            await work.ask(f"stuck{i}", f"s{i}", "victims")
        for i in range(100):
            await work.ask(f"free{i}")
            await work.end(f"free{i}")
        assert [each for each in work.begun if each.startswith("stuck")] == ["stuck0"]
        await work.end("stuck0")
        assert work.begun[-1] == "stuck1"


SOON = 0.6
"""Seconds after which work is slow in these tests."""


async def slow(work: Work, *namespaces: str) -> None:
    await eventually(lambda: all(work.places.is_slow([each]) for each in namespaces))
    await work.settle()


async def test_however_many_namespaces_hold_all_places_for_long_others_have_some_before_long():
    stuck = [f"s{i}x" for i in range(6)]
    async with Work(32, slow_seconds=SOON) as work:
        for name in stuck:
            for i in range(40):
                await work.ask(f"{name}{i}")
        assert len(work.begun) == 32
        for i in range(10):
            await work.ask(f"free{i}")
        await slow(work, *stuck)
        free = sum(name.startswith("free") for name in work.begun)
        assert 0 < free <= 8, "half of the 16 that may be held besides"
        assert len(work.begun) <= 48


async def test_slow_namespaces_have_half_as_many_places_among_them():
    async with Work(32, slow_seconds=SOON) as work:
        for i in range(20):
            await work.ask(f"stuck{i}")
        await slow(work, "stuck")
        for i in range(20, 60):
            await work.ask(f"stuck{i}")
        assert len(work.begun) == 16
        for i in range(16):
            await work.end(f"stuck{i}")
        assert len(work.begun) == 16 + 8
        for i in range(40):
            await work.ask(f"free{i}")
        assert sum(name.startswith("free") for name in work.begun) == 16, "as many as it has beside nobody"


async def test_places_beyond_the_usual_ones_are_not_for_work_that_lasts_itself():
    async with Work(4, slow_seconds=SOON) as work:
        for name in ("a0", "a1"):
            await work.ask(name)
        await asyncio.sleep(SOON / 4)
        for name in ("b0", "c0", "c1", "b1"):
            await work.ask(name)
        await slow(work, "a")
        assert work.begun == ["a0", "a1", "b0", "c0"]
        await work.ask("d0")
        assert work.begun[4:] == ["d0"]


async def test_a_namespace_is_not_slow_any_more_once_work_of_it_ends_soon_and_none_lasts():
    async with Work(8, slow_seconds=SOON) as work:
        await work.ask("a0")
        await slow(work, "a")
        await work.ask("a1")
        await work.end("a1")
        assert work.places.is_slow(["a"]), "other work of it still lasts"
        await work.end("a0")
        assert work.places.is_slow(["a"]), "it has lasted for long"
        await work.ask("a2")
        await work.end("a2")
        assert not work.places.is_slow(["a"])


async def test_work_that_lasts_is_due_to_the_namespace_that_was_slow_before():
    async with Work(16, slow_seconds=SOON) as work:
        await work.ask("v0", "victims")
        await slow(work, "victims")
        await work.ask("a0", "a", "victims")
        await asyncio.sleep(1.2 * SOON)
        await work.ask("b0", "b")
        assert not work.places.is_slow("ab")
        assert work.places.is_slow(["a", "victims"])


async def test_no_more_is_remembered_of_namespaces_than_counts():
    async with Work(4, slow_seconds=0.0) as work:
        for i in range(1200):
            await work.ask(f"n{i}", f"n{i}")
            await work.end(f"n{i}")
        assert len(work.places._slow) <= 1001


@pytest.mark.parametrize("slow_seconds", [5.0, 0.001], ids=["none is slow", "some are slow"])
@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_cancelled_no_place_is_lost_and_none_given_twice(seed, slow_seconds):
    chance = random.Random(seed)
    async with Work(5, slow_seconds=slow_seconds) as work:
        for i in range(150):
            if chance.random() < 0.5:
                await work.ask(f"{i}", *chance.sample("abcd", chance.choice([1, 1, 2, 3])))
            for name in chance.sample(sorted(work.tasks), min(len(work.tasks), chance.randrange(3))):
                if chance.random() < 0.5:
                    work._ends[name].set()
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                if chance.random() < 0.5:
                    work.tasks[name].cancel()
            usual, of_slow = work.places._usual, work.places._of_slow
            assert 0 <= usual.free <= 5
            assert usual.free + of_slow.free >= 0
            assert sum(usual.held.values()) >= 5 - usual.free
        for _ in range(150):
            for name in work.tasks:
                work._ends[name].set()
            await work.settle()
        assert all(task.done() for task in work.tasks.values())
        places = work.places
        assert (places._usual.free, places._of_slow.free, places._beyond) == (5, 2, None)
        held = (places._usual.held, places._of_slow.held, places._holds, places._recent)
        waiting = (places._usual.waiting, places._of_slow.waiting)
        assert not any((*held, *waiting, places._passed_over, *places._slow.values()))


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits", "as its turn comes"])
async def test_who_is_cancelled_keeps_no_place(waits):
    async with Work(1) as work:
        await work.ask("a0")
        await work.ask("a1")
        await work.ask("a2")
        if not waits:
            work._ends["a0"].set()
            await asyncio.sleep(0)  # a0 gives its place back, and a1 has not taken note
        work.tasks["a1"].cancel()
        await work.end("a0")
        assert work.begun == ["a0", "a2"]
        await work.end("a2")
        assert not work.places._holds
        assert not work.places._usual.waiting


async def steps_of_a_place_beside(slow: int) -> float:
    """For one namespace, while so many slow ones wait."""
    async with Work(4) as work:
        names = [f"h{chr(0x4E00 + number)}" for number in range(slow)]
        work.places._slow = dict.fromkeys(names, 0)
        for name in names:
            await work.ask(f"{name}1")
        place = work.places.place("other")

        def hold_one() -> None:
            for part in (place.__aenter__(), place.__aexit__(None, None, None)):
                with pytest.raises(StopIteration):  # it does not wait
                    part.send(None)

        return steps_of(hold_one)


async def test_a_place_takes_as_long_however_many_slow_namespaces_wait():
    """With 900 of them, each binding of another namespace took 13 ms."""
    assert await steps_of_a_place_beside(400) <= 1.2 * await steps_of_a_place_beside(20)
