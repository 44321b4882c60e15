"""Places: how many a namespace holds, and who is next."""

from __future__ import annotations

import asyncio
import random

import pytest

from concerto.kube.fair_places import FairPlaces
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

    async def make_known(self, *namespaces: str) -> None:
        """Work of each has ended soon."""
        for namespace in namespaces:
            await self.ask(f"{namespace}-first", namespace)
            await self.end(f"{namespace}-first")

    async def make_busy(self, namespace: str, ended: int = 40) -> int:
        """Work of the namespace ends soon, and always more waits; returns how many places it holds then."""
        names = [f"{namespace}-busy{number}" for number in range(2 * ended)]
        for name in names:
            await self.ask(name, namespace)
        for name in names[:ended]:
            await self.end(name)
        return sum(name in self.begun for name in names) - ended

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def __aenter__(self) -> Work:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_a_namespace_alone_has_half_of_the_places_once_its_work_ends():
    async with Work(8) as work:
        for i in range(10):
            await work.ask(f"a{i}")
        assert work.begun == ["a0"]
        await work.end("a0")
        assert work.begun[1:] == ["a1", "a2"]
        await work.end("a1")
        await work.end("a2")
        assert work.begun[3:] == ["a3", "a4", "a5", "a6"]
        await work.end("a4")
        assert work.begun[7:] == ["a7"]


async def test_namespaces_that_begin_to_hang_while_they_are_busy_leave_places_to_others():
    async with Work(32) as work:
        assert [await work.make_busy(name) for name in "abcde"] == [14, 7, 4, 2, 1]
        await work.make_known("f", "g")
        await work.ask("f0")
        await work.ask("g0")
        assert work.begun[-2:] == ["f0", "g0"]


async def test_new_namespaces_have_one_place_each_and_known_ones_wait_for_none_of_them():
    async with Work(32) as work:
        await work.make_known("known")
        for i in range(100):
            for number in range(3):
                await work.ask(f"new{i}x{number}", f"new{i}")
        assert work.begun[1:] == [f"new{i}x0" for i in range(8)]
        await work.ask("known0")
        assert work.begun[-1] == "known0"
        await work.end("new3x0")
        assert work.begun[10:] == ["new3x1", "new3x2", "new8x0"], "it is known now, and another one has its place"


async def test_who_comes_later_has_a_place_before_the_rest_of_a_crowd():
    async with Work(4) as work:
        for i in range(100):
            await work.ask(f"crowd{i}")
        await work.end("crowd0")
        await work.make_known("quiet")
        await work.ask("quiet0")
        assert work.begun[1:3] == ["crowd1", "crowd2"]
        assert work.begun[-1] == "quiet0"


async def test_namespaces_have_turns():
    async with Work(1) as work:
        for name in ("a0", "a1", "a2", "b0", "b1", "c0"):
            await work.ask(name)
        for turn in range(5):
            await work.end(work.begun[turn])
        assert sorted(work.begun) == ["a0", "a1", "a2", "b0", "b1", "c0"]
        assert work.begun.index("b0") < work.begun.index("a2")
        assert work.begun.index("c0") < work.begun.index("b1")


async def test_a_place_counts_for_each_namespace_that_it_is_held_for():
    async with Work(8) as work:
        await work.make_known("a", "b", "c", "d", "victims")
        await work.ask("stuck0", "a", "victims")
        await work.ask("stuck1", "b", "victims")
        await work.ask("free", "d")
        assert work.begun[5:] == ["stuck0", "free"]


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


SOON = 1.5
"""Seconds after which work is slow in these tests."""


async def slow(work: Work, *namespaces: str) -> None:
    await eventually(lambda: all(work.places.is_slow([each]) for each in namespaces))
    await work.settle()


async def test_namespaces_that_hang_leave_their_places_to_others_before_long():
    async with Work(32, slow_seconds=4 * SOON) as work:
        held = sum([await work.make_busy(f"s{i}x") for i in range(6)])
        assert held >= 28
        await slow(work, *(f"s{i}x" for i in range(6)))
        await work.make_known("free")
        assert await work.make_busy("free") >= 6
        assert work.places.max_held == 32 + 16 + 8 + 8 + 8


