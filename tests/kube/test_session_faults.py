from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from concerto.kube import (
    ApiError,
    Forbidden,
    Gone,
    OutcomeUnknown,
    ServerError,
    Session,
    SessionSettings,
    TooManyRequests,
    Unreachable,
    transport,
)
from concerto.kube.errors import TooLarge
from concerto.kube.request_bodies import STRATEGIC_PATCH, Patch
from concerto.kube.session import wait_seconds
from support.faulty_server import faulty, hangs_up, refuses, resets, says
from support.loop_clock import pass_time
from support.traced_memory import traced_memory
from support.waiting import eventually

FINE = says(200, {"fine": True})


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


REPEATED = {
    "too many requests, a read": ("GET", refuses(429, "TooManyRequests", {"Retry-After": "0"})),
    "too many requests, a create (not carried out)": ("POST", refuses(429, "TooManyRequests", {"Retry-After": "0"})),
    "a server error, a read": ("GET", refuses(500, "InternalError")),
    "a server that is not ready, a replace": ("PUT", refuses(503, "ServiceUnavailable")),
    "a page from something in between": ("GET", says(502, "<html>Bad gateway</html>")),
    "a connection lost in the middle of the answer, a patch": ("PATCH", resets),
    "a connection lost before the answer, a delete": ("DELETE", hangs_up),
}  # fmt: skip


@pytest.mark.parametrize(("method", "fault"), REPEATED.values(), ids=REPEATED.keys())
async def test_what_may_be_said_again_is(method: str, fault: object) -> None:
    async with faulty([fault, FINE]) as server:
        assert await server.session.request(method, "/x", body={} if method != "GET" else None) == {"fine": True}
        assert server.seen == [f"{method} /x"] * 2


UNKNOWN = {
    "a connection lost in the middle of the answer": resets,
    "a connection lost before the answer": hangs_up,
    "a server error": refuses(500, "InternalError"),
    "storage that did not answer in time": refuses(504, "Timeout"),
    "an answer that is not JSON": says(201, "created, I think"),
}


@pytest.mark.parametrize("fault", UNKNOWN.values(), ids=UNKNOWN.keys())
async def test_a_create_that_may_have_been_carried_out_is_not_said_again(fault: object) -> None:
    async with faulty([fault, FINE]) as server:
        with pytest.raises(OutcomeUnknown, match="POST /x"):
            await server.session.create("/x", {})
        assert server.seen == ["POST /x"]


async def test_a_create_without_an_answer_in_time_has_an_unknown_outcome() -> None:
    async with faulty([hangs, FINE]) as server:
        with pytest.raises(OutcomeUnknown):
            await server.session.create("/x", {}, timeout_seconds=0.05)
        assert server.seen == ["POST /x"]


async def test_a_server_that_is_not_there_is_unreachable_for_a_create_too() -> None:
    async with faulty([FINE]) as server:
        config = server.session.config
    settings = SessionSettings(attempts=2, first_backoff_seconds=0.001)
    async with await Session.open(config, settings) as session:
        with pytest.raises(Unreachable):
            await session.create("/x", {})


async def test_of_an_answer_without_end_little_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BYTES", 2**17)
    async with faulty([says(200, {"text": "x" * 2**18})]) as server:
        with pytest.raises(Unreachable, match="the answer is larger than 131072 bytes"):
            await server.session.request("GET", "/x", attempts=1)
        with pytest.raises(OutcomeUnknown, match="the answer is larger than 131072 bytes"):
            await server.session.create("/x", {})
        with pytest.raises(TooLarge):
            await server.session.get_foreign("/x", timeout_seconds=20, max_bytes=2**16)


async def test_a_refusal_of_any_length_is_reported_briefly() -> None:
    async with faulty([says(403, {"reason": "Forbidden", "x": [[]] * 2**19})]) as server:
        with traced_memory() as memory, pytest.raises(Forbidden) as refused:
            await server.session.get("/x")
        assert len(str(refused.value)) < 1000
        with pytest.raises(Forbidden) as refused:
            async with server.session.stream("/x", params={}, inactivity_seconds=20):
                pass
        assert len(str(refused.value)) < 1000
    assert memory.peak < 16 * 2**20, "decoded, the lists in it take 30 MiB"


async def test_patience_has_an_end() -> None:
    async with faulty([refuses(429, "TooManyRequests")]) as server:
        with pytest.raises(TooManyRequests):
            await server.session.get("/x")
        assert len(server.seen) == server.session.settings.attempts
    async with faulty([refuses(503, "ServiceUnavailable")]) as server:
        with pytest.raises(ServerError):
            await server.session.request("GET", "/x", attempts=1)
        assert len(server.seen) == 1
    async with faulty([resets]) as server:
        with pytest.raises(Unreachable):
            await server.session.get("/x")
        assert len(server.seen) == server.session.settings.attempts


async def test_the_server_says_how_long_to_wait() -> None:
    async with faulty([refuses(429, "TooManyRequests", {"Retry-After": "7"})]) as server:
        with pytest.raises(TooManyRequests) as caught:
            await server.session.request("GET", "/x", attempts=1)
        assert caught.value.retry_after == 7
    async with faulty([refuses(429, "TooManyRequests", details={"retryAfterSeconds": 3})]) as server:
        with pytest.raises(TooManyRequests) as caught:
            await server.session.request("GET", "/x", attempts=1)
        assert caught.value.retry_after == 3
    async with faulty([refuses(429, "TooManyRequests", {"Retry-After": "1000000000"})]) as server:
        with pytest.raises(TooManyRequests) as caught:
            await server.session.request("GET", "/x", attempts=1)
        assert caught.value.retry_after == 300, "whoever waits for it: a broken proxy puts nobody to sleep for days"


