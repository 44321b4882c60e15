"""Leader election whose leader is blocked, stopped, cut off or deprived of its Lease."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from concerto.kube import ConfigError
from concerto.kube.election import LeaderElection
from concerto.kube.lease import Candidate, LeaseSettings
from support.lease_server import LeaseServer

QUICK = LeaseSettings(lease_duration_seconds=3, renew_deadline_seconds=1.5, retry_period_seconds=0.2)


@pytest.fixture
def server() -> Iterator[LeaseServer]:
    with LeaseServer() as opened:
        yield opened


class Clock:
    """Real time, and what a test adds to it, as after a suspension."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Leader:
    """A candidate that leads until the test ends; ``lost`` holds when it lost leadership, and in which thread."""

    def __init__(self, election: LeaderElection) -> None:
        self.election = election
        self.leads = asyncio.Event()
        self.lost: list[tuple[float, str]] = []

    async def lead(self) -> None:
        self.leads.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def candidate(
    server: LeaseServer, name: str, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Leader]:
    async with await server.session(name) as session:
        leader = Leader(
            LeaderElection(
                session, Candidate("ns", "it", name), QUICK, clock=clock,
                on_lost=lambda: leader.lost.append((time.monotonic(), threading.current_thread().name)),
            )
        )  # fmt: skip
        task = asyncio.ensure_future(leader.election.run(leader.lead))
        try:
            yield leader
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def leader(server: LeaseServer, name: str, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[Leader]:
    """A candidate that leads already."""
    async with candidate(server, name, clock) as found:
        await found.leads.wait()
        yield found


def block(seconds: float) -> None:
    """Hold up this event loop."""
    time.sleep(seconds)


async def until(condition: Callable[[], object], within_seconds: float = 20.0) -> None:
    async with asyncio.timeout(within_seconds):
        while not condition():  # noqa: ASYNC110 - it changes in another thread
            await asyncio.sleep(0.01)


async def test_a_leader_whose_event_loop_is_blocked_goes_on_leading(server: LeaseServer) -> None:
    async with leader(server, "a") as a, candidate(server, "b") as b:
        before = len(server.writes)
        block(2 * QUICK.lease_duration_seconds)
        assert a.election.remaining_seconds() > 0
        assert len(server.writes) - before >= 10
        await asyncio.sleep(3 * QUICK.retry_period_seconds)
        assert not a.lost
        assert not b.leads.is_set()


async def test_a_blocked_leader_learns_at_once_that_its_lease_is_lost(server: LeaseServer) -> None:
    async with leader(server, "a") as a:
        server.silent.add("a")
        blocked_at = time.monotonic()
        block(QUICK.lease_duration_seconds)  # its event loop cannot learn of it before
        assert [thread for _, thread in a.lost] == ["lease"]
        assert a.lost[0][0] - blocked_at < QUICK.lease_duration_seconds
        assert a.election.remaining_seconds() == 0


async def test_nobody_writes_between_the_deadline_and_the_end(server: LeaseServer) -> None:
    async with leader(server, "a") as a, candidate(server, "b") as b:
        server.silent.add("a")
        began = time.monotonic()
        await until(lambda: a.election.remaining_seconds() == 0)
        assert not b.leads.is_set()
        await until(lambda: a.lost)
        assert not b.leads.is_set()
        await b.leads.wait()
        assert time.monotonic() - began >= QUICK.lease_duration_seconds - QUICK.retry_period_seconds


async def test_a_suspended_leader_that_nobody_succeeded_renews_once_more_and_goes_on(server: LeaseServer) -> None:
    clock = Clock()
    async with leader(server, "a", clock) as a:
        clock.ahead += 60
        assert a.election.remaining_seconds() == 0  # before any timer fires
        await until(lambda: a.election.remaining_seconds() > 0)
        assert not a.lost


async def test_a_suspended_leader_that_was_succeeded_stops(server: LeaseServer) -> None:
    clock = Clock()
    async with leader(server, "a", clock) as a:
        server.silent.add("a")  # all of it stands still
        async with candidate(server, "b") as b:
            await b.leads.wait()
            clock.ahead += 60
            server.silent.clear()
            await until(lambda: a.lost)
            assert a.election.remaining_seconds() == 0
            assert b.election.remaining_seconds() > 0
            # what it sends all the same is known to be an earlier leader's
            assert a.election.field_manager == "concerto-leader-0"


LED_MEANWHILE = {
    "the successor has given the Lease back": {"holderIdentity": "", "leaseTransitions": 1},
    "the Lease was deleted": None,
}


@pytest.mark.parametrize("spec", LED_MEANWHILE.values(), ids=LED_MEANWHILE)
async def test_a_suspended_leader_whose_successor_has_gone_stops(
    server: LeaseServer, spec: dict[str, object] | None
) -> None:
    """What it had planned may contradict what the successor has written, and would bear a newer number than that."""
    clock = Clock()
    async with leader(server, "a", clock) as a:
        assert server.lease is not None
        clock.ahead += 60
        server.lease = None if spec is None else {**server.lease, "spec": {**server.lease["spec"], **spec}}
        await until(lambda: a.lost)
        assert a.election.remaining_seconds() == 0
        assert a.election.field_manager == "concerto-leader-0"


async def test_a_deleted_lease_is_made_again_by_its_holder(server: LeaseServer) -> None:
    async with leader(server, "a") as a, candidate(server, "b") as b:
        await until(lambda: b.election.holder == "a")
        server.lease = None
        await until(lambda: server.lease)
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == "a"
        assert not a.lost
        assert not b.leads.is_set()


async def test_who_has_seen_a_holder_waits_after_its_lease_was_deleted(server: LeaseServer) -> None:
    """The holder does not know: it may act until its own deadline."""
    async with leader(server, "a") as a, candidate(server, "b") as b:
        await until(lambda: b.election.holder == "a")
        server.silent.add("a")
        server.lease = None
        deleted_at = time.monotonic()
        await b.leads.wait()
        assert time.monotonic() - deleted_at >= QUICK.lease_duration_seconds
        assert a.election.remaining_seconds() == 0
        # numbers must not begin again at zero
        assert b.election.field_manager == "concerto-leader-1"


async def test_numbers_of_leaders_grow(server: LeaseServer) -> None:
    numbers = []
    for name in ("a", "b", "c"):
        async with candidate(server, name) as leader:
            await leader.leads.wait()
            numbers.append(leader.election.field_manager)
    assert numbers == ["concerto-leader-0", "concerto-leader-1", "concerto-leader-2"]


async def test_the_lease_is_given_back_by_who_is_cancelled_and_the_thread_ends(server: LeaseServer) -> None:
    async with leader(server, "a"):
        assert any(thread.name == "lease" for thread in threading.enumerate())
    assert server.writes[-1] == ("a", "")
    assert not any(thread.name == "lease" for thread in threading.enumerate())


async def test_a_candidate_that_waits_can_be_cancelled(server: LeaseServer) -> None:
    server.silent.add("a")
    async with asyncio.timeout(20), candidate(server, "a"):
        await asyncio.sleep(0.1)
    assert server.writes == []


async def test_what_keeps_a_candidate_from_asking_is_raised(server: LeaseServer) -> None:
    async with await server.session("a") as session:
        session.config = type(session.config)("https://a", certificate_authority_data="no certificate")
        election = LeaderElection(session, Candidate("ns", "it", "a"), QUICK)
        with pytest.raises(ConfigError, match="TLS material"):
            await asyncio.wait_for(election.run(asyncio.Event().wait), 20)