async def test_after_an_outage_namespaces_that_do_not_hang_wait_for_none_that_do():
    """They all waited until what hung was given up: for a minute."""
    async with Work(96, slow_seconds=SOON) as work:
        stuck, healthy = [f"s{i}x" for i in range(7)], [f"h{i}x" for i in range(8)]
        for name in healthy:
            await work.ask(f"{name}0")
        for number in range(60):
            for name in stuck:
                await work.ask(f"{name}{number}")
        await slow(work, *stuck, *healthy)
        for number in range(1, 40):
            for name in healthy:
                await work.ask(f"{name}{number}")
        while running := [name for name in work.begun if name[0] == "h" and not work._ends[name].is_set()]:
            for name in running:
                await work.end(name)
        assert all(f"{name}39" in work.begun for name in healthy)
        assert not work.places.is_slow(healthy)
        assert work.places.is_slow(["s0x"])


async def test_however_many_new_namespaces_hang_known_ones_have_all_of_their_places():
    async with Work(32, slow_seconds=SOON) as work:
        await work.make_known("known")
        for i in range(200):
            await work.ask(f"stuck{i}", f"stuck{i}")
        await slow(work, "stuck0")
        # Those that last leave their places once, to as many others
        await eventually(lambda: sum(name.startswith("stuck") for name in work.begun) == 8 + 8)
        await slow(work, "stuck15")
        assert await work.make_busy("known") == 14


async def test_a_slow_namespace_is_tried_again_with_one_piece_of_work_once_none_lasts():
    async with Work(32, slow_seconds=SOON) as work:
        assert await work.make_busy("stuck") == 14
        await slow(work, "stuck")
        running = work.begun[-14:]
        for name in running[:13]:
            await work.end(name)
        assert work.begun[-14:] == running, "one of them lasts"
        await work.end(running[13])
        assert len(work.begun) == 40 + 14 + 1
        await work.end(work.begun[-1])
        assert len(work.begun) == 40 + 14 + 1 + 2, "it ended soon"


async def test_a_namespace_is_not_slow_any_more_once_work_of_it_ends_soon_and_none_lasts():
    async with Work(8, slow_seconds=SOON) as work:
        await work.ask("a0")
        await slow(work, "a")
        await work.ask("a1")
        assert work.begun == ["a0"], "other work of it still lasts"
        await work.end("a0")
        assert work.places.is_slow(["a"]), "it has lasted for long"
        await work.end("a1")
        assert not work.places.is_slow(["a"])


async def test_work_that_is_broken_off_says_nothing_of_its_namespace():
    """What waits for a place has part of its time left when it gets one: it was taken for work that ends soon."""
    async with Work(8, slow_seconds=SOON) as work:
        await work.ask("a0")
        await slow(work, "a")
        await work.end("a0")
        await work.ask("a1")
        work.tasks["a1"].cancel()
        await work.settle()
        assert work.places.is_slow(["a"])
        await work.ask("b0")
        work.tasks["b0"].cancel()
        for number in range(1, 4):
            await work.ask(f"b{number}")
        assert work.begun[-2:] == ["b0", "b1"], "nothing is known of it"


async def test_work_that_lasts_is_due_to_the_namespace_that_was_slow_before():
    async with Work(16, slow_seconds=SOON) as work:
        await work.ask("v0", "victims")
        await slow(work, "victims")
        await work.end("v0")
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


def pools(work: Work) -> tuple[object, ...]:
    return work.places._of_known, work.places._of_new, work.places._of_slow


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
            assert all(pool.free >= 0 <= pool.excuses for pool in pools(work))
            held = work.places.max_held - sum(pool.free + pool.excuses for pool in pools(work))
            assert len(work.places._recent) <= held <= work.places._held.total() <= 3 * held
        for _ in range(150):
            for name in work.tasks:
                work._ends[name].set()
            await work.settle()
        assert all(task.done() for task in work.tasks.values())
        places = work.places
        assert [(pool.free, pool.excuses) for pool in pools(work)] == [(5, 2), (1, 1), (1, 0)]
        waiting = [lane for pool in pools(work) for lane in (*pool.waiting, *pool.lasting)]
        assert not any((*places._held, *places._grown, *places._recent, *waiting, *places._passed_over))
        assert (places._beyond, any(places._slow.values())) == (None, False)


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
        assert not any(pool.waiting for pool in pools(work))


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
