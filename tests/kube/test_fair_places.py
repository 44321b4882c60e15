"""Places: how many a namespace holds, and who is next."""

from __future__ import annotations

import asyncio
import random

import pytest

from concerto.kube.fair_places import FairPlaces
from support.loop_clock import pass_time
from support.step_counts import steps_of

LASTS = FairPlaces.LASTS_AFTER_SECONDS


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

    async def last(self, seconds: float = LASTS) -> None:
        """So much time passes, and no work ends."""
        pass_time(seconds)
        await self.settle()

    async def overtake(self) -> None:
        """Work of another namespace begins and ends at once."""
        await self.make_known("another")

    def hang(self, *namespaces: str) -> list[bool]:
        """Of each namespace, whether it is slow."""
        return [self.places.hangs([each]) for each in namespaces]

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def __aenter__(self) -> Work:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_a_namespace_alone_has_three_eighths_of_the_places_once_its_work_ends():
    async with Work(8) as work:
        for i in range(10):
            await work.ask(f"a{i}")
        assert work.begun == ["a0"]
        await work.end("a0")
        assert work.begun[1:] == ["a1", "a2", "a3"]
        await work.end("a2")
        assert work.begun[4:] == ["a4"]


async def test_namespaces_that_begin_to_hang_while_they_are_busy_leave_places_to_others():
    async with Work(32) as work:
        await work.make_known(*"fghijklm")
        assert [await work.make_busy(name) for name in "abcde"] == [12, 6, 3, 2, 1]
        for name in "fghijklm":
            await work.ask(f"{name}0")
            assert work.begun[-1] == f"{name}0"


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
        for number, namespace in enumerate("abcd"):
            await work.ask(f"stuck{number}", namespace, "victims")
        await work.ask("free", "d")
        assert work.begun[5:] == ["stuck0", "stuck1", "stuck2", "free"]


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


async def test_work_that_lasts_leaves_its_place_to_others_until_half_of_all_are_left():
    async with Work(32) as work:
        held = sum([await work.make_busy(f"s{i}x") for i in range(6)])
        assert held == 12 + 6 + 3 + 2 + 1 + 1
        await work.last()
        await work.make_known("free")
        assert await work.make_busy("free") == 8, "of 32 - 25 + 16 that are free"
        assert work.places.max_held == (32 + 16) + 2 * (8 + 4)


async def test_a_namespace_whose_work_lasts_has_no_more_than_it_could_have_if_it_did_not():
    async with Work(32) as work:
        assert await work.make_busy("a") == 12
        begun = len(work.begun)
        await work.last()
        await work.end("a-busy40")
        assert len(work.begun) == begun + 1


async def test_work_is_slow_once_other_work_that_began_later_has_ended_four_times_as_soon():
    async with Work(32) as work:
        await work.make_known("a", "b")
        await work.ask("a0")
        await work.last()
        assert work.hang("a") == [False], "maybe the API server is away"
        await work.ask("a1")
        assert work.begun[-1] == "a1"
        await work.ask("b0")
        await work.last(0.6)
        await work.end("b0")
        assert work.hang("a", "b") == [False, False], "maybe the API server is slow"
        await work.ask("b1")
        await work.last(0.5)
        await work.end("b1")
        assert work.hang("a", "b") == [True, False]


async def test_work_that_has_ended_sooner_than_others_says_nothing_of_its_own_namespace():
    async with Work(32) as work:
        await work.make_known("a")
        await work.ask("a0")
        await work.last()
        await work.ask("a1")
        await work.end("a1")
        assert work.hang("a") == [False]


async def test_work_that_goes_on_for_longer_than_a_request_may_hangs_whoever_else_there_is():
    async with Work(32) as work:
        await work.ask("a0")
        await work.last(4.9)
        assert work.hang("a") == [False]
        await work.last(0.2)
        assert work.hang("a", "b") == [True, False]
        await work.end("a0")
        assert work.hang("a") == [False]


async def test_a_namespace_whose_work_fails_late_each_time_holds_one_place_of_those_of_slow_ones():
    """As an admission webhook does that fails after 3 s: seven such namespaces held 84 of 96 places for ever."""
    async with Work(32) as work:
        assert await work.make_busy("late") == 12
        for _ in range(3):
            running = [name for name in work.begun if name.startswith("late") and not work._ends[name].is_set()]
            await work.last(3.0)
            await work.overtake()
            for name in running:
                await work.end(name)
        assert len(running) == 1
        assert work.hang("late") == [True]
        await work.make_known("free")
        assert await work.make_busy("free") == 12


