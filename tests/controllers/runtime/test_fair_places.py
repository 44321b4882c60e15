"""Places: how many a namespace holds, and who is next."""

from __future__ import annotations

import asyncio
import random

import pytest

from concerto.controllers.runtime.fair_places import FairPlaces


class Work:
    """Pieces of work, each of which holds its place until it is ended."""

    def __init__(self, places: int) -> None:
        self.places = FairPlaces(places)
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


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_cancelled_no_place_is_lost_and_none_given_twice(seed):
    chance = random.Random(seed)
    async with Work(5) as work:
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
            assert 0 <= work.places._free <= 5
            assert sum(work.places._held.values()) >= 5 - work.places._free
        for _ in range(150):
            for name in work.tasks:
                work._ends[name].set()
            await work.settle()
        assert all(task.done() for task in work.tasks.values())
        places = work.places
        assert (places._free, places._beyond) == (5, None)
        assert not any((places._held, places._waiting, places._passed_over))


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
        assert not work.places._held
        assert not work.places._waiting
