"""Places: how many a namespace holds, and who is next."""

from __future__ import annotations

import asyncio

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