WAITS = {
    "our own back-off": (None, 4.0, 4.0),
    "what an API server asks for, at most 32 s": (32.0, 0.1, 32.0),
    "less than ours": (1.0, 10.0, 1.0),
    "at once": (0.0, 10.0, 0.0),
    "what a broken proxy asks for": (1e9, 0.1, 300.0),
}


@pytest.mark.parametrize(("asked", "backoff", "least"), WAITS.values(), ids=WAITS.keys())
def test_nobody_comes_back_sooner_than_asked_nor_all_at_once(asked: float | None, backoff: float, least: float) -> None:
    waits = [wait_seconds(TooManyRequests(429, "", "", asked), backoff) for _ in range(200)]
    assert least <= min(waits) <= max(waits) <= 1.5 * least
    assert least == 0 or max(waits) - min(waits) > 0.2 * least


async def test_other_refusals_are_final_and_keep_their_words() -> None:
    async with faulty([refuses(410, "Expired")]) as server:
        with pytest.raises(Gone, match="410 Expired: Expired!"):
            await server.session.get("/x")
        assert len(server.seen) == 1
    async with faulty([says(302, "over there", {"Location": "/y"})]) as server:
        with pytest.raises(ApiError, match="over there"):
            await server.session.get("/x")
        assert len(server.seen) == 1


async def test_a_request_is_encoded_once() -> None:
    async with faulty([FINE]) as server:
        await server.session.get("/a%2Fb", params={"labelSelector": "a in (b,c),d!=e"})
        await server.session.get("/x?dryRun=All", params={"fieldManager": "ü"})
        assert server.seen == ["GET /a%2Fb?labelSelector=a+in+(b,c),d!%3De", "GET /x?dryRun=All&fieldManager=%C3%BC"]


async def test_creations_and_statuses_of_others_bear_the_name_of_their_writer() -> None:
    async with faulty([FINE]) as server:
        number = iter((3, 4, 5))
        server.session.field_manager = lambda: f"leader-{next(number)}"
        await server.session.create("/x", {})
        await server.session.create("/x", {}, params={"dryRun": "All"})
        await server.session.get("/x")
        await server.session.patch("/x", {})
        await server.session.request("PATCH", "/x/status", body=Patch(STRATEGIC_PATCH, {}))
        assert server.seen == [
            "POST /x?fieldManager=leader-3", "POST /x?fieldManager=leader-4&dryRun=All", "GET /x", "PATCH /x",
            "PATCH /x/status?fieldManager=leader-5",
        ]  # fmt: skip


async def test_requests_in_flight_are_bounded_and_who_waits_too_long_was_not_sent() -> None:
    in_flight, peak = 0, 0
    release = asyncio.Event()

    async def holds(request: web.Request) -> web.StreamResponse:
        nonlocal in_flight, peak
        in_flight += 1
        peak = max(peak, in_flight)
        await release.wait()
        in_flight -= 1
        return web.json_response({})

    settings = SessionSettings(attempts=1, max_requests=5)
    async with faulty([holds], settings) as server:
        crowd = [asyncio.create_task(server.session.get(f"/{number}")) for number in range(30)]
        await server.asked(5)
        with pytest.raises(Unreachable, match=r"in flight for 0\.2 s"):  # and not OutcomeUnknown
            await server.session.create("/x", {}, timeout_seconds=0.2)
        release.set()
        await asyncio.gather(*crowd)
        assert peak == 5
        assert "POST /x" not in server.seen


async def test_the_time_that_a_request_waits_for_others_is_a_part_of_its_own() -> None:
    release = asyncio.Event()

    async def holds(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    settings = SessionSettings(attempts=1, max_requests=1, request_timeout_seconds=3600)
    async with faulty([holds], settings) as server:
        first = asyncio.create_task(server.session.get("/x"))
        await server.asked(1)
        late = asyncio.create_task(server.session.create("/y", {}, timeout_seconds=100))
        await eventually(lambda: server.session._transport._slots._waiters)
        pass_time(60.0)
        first.cancel()
        await server.asked(2)
        pass_time(45.0)
        with pytest.raises(OutcomeUnknown):
            async with asyncio.timeout(20):
                await late
        release.set()


def a_page(number: int, more: str = "") -> object:
    return says(200, {"metadata": {"resourceVersion": "7", "continue": more}, "items": [number]})


async def test_the_next_page_of_a_list_is_on_its_way_while_one_is_taken_in() -> None:
    async with faulty([a_page(1, "b"), a_page(2, "c"), a_page(3)]) as server:
        seen = []
        async for page in server.session.pages("/x"):
            seen += page["items"]
            await server.asked(min(len(seen) + 1, 3))
        assert seen == [1, 2, 3]
        assert [path.rpartition("=")[2] for path in server.seen] == ["500", "b", "c"]


async def test_a_page_that_is_refused_ends_the_list_after_those_before_it() -> None:
    async with faulty([a_page(1, "b"), refuses(410, "Expired")]) as server:
        seen = []
        with pytest.raises(Gone):
            async for page in server.session.pages("/x"):
                seen += page["items"]
        assert seen == [1]


async def test_who_leaves_a_list_early_leaves_no_request_behind() -> None:
    async with faulty([a_page(1, "b"), hangs]) as server:
        pages = server.session.pages("/x")
        async for _ in pages:
            await server.asked(2)
            break
        await pages.aclose()
        assert "read_pages.<locals>.read" not in [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
