"""A write is repeated until its outcome is known, and never after the Lease is lost."""

from __future__ import annotations

import asyncio

import pytest

from concerto.kube import Conflict, Forbidden, KubeError, NotFound, OutcomeUnknown, ServerError, TooManyRequests
from concerto.kube.confirmed_writes import (
    NotWritten,
    WriteSettings,
    failure_reason,
    wait_unless_leading,
    write_until_known,
)

QUICK = WriteSettings(first_backoff_seconds=0.001, max_backoff_seconds=0.002)
UNKNOWN = OutcomeUnknown("no answer")
CONFLICT = Conflict(409, "AlreadyExists", "it exists")
FORBIDDEN = Forbidden(403, "Forbidden", "no right")
BUSY = TooManyRequests(429, "TooManyRequests", "later", retry_after=0.001)
TROUBLE = ServerError(500, "InternalError", "etcd")
CANNOT_READ = KubeError("the API server is away")


class Server:
    """Gives the scripted answers: an exception is raised, anything else is returned; the last one for ever."""

    def __init__(self, writes, reads=(None,)):
        self.writes, self.reads = list(writes), list(reads)
        self.written = self.read = 0

    async def write(self):
        self.written += 1
        return self._answer(self.writes)

    async def read_back(self):
        self.read += 1
        return self._answer(self.reads)

    @staticmethod
    def _answer(script):
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("sentence", "writes", "reads", "result", "written", "read"),
    [
        ("taken at once", ["new"], [None], "new", 1, 0),
        ("unknown, and carried out", [UNKNOWN], ["found"], "found", 1, 1),
        ("unknown, and not carried out", [UNKNOWN, "new"], [None], "new", 2, 1),
        ("unknown, and nothing can be read for a while", [UNKNOWN], [CANNOT_READ, CANNOT_READ, "found"], "found", 3, 3),
        ("server trouble may come after the write", [TROUBLE], ["found"], "found", 1, 1),
        ("too many requests: nothing was done, so nothing is read", [BUSY, BUSY, "new"], [None], "new", 3, 0),
        ("a conflict with ours", [CONFLICT], ["found"], "found", 1, 1),
        ("unknown and carried out late: the second conflicts", [UNKNOWN, CONFLICT], [None, "found"], "found", 2, 2),
        ("unknown and carried out late: the second is forbidden", [UNKNOWN, FORBIDDEN], [None, "found"], "found", 2, 2),
        ("refused, and the read fails: asked again", [UNKNOWN, FORBIDDEN], [None, CANNOT_READ, "found"], "found", 3, 3),
    ],
)
async def test_the_outcome_is_what_the_object_shows(sentence, writes, reads, result, written, read):
    server = Server(writes, reads)
    assert await write_until_known(server.write, server.read_back, settings=QUICK) == result, sentence
    assert (server.written, server.read) == (written, read), sentence


@pytest.mark.parametrize(
    ("sentence", "writes", "expected", "read"),
    [
        ("no right", [FORBIDDEN], Forbidden, 0),
        ("the namespace is gone", [NotFound(404, "NotFound", "no namespace")], NotFound, 0),
        ("a conflict with something that does not count as written", [CONFLICT], Conflict, 1),
        ("unknown, not carried out, then refused", [UNKNOWN, FORBIDDEN], Forbidden, 2),
    ],
)
async def test_a_refusal_ends_the_write_when_nothing_was_written(sentence, writes, expected, read):
    server = Server(writes)
    with pytest.raises(expected):
        await write_until_known(server.write, server.read_back, settings=QUICK)
    assert server.read == read, sentence


async def test_a_write_that_is_known_not_to_be_carried_out_is_given_up_in_time():
    server = Server([BUSY])
    with pytest.raises(NotWritten, match="later"):
        await write_until_known(server.write, server.read_back, settings=WriteSettings(0.001, 0.001, 0.02))


async def test_a_write_whose_outcome_is_unknown_is_never_given_up():
    server = Server([UNKNOWN], [CANNOT_READ] * 50 + ["found"])
    settings = WriteSettings(0.001, 0.001, give_up_after_seconds=0.0)
    assert await write_until_known(server.write, server.read_back, settings=settings) == "found"


WEBHOOK = OutcomeUnknown('500 InternalError: Internal error occurred: failed calling webhook "x": refused')


@pytest.mark.parametrize(
    ("sentence", "writes", "settings", "written"),
    [
        ("it answers 500 at once", [WEBHOOK], QUICK, 3),
        ("it takes long to fail", [WEBHOOK], WriteSettings(0.001, 0.001, max_webhook_seconds=0.0), 1),
    ],
)
async def test_a_webhook_that_keeps_failing_is_a_refusal(sentence, writes, settings, written):
    server = Server(writes)
    with pytest.raises(NotWritten, match="failed calling webhook"):
        await write_until_known(server.write, server.read_back, settings=settings)
    assert (server.written, server.read) == (written, 0), "admission comes before storage, so nothing has to be read"


async def test_a_webhook_that_recovers_costs_nothing():
    server = Server([WEBHOOK, WEBHOOK, "new"])
    assert await write_until_known(server.write, server.read_back, settings=QUICK) == "new"


async def test_a_webhook_that_fails_after_an_unknown_outcome_does_not_hide_what_was_written():
    server = Server([UNKNOWN, WEBHOOK], [None, "found"])
    assert await write_until_known(server.write, server.read_back, settings=QUICK) == "found"


async def test_each_failed_attempt_is_reported_with_its_reason():
    reported = []
    server = Server([BUSY, WEBHOOK, TROUBLE, UNKNOWN, "new"])
    await write_until_known(
        server.write, server.read_back, settings=QUICK, on_failure=lambda e, s: reported.append(failure_reason(e))
    )
    assert reported == ["TooManyRequests", "Webhook", "InternalError", "OutcomeUnknown"]


async def test_nothing_is_sent_once_the_lease_is_lost():
    server = Server([UNKNOWN])
    work = write_until_known(server.write, server.read_back, may_write=lambda: server.written < 2, settings=QUICK)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await work
    assert server.written == 2


async def test_a_process_that_could_renew_its_lease_after_all_goes_on_with_its_writes():
    leads = False

    async def until_it_leads() -> None:
        await wait_unless_leading(lambda: leads)

    waiting = asyncio.create_task(until_it_leads())
    await asyncio.sleep(0)
    assert not waiting.done()
    leads = True
    async with asyncio.timeout(10):
        await waiting
