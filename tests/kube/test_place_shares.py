"""What holds of places whatever namespaces do: checked with work at random, and in minutes that pass at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.kube import place_shares
from concerto.kube.fair_places import FairPlaces
from concerto.kube.place_shares import Hold, PlaceShares
from support.loop_clock import VirtualTimeLoop

PLACES, BESIDE, LASTS = 96, 24, FairPlaces.LASTS_AFTER_SECONDS
SOON = 0.05
"""Seconds that a request takes."""
HANGS = 60.0
BEGINS = 1.0
"""When others begin to hang, in seconds."""


def known_to(shares: PlaceShares, *namespaces: str) -> None:
    for each in namespaces:
        shares.end(shares.begin(frozenset([each]), 0.0), 0.0)


@given(st.data())
def test_whatever_a_quarter_as_many_namespaces_do_as_there_are_places_a_known_one_has_its_first(data):
    shares = PlaceShares(PLACES, BESIDE, LASTS)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    others = [f"n{number}" for number in range(data.draw(st.integers(1, PLACES // 4)))]
    known_to(shares, "quiet", *others)
    held, now = list[Hold](), 0.0
    for _ in range(data.draw(st.integers(1, 400))):
        now += chance.choice([0.0, 0.01, 1.0])
        shares.note_lasting(now)
        lane = frozenset(chance.sample(others, min(len(others), chance.choice([1, 1, 1, 2]))))
        if held and chance.random() < 0.3:
            shares.end(held.pop(chance.randrange(len(held))), now, is_broken_off=chance.random() < 0.1)
        elif shares.may_have(lane):
            held.append(shares.begin(lane, now))
        assert shares.may_have(frozenset(["quiet"]))
        for pool in shares.pools:
            holds = [hold for hold in held if hold.pool is pool]
            assert pool.left == sum(hold.is_left for hold in holds) <= pool.size // 2
            assert pool.free == pool.size - len(holds) + pool.left >= 0
    for hold in held:
        shares.end(hold, now)
    assert all((pool.free, pool.left) == (pool.size, 0) for pool in shares.pools)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.floats(0.01, 30.0))
def test_where_the_api_server_takes_its_time_for_everybody_nobody_is_slow(seed, takes):
    shares, chance, now = PlaceShares(PLACES, BESIDE, LASTS), random.Random(seed), 0.0
    names = [f"n{number}" for number in range(8)]
    known_to(shares, *names)
    ends = list[tuple[float, Hold]]()
    for _ in range(300):
        now += takes / 40
        for when, hold in sorted((each for each in ends if each[0] <= now), key=lambda each: each[0]):
            shares.end(hold, when)
        ends = [each for each in ends if each[0] > now]
        shares.note_lasting(now)
        lane = frozenset([chance.choice(names)])
        if shares.may_have(lane):
            ends.append((now + takes * chance.uniform(0.5, 1.9), shares.begin(lane, now)))
        assert all(shares.pool_of(frozenset([name])) is shares.known for name in names)


def test_no_more_is_remembered_of_namespaces_than_counts():
    shares = PlaceShares(4, 4, LASTS)
    for number in range(2 * place_shares._MAX_KNOWN):
        now, stuck = 10.0 * number, frozenset([f"stuck{number}"])
        if number < 2 * place_shares._MAX_SLOW:
            hold = shares.begin(stuck, now)
            known_to(shares, "quick")
            shares.note_lasting(now + 2.0)
            shares.end(shares.begin(frozenset(["quick"]), now + 2.0), now + 2.0)
            assert shares.pool_of(stuck) is shares.slow
            shares.end(hold, now + 2.0)
        shares.end(shares.begin(frozenset([f"known{number}"]), now), now)
    assert len(shares._slow) <= place_shares._MAX_SLOW + 1
    assert len(shares._known) == place_shares._MAX_KNOWN


Takes = Callable[[float], float]
"""Given when a piece of work begins, how long it takes; both in seconds."""


class Load:
    """Namespaces that always have work, and others that have some now and then, on places for bindings."""

    def __init__(self) -> None:
        self.places = FairPlaces(PLACES)
        self.waited: list[tuple[float, float]] = []  # when a piece of work was wanted that comes now and then; seconds
        self.ended = 0  # pieces of work of `work_hard`
        self._numbers = count()

    async def work(self, namespace: str, takes: Takes) -> None:
        wanted = _now()
        async with self.places.place(namespace):
            if namespace.startswith("quiet"):
                self.waited.append((wanted, _now() - wanted))
            await asyncio.sleep(takes(_now()))

    async def always(self, namespace: str, takes: Takes, pieces: int = 40) -> None:
        async def one_after_the_other() -> None:
            while True:
                await self.work(namespace, takes)
                self.ended += namespace == "busy"

        await asyncio.gather(*(one_after_the_other() for _ in range(pieces)))

    async def now_and_then(self, namespace: str, takes: Takes) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self.work(namespace, takes))
                await asyncio.sleep(0.25)

    def longest_wait(self, since: float) -> float:
        return max(seconds for wanted, seconds in self.waited if wanted >= since)


def _now() -> float:
    return asyncio.get_running_loop().time()


def for_a_while(seconds: float, *work: Awaitable[None]) -> None:
    async def all_of_it() -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*work)
        except TimeoutError:
            pass

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(all_of_it())


def soon(began: float) -> float:
    return SOON


def hanging(load: Load, namespaces: int, takes: float = HANGS) -> list[Awaitable[None]]:
    """Busy namespaces whose work takes so long from ``BEGINS`` on."""
    return [load.always(f"s{number}", lambda began: SOON if began < BEGINS else takes) for number in range(namespaces)]


@pytest.mark.parametrize("takes", [1.0, 3.5, HANGS])
@pytest.mark.parametrize("namespaces", [1, 7, 19, 60])
def test_a_known_namespace_does_not_wait_for_any_that_begin_to_hang_at_one_moment(namespaces, takes):
    load = Load()
    quiet = [load.now_and_then(f"quiet{number}", soon) for number in range(3)]
    for_a_while(BEGINS + 15.0, *hanging(load, namespaces, takes), *quiet)
    assert load.longest_wait(since=BEGINS) <= (0.0 if namespaces <= 19 else LASTS + SOON)
    if takes > LASTS:
        assert load.longest_wait(since=BEGINS + 2 * LASTS) == 0.0


@pytest.mark.parametrize("takes", [3.5, HANGS])
@pytest.mark.parametrize("namespaces", [7, 19])
def test_a_busy_namespace_has_most_of_its_places_once_the_work_of_others_lasts(namespaces, takes):
    load, seconds = Load(), 5.0

    async def begin_later() -> None:
        await asyncio.sleep(BEGINS + LASTS + SOON)
        await load.always("busy", soon)

    for_a_while(BEGINS + LASTS + SOON + seconds, *hanging(load, namespaces, takes), begin_later())
    assert load.ended >= 0.9 * 18 * seconds / SOON, "18 at a time of 36"


@pytest.mark.parametrize("namespaces", [7, 24])
def test_after_an_outage_no_namespace_waits_for_those_that_begin_to_hang_in_it(namespaces):
    chance, ends = random.Random(7), BEGINS + 5.0

    def until_the_end(began: float) -> float:
        """An attempt that has failed is repeated after a while."""
        return ends - began + chance.uniform(0.0, 3.0) if BEGINS <= began < ends else SOON

    load = Load()
    quiet = [load.now_and_then(f"quiet{number}", until_the_end) for number in range(3)]
    for_a_while(ends + 20.0, *hanging(load, namespaces), *quiet)
    assert load.longest_wait(since=ends) <= 3.0 + 2 * SOON
    assert load.longest_wait(since=ends + 3.0) <= 2 * SOON
    assert load.longest_wait(since=ends + 4.0) == 0.0