async def test_after_an_outage_no_namespace_is_slow_but_those_that_go_on_to_hang():
    """All were slow, and waited for what hung: for a minute."""
    async with Work(96) as work:
        stuck, healthy = [f"s{i}x" for i in range(40)], [f"h{i}x" for i in range(8)]
        await work.make_known(*stuck, *healthy)
        for name in (*stuck, *healthy):
            await work.ask(f"{name}0")
            await work.ask(f"{name}1")
        await work.last(5.0)
        for name in healthy:
            await work.end(f"{name}0")
        assert work.hang("s0x", "h0x") == [True, False]
        for name in healthy:
            await work.end(f"{name}1")
        for number in range(2, 40):
            for name in healthy:
                await work.ask(f"{name}{number}")
        while running := [name for name in work.begun if name[0] == "h" and not work._ends[name].is_set()]:
            for name in running:
                await work.end(name)
        assert all(f"{name}39" in work.begun for name in healthy)
        assert work.hang(*healthy) == 8 * [False]
        assert work.hang(*stuck) == 40 * [True]


async def test_however_many_new_namespaces_hang_known_ones_have_all_of_their_places():
    async with Work(32) as work:
        await work.make_known("known")
        for i in range(200):
            await work.ask(f"stuck{i}", f"stuck{i}")
        await work.last()
        assert sum(name.startswith("stuck") for name in work.begun) == 8 + 4, "each leaves its place once, to others"
        await work.last()
        assert await work.make_busy("known") == 12


async def test_a_slow_namespace_is_tried_again_with_one_piece_of_work_once_none_lasts():
    async with Work(32) as work:
        assert await work.make_busy("stuck") == 12
        await work.last()
        await work.overtake()
        running = [name for name in work.begun if name.startswith("stuck-busy")][-12:]
        for name in running[:11]:
            await work.end(name)
        assert len([name for name in work.begun if name.startswith("stuck-busy")]) == 40 + 12, "one of them lasts"
        await work.end(running[11])
        assert len([name for name in work.begun if name.startswith("stuck-busy")]) == 40 + 12 + 1
        await work.end(work.begun[-1])
        assert len([name for name in work.begun if name.startswith("stuck-busy")]) == 40 + 12 + 1 + 12, "it ended soon"


async def test_a_namespace_is_not_slow_any_more_once_work_of_it_ends_soon_and_none_lasts():
    async with Work(8) as work:
        await work.ask("a0")
        await work.last()
        await work.overtake()
        await work.ask("a1")
        assert work.begun[-1] != "a1", "other work of it still lasts"
        await work.end("a0")
        assert work.hang("a") == [True], "it has lasted for long"
        await work.end("a1")
        assert work.hang("a") == [False]


async def test_work_that_is_broken_off_says_nothing_of_its_namespace():
    """What waits for a place has part of its time left when it gets one: it was taken for work that ends soon."""
    async with Work(8) as work:
        await work.ask("a0")
        await work.last()
        await work.overtake()
        await work.end("a0")
        await work.ask("a1")
        work.tasks["a1"].cancel()
        await work.settle()
        assert work.hang("a") == [True]
        await work.ask("b0")
        work.tasks["b0"].cancel()
        for number in range(1, 4):
            await work.ask(f"b{number}")
        assert work.begun[-2:] == ["b0", "b1"], "nothing is known of it"


async def test_work_that_is_broken_off_says_nothing_of_others():
    async with Work(8) as work:
        await work.ask("a0")
        await work.last()
        await work.ask("b0")
        work.tasks["b0"].cancel()
        await work.settle()
        assert work.hang("a") == [False]


async def test_work_that_lasts_is_due_to_the_namespace_that_was_slow_before():
    async with Work(16) as work:
        await work.ask("v0", "victims")
        await work.last()
        await work.overtake()
        await work.end("v0")
        await work.ask("a0", "a", "victims")
        await work.last()
        await work.overtake()
        assert work.hang("a", "victims") == [False, True]
        assert work.places.hangs(["a", "victims"])


@pytest.mark.parametrize("passes", [0.0, 0.5], ids=["none is slow", "some are slow"])
@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_cancelled_no_place_is_lost_and_none_given_twice(seed, passes):
    chance = random.Random(seed)
    async with Work(5) as work:
        shares = work.places._shares
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
            if passes:
                await work.last(passes)
            assert all(pool.free >= 0 <= pool.left <= pool.max_left for pool in shares.pools)
            held = sum(pool.size - pool.free + pool.left for pool in shares.pools)
            assert len(shares._young) + len(shares._old) <= held <= shares._held.total() <= 3 * held
        for _ in range(150):
            for name in work.tasks:
                work._ends[name].set()
            await work.settle()
        assert all(task.done() for task in work.tasks.values())
        assert [(pool.free, pool.left) for pool in shares.pools] == [(5, 0), (1, 0), (1, 0)]
        waiting = [lane for each in work.places._waiting.values() for lane in each]
        lasting = [hold for pool in shares.pools for hold in pool.lasting]
        assert not any((shares._held, shares._lasting, shares._young, shares._old, waiting, lasting))
        assert (work.places._beyond, work.places._passed_over) == (None, {})


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
        assert not work.places._shares._held
        assert not any(work.places._waiting.values())


async def steps_of_a_place_beside(slow: int) -> float:
    """For one namespace, while so many slow ones wait."""
    async with Work(4) as work:
        names = [f"h{chr(0x4E00 + number)}" for number in range(slow)]
        work.places._shares._slow = dict.fromkeys(names)
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
