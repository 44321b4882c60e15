"""The writes by which room is made for a pod: what is sent in which order, and what a failure stops."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext

import pytest

from concerto.controllers.scheduling.eviction import (
    EvictionPlaces,
    EvictionSettings,
    NotNeeded,
    PodWriter,
    may_be_due_to,
)
from concerto.kube import Conflict, Forbidden, Invalid, KubeError, ServerError, TooManyRequests, Unreachable
from concerto.kube.confirmed_writes import NotWritten
from support.faulty_server import faulty, refuses, resets, says
from support.scheduling_builders import pod, raw_pod

VICTIM = pod("victim", nodeName="a")
PREEMPTOR = pod("asks", priority=100)
STATUS, POD = "/api/v1/namespaces/default/pods/{}/status", "/api/v1/namespaces/default/pods/{}"
FAILED = refuses(500, "InternalError")
GONE = refuses(404, "NotFound")
FOUND = says(200, raw_pod("victim", nodeName="a"))
ANOTHER = says(200, raw_pod("victim", uid="another"))
LEAVING = says(200, raw_pod("victim", nodeName="a", deleting=True))
OK = says(200, {})


def pod_writer(server, settings, may_write=lambda: True):
    places = EvictionPlaces(settings)
    return PodWriter(server.session, may_write, lambda failure, seconds: None, places, settings)


@asynccontextmanager
async def writer(*answers, give_up_after=15.0):
    async with faulty(answers) as server:
        settings = EvictionSettings(give_up_after_seconds=give_up_after)
        yield server, pod_writer(server, settings)


async def evict(pods, is_needed=lambda: True):
    return await pods.mark(VICTIM, PREEMPTOR, is_needed) and await pods.delete(VICTIM, is_needed)


async def test_a_victim_is_marked_and_then_deleted():
    async with writer(OK) as (server, pods):
        assert await evict(pods) is True
        assert server.seen == [f"PATCH {STATUS.format('victim')}", f"DELETE {POD.format('victim')}"]


ENDS = {
    "gone before it was marked": ([GONE], ["PATCH"]),
    "gone before it was deleted": ([OK, GONE], ["PATCH", "DELETE"]),
    "replaced by another of its name": ([OK, refuses(409, "Conflict"), ANOTHER], ["PATCH", "DELETE", "GET"]),
}


@pytest.mark.parametrize(("answers", "sent"), ENDS.values(), ids=ENDS)
async def test_a_victim_that_is_gone_is_no_failure(answers, sent):
    async with writer(*answers) as (server, pods):
        assert await evict(pods) is False
        assert [each.partition(" ")[0] for each in server.seen] == sent


async def test_a_victim_that_cannot_be_marked_is_not_deleted():
    async with writer(refuses(403, "Forbidden")) as (server, pods):
        with pytest.raises(Forbidden):
            await evict(pods)
        assert server.seen == [f"PATCH {STATUS.format('victim')}"]


async def test_a_deletion_of_unknown_outcome_is_read_back():
    async with writer(OK, FAILED, LEAVING) as (server, pods):
        assert await evict(pods) is True
        assert [each.partition(" ")[0] for each in server.seen] == ["PATCH", "DELETE", "GET"]


async def test_a_deletion_that_was_not_carried_out_is_repeated_for_a_while():
    async with writer(OK, FAILED, FOUND, OK) as (_, pods):
        assert await evict(pods) is True
    async with writer(refuses(429, "TooManyRequests"), give_up_after=0.0) as (_, pods):
        with pytest.raises(NotWritten):
            await evict(pods)


def denied(code, reason):
    return refuses(code, reason, message='admission webhook "w" denied the request: not now')


WEBHOOK_FAILS = refuses(500, "InternalError", message='Internal error occurred: failed calling webhook "w": timeout')
NOT_ASKED = refuses(400, "BadRequest", message='admission webhook "w" does not support dry run')
CHECKS = {
    "accepted": ([OK], None, 1),
    "gone": ([GONE], None, 1),
    "replaced by another of its name": ([refuses(409, "Conflict")], None, 1),
    "a webhook that is asked in no dry run": ([NOT_ASKED], None, 1),
    "refused": ([refuses(422, "Invalid")], Invalid, 1),
    "denied with the code of a conflict": ([denied(409, "Conflict")], Conflict, 1),
    "denied with a code of overload": ([denied(429, "TooManyRequests")], TooManyRequests, 3),
    "a webhook that fails": ([WEBHOOK_FAILS], ServerError, 3),
    "overload that passes": ([refuses(429, "TooManyRequests"), FAILED, OK], None, 3),
    "overload that lasts": ([FAILED], ServerError, 3),
    "no answer": ([resets], Unreachable, 3),
}


@pytest.mark.parametrize(("answers", "failure", "asked"), CHECKS.values(), ids=CHECKS)
async def test_a_deletion_counts_as_checked_only_with_an_answer(answers, failure, asked):
    async with writer(*answers) as (server, pods):
        with pytest.raises(failure) if failure is not None else nullcontext():
            await pods.check_deletion(VICTIM, lambda: True)
        assert server.seen == [f"DELETE {POD.format('victim')} (dry run)"] * asked


DUE_TO_THE_POD = {
    "refused": (refuses(403, "Forbidden"), True),
    "a webhook that fails": (WEBHOOK_FAILS, True),
    "denied with a code of overload": (denied(429, "TooManyRequests"), True),
    "denied with the code of credentials": (denied(401, "Unauthorized"), True),
    "overload": (refuses(429, "TooManyRequests"), False),
    "credentials": (refuses(401, "Unauthorized"), False),
}


@pytest.mark.parametrize(("answer", "is_due"), DUE_TO_THE_POD.values(), ids=DUE_TO_THE_POD)
async def test_a_pod_is_left_alone_only_after_what_may_be_due_to_it(answer, is_due):
    async with writer(answer, give_up_after=0.0) as (_, pods):
        with pytest.raises(KubeError) as failed:
            await pods.delete(VICTIM, lambda: True)
        assert may_be_due_to(failed.value) is is_due


NOMINATIONS = {
    "accepted": ([OK], True),
    "of a pod that is gone": ([GONE], False),
    "of a pod whose name another has": ([refuses(409, "Conflict"), ANOTHER], False),
    "of unknown outcome, carried out": (
        [FAILED, says(200, raw_pod("asks", status={"nominatedNodeName": "a"}))],
        True,
    ),
    "of unknown outcome, repeated": ([FAILED, says(200, raw_pod("asks")), OK], True),
    "of a pod that has ended": ([FAILED, says(200, raw_pod("asks", phase="Failed"))], False),
}


@pytest.mark.parametrize(("answers", "written"), NOMINATIONS.values(), ids=NOMINATIONS)
async def test_a_nomination(answers, written):
    async with writer(*answers) as (server, pods):
        assert await pods.nominate(PREEMPTOR, "a") is written
        assert server.seen[0] == f"PATCH {STATUS.format('asks')}"


async def test_a_nomination_and_conditions_are_one_write():
    bodies = []

    async def answer(request):
        bodies.append(await request.json())
        return await OK(request)

    condition = {"type": "PodScheduled", "status": "False"}
    async with writer(answer) as (_, pods):
        assert await pods.nominate(PREEMPTOR, "a", [condition]) is True
        assert await pods.nominate(PREEMPTOR, "") is True
    written = {"nominatedNodeName": "a", "conditions": [condition]}
    assert [each["status"] for each in bodies] == [written, {"nominatedNodeName": None}]
    assert bodies[0]["metadata"] == {"uid": PREEMPTOR.uid}


async def test_no_nomination_is_repeated_for_a_pod_that_has_a_node_meanwhile():
    async with writer(FAILED, says(200, raw_pod("asks")), OK) as (server, pods):
        with pytest.raises(NotNeeded):
            await pods.nominate(PREEMPTOR, "a", is_needed=iter([True, False]).__next__)
        assert [each.partition(" ")[0] for each in server.seen] == ["PATCH", "GET"]


async def test_nothing_is_written_without_the_lease():
    async with faulty([OK]) as server:
        pods = pod_writer(server, EvictionSettings(), may_write=lambda: False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pods.nominate(PREEMPTOR, "a")
        assert server.seen == []


NEEDED = {
    "before it is marked": ([False], [OK], []),
    "between the two": ([True, False], [OK], ["PATCH"]),
    "while its deletion is repeated": ([True, True, False], [OK, FAILED, FOUND], ["PATCH", "DELETE", "GET"]),
}


@pytest.mark.parametrize(("needed", "answers", "sent"), NEEDED.values(), ids=NEEDED)
async def test_nobody_is_evicted_for_a_pod_that_needs_the_room_no_more(needed, answers, sent):
    async with writer(*answers) as (server, pods):
        with pytest.raises(NotNeeded):
            await evict(pods, iter(needed).__next__)
        assert [each.partition(" ")[0] for each in server.seen] == sent


async def test_so_many_nominations_are_written_at_a_time():
    going_on, at_once, release = set(), [], asyncio.Event()

    async def slow(request):
        going_on.add(request.path)
        at_once.append(len(going_on))
        await release.wait()
        going_on.discard(request.path)
        return await OK(request)

    async with faulty([slow]) as server:
        pods = pod_writer(server, EvictionSettings(max_concurrent=4))
        writes = [asyncio.create_task(pods.nominate(pod(f"p{i}"), "a")) for i in range(5)]
        await server.asked(1)
        await asyncio.sleep(0.05)
        assert at_once == [1], "none of this namespace has ended soon before"
        release.set()
        assert await asyncio.gather(*writes) == [True] * 5
        assert max(at_once) <= 2
