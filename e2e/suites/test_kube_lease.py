"""Leader election on a real Lease: one leader at a time, and a successor when it is gone."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from concerto.kube import NotFound, Session
from concerto.kube.election import LeaderElection
from concerto.kube.lease import Candidate, LeaseSettings
from concerto.kube.resources import LEASES
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.clusters.proxy import Wire
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually_async

QUICK = LeaseSettings(lease_duration_seconds=8, renew_deadline_seconds=5, retry_period_seconds=0.5)


class Contender:
    """One candidate that writes down what becomes of it, in a journal that all of them share."""

    def __init__(
        self, session: Session, namespace: str, name: str, journal: list[str], settings: LeaseSettings = QUICK
    ) -> None:
        self.name = name
        self.journal = journal
        self.leads, self.finished = asyncio.Event(), asyncio.Event()
        self.election = LeaderElection(
            session, Candidate(namespace, "it", name), settings, on_lost=lambda: journal.append(f"{name} lost")
        )
        self.task = asyncio.create_task(self.election.run(self._lead))

    async def _lead(self) -> None:
        assert self.election.remaining_seconds() > 0
        self.journal.append(f"{self.name} leads")
        self.leads.set()
        try:
            await self.finished.wait()
            self.journal.append(f"{self.name} has finished")
        finally:
            self.journal.append(f"{self.name} stops")

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def holder(session: Session, namespace: str) -> tuple[str, int]:
    spec = (await session.get(LEASES.path(namespace, "it")))["spec"]
    return spec["holderIdentity"], spec["leaseTransitions"]


async def test_one_of_many_leads_and_hands_over_when_it_is_done(session: Session, namespace: str) -> None:
    journal: list[str] = []
    # a lease so long that only one given back can be taken over within this test
    slow = LeaseSettings(lease_duration_seconds=3600, renew_deadline_seconds=1800, retry_period_seconds=0.2)
    candidates = [Contender(session, namespace, f"c{i}", journal, slow) for i in range(5)]
    for number in range(5):
        waits = [asyncio.create_task(c.leads.wait()) for c in candidates]
        await asyncio.wait_for(asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED), PATIENCE_SECONDS)
        leader = next(c for c in candidates if c.leads.is_set())
        for wait in waits:
            wait.cancel()
        assert await holder(session, namespace) == (leader.name, number)
        assert [c for c in candidates if c.election.remaining_seconds() > 0] == [leader]
        candidates.remove(leader)
        if number % 2:
            leader.finished.set()
            assert await asyncio.wait_for(leader.task, PATIENCE_SECONDS)
        else:
            await leader.stop()
        assert leader.election.remaining_seconds() == 0
    assert not any(line.endswith("lost") for line in journal)
    assert len(journal) == 5 + 5 + 2


@pytest.mark.parametrize("fault", ["is refused", "hangs"])
async def test_a_leader_that_cannot_renew_stops_before_another_starts(
    session: Session, wired: Session, wire: Wire, namespace: str, fault: str
) -> None:
    journal: list[str] = []
    first = Contender(wired, namespace, "first", journal)
    await asyncio.wait_for(first.leads.wait(), PATIENCE_SECONDS)
    second = Contender(session, namespace, "second", journal)
    if fault == "hangs":
        wire.freeze()
    else:
        await wire.cut()
    await asyncio.wait_for(second.leads.wait(), PATIENCE_SECONDS)
    assert journal == ["first leads", "first lost", "first stops", "second leads"]
    assert not await first.task
    assert first.election.remaining_seconds() == 0
    assert await holder(session, namespace) == ("second", 1)

    wire.mend()
    assert second.election.remaining_seconds() > 0
    await second.stop()
    assert await holder(session, namespace) == ("", 1)


async def test_a_leader_keeps_its_lease_through_a_short_outage(
    control_plane: LocalControlPlane, session: Session, namespace: str
) -> None:
    journal: list[str] = []
    patient = LeaseSettings(lease_duration_seconds=90, renew_deadline_seconds=60, retry_period_seconds=0.5)
    first, second = (Contender(session, namespace, name, journal, patient) for name in ("first", "second"))
    waits = {asyncio.create_task(c.leads.wait()) for c in (first, second)}
    await asyncio.wait_for(asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED), PATIENCE_SECONDS)
    leader = first if first.leads.is_set() else second
    before = (await session.get(LEASES.path(namespace, "it")))["spec"]
    await asyncio.to_thread(control_plane.restart_apiserver)

    async def renewed() -> dict | None:
        now = (await session.get(LEASES.path(namespace, "it")))["spec"]
        return now if now["renewTime"] != before["renewTime"] else None

    spec = await eventually_async("it is renewed", renewed)
    assert (spec["holderIdentity"], spec["acquireTime"]) == (leader.name, before["acquireTime"])
    assert journal == [f"{leader.name} leads"]
    for wait in waits:
        wait.cancel()
    await asyncio.gather(first.stop(), second.stop())


async def test_a_lease_that_was_taken_away_ends_leadership(session: Session, namespace: str) -> None:
    journal: list[str] = []
    first = Contender(session, namespace, "first", journal)
    await asyncio.wait_for(first.leads.wait(), PATIENCE_SECONDS)
    while True:  # its own renewals come in between
        lease = await session.get(LEASES.path(namespace, "it"))
        lease["spec"]["holderIdentity"] = "usurper"
        with contextlib.suppress(Exception):
            await session.replace(LEASES.path(namespace, "it"), lease)
            break
    assert not await asyncio.wait_for(first.task, PATIENCE_SECONDS)
    assert journal == ["first leads", "first lost", "first stops"]
    # what it lost it does not give back
    assert (await holder(session, namespace))[0] == "usurper"


async def test_a_lease_that_is_deleted_is_made_again_by_its_holder(session: Session, namespace: str) -> None:
    journal: list[str] = []
    first = Contender(session, namespace, "first", journal)
    await asyncio.wait_for(first.leads.wait(), PATIENCE_SECONDS)
    second = Contender(session, namespace, "second", journal)
    await eventually_async("the second has seen the first", lambda: second.election.holder == "first")
    deleted = await session.delete(LEASES.path(namespace, "it"))

    async def made_again() -> bool:
        with contextlib.suppress(NotFound):
            lease = await session.get(LEASES.path(namespace, "it"))
            return lease["metadata"]["uid"] != deleted.get("details", {}).get("uid")
        return False

    await eventually_async("it is there again", made_again)
    assert (await holder(session, namespace))[0] == "first"
    assert journal == ["first leads"]
    await asyncio.gather(first.stop(), second.stop())


async def test_nobody_leads_after_a_deletion_before_the_holders_right_has_ended(
    session: Session, wired: Session, wire: Wire, namespace: str
) -> None:
    """The holder cannot hear of the deletion: it may act until its deadline."""
    journal: list[str] = []
    first = Contender(wired, namespace, "first", journal)
    await asyncio.wait_for(first.leads.wait(), PATIENCE_SECONDS)
    second = Contender(session, namespace, "second", journal)
    await eventually_async("the second has seen the first", lambda: second.election.holder == "first")
    wire.freeze()
    await session.delete(LEASES.path(namespace, "it"))
    await asyncio.wait_for(second.leads.wait(), PATIENCE_SECONDS)
    assert journal == ["first leads", "first lost", "first stops", "second leads"]
    await second.stop()


async def test_what_leads_may_fail(session: Session, namespace: str) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    election = LeaderElection(session, Candidate(namespace, "it", "a"), QUICK)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(election.run(fail), PATIENCE_SECONDS)
    assert await holder(session, namespace) == ("", 0)
