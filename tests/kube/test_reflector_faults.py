from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.kube import Object, Reflector, ReflectorSettings, Resource, transport
from concerto.kube.reflector import IN_A_TURN, StorageWentBack
from concerto.kube.transport import ConnectionLost, read_lines
from support.faulty_server import Answer, faulty, refuses, resets, says, streams
from support.loop_clock import pass_time
from support.traced_memory import traced_memory
from support.waiting import eventually

THINGS = Resource("", "v1", "things", "Thing", True)
QUICK = ReflectorSettings(first_backoff_seconds=0.001, max_backoff_seconds=0.01)


def thing(name: str, version: int, uid: str | None = None, **more: Any) -> Object:
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **more}


def page(version: int, *items: Object, more: str = "") -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    return says(200, {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})


def event(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def error(code: int, reason: str) -> bytes:
    return event("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": reason})


async def for_ever(request: web.Request) -> None:
    await asyncio.sleep(60)


async def breaks(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def follow(
    answers: list[Any],
    until: Callable[[Reflector], bool],
    trim: Callable[[Object], Object] | None = None,
    settings: ReflectorSettings = QUICK,
) -> tuple[Reflector, list[str], list[str]]:
    """What a reflector reported, and what it asked for, until ``until`` holds."""
    reported: list[str] = []

    def report(old: Object | None, new: Object | None) -> None:
        item = new or old
        assert item is not None
        reported.append(
            f"{'+' if old is None else '-' if new is None else '~'}{item['metadata']['uid'].removeprefix('uid-')}"
        )
        if until(reflector):
            done.set()

    done = asyncio.Event()
    async with faulty(answers) as server:
        reflector = Reflector(server.session, THINGS, on_change=report, settings=settings, trim=trim)
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(20):
                finished = asyncio.ensure_future(done.wait())
                await asyncio.wait({finished, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        asked = [request.split("?")[1].split("&") for request in server.seen]
        return (
            reflector,
            reported,
            [next((p for p in params if p.startswith("resourceVersion")), kind_of_list(params)) for params in asked],
        )


def kind_of_list(params: list[str]) -> str:
    return "look back" if "limit=1" in params else "list"


def has(*names: str) -> Callable[[Reflector], bool]:
    return lambda reflector: {name for _, name in reflector.store} == set(names)


# What the first watch does, and what is asked for next
ENDINGS = {
    "ends properly after an event": (streams(event("ADDED", thing("b", 6))), "resourceVersion=6"),
    "ends properly after a bookmark": (streams(event("BOOKMARK", thing("", 8))), "resourceVersion=8"),
    "breaks": (streams(event("ADDED", thing("b", 6)), then=breaks), "look back", "resourceVersion=6"),
    "breaks in the middle of a line": (
        streams(event("ADDED", thing("b", 6)), event("DELETED", thing("a", 7))[:30], then=breaks),
        "look back",
        "resourceVersion=6",
    ),
    "is refused for a while": (refuses(429, "TooManyRequests"), "resourceVersion=5"),
    "is not ready": (refuses(503, "ServiceUnavailable"), "look back", "resourceVersion=5"),
    "breaks before it begins": (resets, "look back", "resourceVersion=5"),
    "is refused as too old": (refuses(410, "Expired"), "list"),
    "says that it is too old": (streams(event("ADDED", thing("b", 6)), error(410, "Expired")), "list"),
    "says that the server is in trouble": (streams(event("ADDED", thing("b", 6)), error(500, "InternalError")), "list"),
    "is refused as being from the future": (refuses(504, "Timeout"), "list"),
    "holds garbage": (streams(b"{not json}\n"), "list"),
    "holds something else than an event": (streams(b'{"kind": "Status"}\n'), "list"),
}


@pytest.mark.parametrize(("ending", "asked_next"), [(e[0], e[1:]) for e in ENDINGS.values()], ids=ENDINGS.keys())
async def test_after_a_watch_that(ending: Any, asked_next: tuple[str, ...]) -> None:
    after_list = [page(9, thing("a", 1), thing("c", 9)), streams(then=for_ever)]
    after_watch = [streams(event("ADDED", thing("c", 9)), then=for_ever)]
    looks_back = [page(6)] if asked_next[0] == "look back" else []
    answers = [page(5, thing("a", 1)), ending, *looks_back, *(after_list if asked_next == ("list",) else after_watch)]
    reflector, _, asked = await follow(answers, lambda r: ("ns", "c") in r.store)
    assert asked[: 2 + len(asked_next)] == ["list", "resourceVersion=5", *asked_next]
    if asked_next == ("list",):
        assert has("a", "c")(reflector)  # b is not in the list: it is gone


EXPIRED = streams(error(410, "Expired"))


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([resets, page(4)], "was at version 5, and is at 4 now"),
        ([EXPIRED, page(4, thing("a", 1))], "was at version 5, and is at 4 now"),
        ([EXPIRED, page(1_000_005, thing("a", 1))], "shows ns/a as it was before"),
        ([EXPIRED, page(1_000_005, thing("a", 2), thing("ended", 3))], "shows ns/ended as it was before"),
    ],
    ids=[
        "revisions are lower after the server was away",
        "revisions are lower in a new list",
        "an object is older, though revisions go on higher",
        "an object has come back, though revisions go on higher",
    ],
)
async def test_a_storage_that_was_restored_is_seen_and_ends_all_that_was_concluded(answers, words) -> None:
    async with faulty([page(5, thing("a", 2)), *answers]) as server:
        with pytest.raises(StorageWentBack, match=words):
            async with asyncio.timeout(20):
                await Reflector(server.session, THINGS, settings=QUICK).run()


async def test_a_collection_in_which_nothing_happens_is_watched_without_a_pause() -> None:
    """Else what happens first after a long quiet would be seen half a minute late."""
    settings = ReflectorSettings(inactivity_seconds=0.1, first_backoff_seconds=3600, max_backoff_seconds=3600)
    quiet = [streams(b" ", then=for_ever)] * 6
    async with faulty([page(5), *quiet, streams(event("ADDED", thing("a", 6)), then=for_ever)]) as server:
        reflector = Reflector(server.session, THINGS, settings=settings)
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(60):
                await server.asked(8)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def initial_end(version: int) -> bytes:
    """The bookmark after which a watch has shown all objects that there are."""
    found = thing("", version)
    found["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
    return event("BOOKMARK", found)


TOO_LONG = [page(5, thing("a", 1), more="token"), refuses(410, "Expired")]
"""A list that takes longer than etcd remembers."""


def then_too_long(version: int, later: int, item: Object) -> list[Any]:
    """A list with the object, and one at a later version that takes too long: the next comes as the first events."""
    return [
        page(version, item),
        streams(error(410, "Expired")),
        page(later, item, more="token"),
        refuses(410, "Expired"),
    ]


async def test_a_list_that_takes_too_long_comes_as_the_beginning_of_a_watch_and_nothing_of_it_is_believed() -> None:
    everything = streams(
        event("ADDED", thing("b", 2)),
        event("ADDED", thing("gone", 3)),
        event("BOOKMARK", thing("", 4)),
        event("ADDED", thing("c", 4)),
        event("MODIFIED", thing("b", 6)),
        event("DELETED", thing("gone", 7)),
        initial_end(7),
        event("ADDED", thing("d", 8)),  # a watch from version 7 shows it
        then=for_ever,
    )
    answers = [*TOO_LONG, everything, streams(event("ADDED", thing("d", 8)), then=for_ever)]
    reflector, reported, asked = await follow(answers, has("b", "c", "d"))
    assert reported == ["+b", "+c", "+d"]
    assert reflector.store["ns", "b"]["metadata"]["resourceVersion"] == "6"
    assert asked[2:] == ["resourceVersionMatch=NotOlderThan", "resourceVersion=7"]


NO_STREAM = {
    "refused": refuses(422, "Invalid"),
    "broken": streams(event("ADDED", thing("b", 2)), then=breaks),
    "ended too soon": streams(event("ADDED", thing("b", 2))),
    "ended by an error": streams(event("ADDED", thing("b", 2)), error(500, "InternalError")),
    "no watch": streams(b"{}\n"),
}


@pytest.mark.parametrize("answer", NO_STREAM.values(), ids=NO_STREAM.keys())
async def test_where_that_fails_the_next_list_comes_in_pages(answer: Any) -> None:
    answers = [*TOO_LONG, answer, page(7, thing("c", 7)), streams(then=for_ever)]
    _, reported, asked = await follow(answers, has("c"))
    assert reported == ["+c"]
    assert asked[2:4] == ["resourceVersionMatch=NotOlderThan", "list"]


STREAMS = replace(QUICK, streams=True)
COUNT = 3000


async def test_large_collections_come_as_the_beginning_of_a_watch() -> None:
    everything = streams(event("ADDED", thing("a", 1)), initial_end(7))
    answers = [everything, streams(event("ADDED", thing("b", 8)), then=for_ever)]
    _, reported, asked = await follow(answers, has("a", "b"), settings=STREAMS)
    assert reported == ["+a", "+b"]
    assert asked == ["resourceVersionMatch=NotOlderThan", "resourceVersion=7"]


@pytest.mark.parametrize("answer", NO_STREAM.values(), ids=NO_STREAM.keys())
async def test_where_that_fails_one_list_comes_in_pages_and_the_next_does_not(answer: Any) -> None:
    gone = streams(error(410, "Expired"))
    everything = streams(event("ADDED", thing("c", 7)), initial_end(9))
    answers = [answer, page(7, thing("c", 7)), gone, everything, streams(event("ADDED", thing("d", 10)), then=for_ever)]
    _, reported, asked = await follow(answers, has("c", "d"), settings=STREAMS)
    assert reported == ["+c", "+d"]
    streamed = "resourceVersionMatch=NotOlderThan"
    assert asked == [streamed, "list", "resourceVersion=7", streamed, "resourceVersion=9"]


async def test_what_has_not_changed_is_not_reported_again_by_the_beginning_of_a_watch() -> None:
    answers = [
        page(5, thing("same", 1), thing("new", 1), thing("old", 1)),
        streams(error(410, "Expired")),
        page(7, thing("same", 1), more="token"),
        refuses(410, "Expired"),
        streams(event("ADDED", thing("same", 1)), event("ADDED", thing("new", 8)), initial_end(9)),
        streams(event("ADDED", thing("last", 10)), then=for_ever),
    ]
    _, reported, _ = await follow(answers, lambda r: ("ns", "last") in r.store)
    assert reported == ["+same", "+new", "+old", "-old", "~new", "+last"]


async def test_what_has_not_changed_is_not_kept_twice_while_the_beginning_of_a_watch_comes_in() -> None:
    kept: list[str] = []

    def trim(item: Object) -> Object:
        kept.append(item["metadata"]["name"])
        return item

    answers = [
        *then_too_long(5, 7, thing("a", 1)),
        streams(event("ADDED", thing("a", 1)), event("ADDED", thing("b", 8)), initial_end(9)),
        streams(then=for_ever),
    ]
    await follow(answers, has("a", "b"), trim)
    assert kept == ["a", "b"]


async def test_an_object_that_the_beginning_of_a_watch_shows_as_it_was_and_then_as_it_is_is_no_other_state() -> None:
    answers = [
        *then_too_long(5, 5, thing("a", 5)),
        streams(event("ADDED", thing("a", 3)), event("MODIFIED", thing("a", 5)), initial_end(6)),
        streams(event("ADDED", thing("b", 7)), then=for_ever),
    ]
    _, reported, _ = await follow(answers, has("a", "b"))
    assert reported == ["+a", "+b"]


async def test_a_storage_that_was_restored_is_seen_in_the_beginning_of_a_watch_too() -> None:
    answers = [
        *then_too_long(50, 60, thing("a", 40)),
        streams(event("ADDED", thing("a", 40)), event("ADDED", thing("b", 30)), initial_end(70)),
    ]
    with pytest.raises(StorageWentBack):
        await follow(answers, has("a", "b"))


async def test_everybody_gets_turns_while_consumers_take_in_many_objects_and_ends() -> None:
    reported = longest = 0

    def report(old: Object | None, new: Object | None) -> None:
        nonlocal reported
        reported += 1

    async def take_turns() -> None:
        nonlocal reported, longest
        while True:
            longest, reported = max(longest, reported), 0
            await asyncio.sleep(0)

    last = thing("last", COUNT + 2)
    answers = [
        page(COUNT, *(thing(str(number), 1 + number) for number in range(COUNT))),
        refuses(410, "Expired"),
        page(COUNT + 2, last),
        streams(then=for_ever),
    ]
    others = asyncio.ensure_future(take_turns())
    async with faulty(answers) as server:
        reflector = Reflector(server.session, THINGS, on_change=report, settings=QUICK)
        following = asyncio.create_task(reflector.run())
        try:
            await eventually(lambda: list(reflector.store) == [("ns", "last")])
        finally:
            for task in (others, following):
                task.cancel()
    assert 0 < longest <= IN_A_TURN


async def test_everybody_gets_turns_while_a_large_collection_is_compared_with_what_was_known() -> None:
    looks = most = 0

    class Metadata(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            nonlocal looks
            looks += 1
            return super().__getitem__(key)

    async def take_turns() -> None:
        nonlocal looks, most
        while True:
            most, looks = max(most, looks), 0
            await asyncio.sleep(0)

    def everything(first: int, end: int) -> Any:
        return streams(b"".join(event("ADDED", thing(str(n), first + n)) for n in range(COUNT)), initial_end(end))

    last = streams(event("ADDED", thing("last", 9 * COUNT)), then=for_ever)
    answers = [everything(1, 2 * COUNT), streams(error(410, "Expired")), everything(3 * COUNT, 5 * COUNT), last]
    others = asyncio.ensure_future(take_turns())
    try:
        done = ("ns", "last")
        await follow(answers, lambda at: done in at.store, lambda i: {"metadata": Metadata(i["metadata"])}, STREAMS)
    finally:
        others.cancel()
    assert 0 < most < 2 * COUNT  # of each object, more than two fields are looked at


async def test_differences_between_two_lists_are_reported_ends_first() -> None:
    answers = [
        page(5, thing("same", 1), thing("new", 1), thing("old", 1), thing("again", 1, uid="uid-1")),
        streams(error(410, "Expired")),
        page(9, thing("same", 1), thing("new", 8), thing("again", 9, uid="uid-2"), thing("last", 9)),
        streams(then=for_ever),
    ]
    _, reported, _ = await follow(answers, lambda r: ("ns", "last") in r.store)
    assert reported == ["+same", "+new", "+old", "+1", "-old", "~new", "-1", "+2", "+last"]


async def test_an_object_that_took_anothers_name_ends_the_other() -> None:
    answers = [
        page(5, thing("a", 1, uid="uid-1")),
        streams(event("MODIFIED", thing("a", 6, uid="uid-2")), event("DELETED", thing("unknown", 7)), then=for_ever),
    ]
    _, reported, _ = await follow(answers, lambda r: [i["metadata"]["uid"] for i in r.store.values()] == ["uid-2"])
    assert reported == ["+1", "-1", "+2"]


async def test_who_wants_a_fresh_view_does_not_wait_out_a_back_off() -> None:
    patient = ReflectorSettings(first_backoff_seconds=3600, max_backoff_seconds=3600)
    async with faulty([page(5), refuses(410, "Expired"), refuses(500, "InternalError")]) as server:
        reflector = Reflector(server.session, THINGS, settings=patient)
        task = asyncio.create_task(reflector.run())
        try:
            await server.asked(3)  # the list fails: the long wait begins
            server.script[:] = [page(7, thing("a", 6)), streams(then=for_ever)]
            async with asyncio.timeout(20):
                await reflector.refresh()
            assert has("a")(reflector)
        finally:
            task.cancel()


async def test_a_server_that_keeps_on_forgetting_is_not_listed_without_a_pause() -> None:
    patient = ReflectorSettings(first_backoff_seconds=3600, max_backoff_seconds=3600)
    async with faulty([page(5), refuses(410, "Expired"), page(6), refuses(410, "Expired"), page(7)]) as server:
        reflector = Reflector(server.session, THINGS, settings=patient)
        task = asyncio.create_task(reflector.run())
        await server.asked(4)
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done
        assert (reflector.lists, len(server.seen)) == (2, 4)
        task.cancel()


async def test_each_of_a_herd_of_clients_asks_once_before_it_backs_off() -> None:
    """An API server restarts: nobody's retries inside a back-off multiply what it is asked."""
    patient = ReflectorSettings(first_backoff_seconds=3600, max_backoff_seconds=3600)
    async with faulty([page(5), streams(then=for_ever)]) as server:
        reflectors = [Reflector(server.session, THINGS, settings=patient) for _ in range(40)]
        for reflector in reflectors:  # each has listed, and has lost its watch
            reflector._resource_version = reflector._seen_version = "5"
            reflector._broke_off = True
        server.script[:] = [refuses(503, "ServiceUnavailable")]
        tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
        await eventually(lambda: all(reflector._failures for reflector in reflectors))
        assert len(server.seen) == 40
        for task in tasks:
            task.cancel()


def test_a_herd_of_clients_comes_back_spread_over_twice_the_mean() -> None:
    draw = Random(1).uniform
    for failures, mean in ((0, 1.0), (1, 2.0), (9, 30.0)):
        settings = ReflectorSettings(first_backoff_seconds=1.0)
        waits = [settings.backoff_seconds(failures, None, draw) / mean for _ in range(1000)]
        assert [sum(i / 4 <= wait / 2 < (i + 1) / 4 for wait in waits) for i in range(4)] == pytest.approx(
            [250] * 4, 0.2
        )


def test_retry_after_is_never_cut_short() -> None:
    draw = Random(1).uniform
    waits = [ReflectorSettings(first_backoff_seconds=0.001).backoff_seconds(0, 32.0, draw) for _ in range(1000)]
    assert 32.0 <= min(waits) < 33.0
    assert 47.0 < max(waits) <= 48.0, "not all at that moment"


async def test_a_reflector_waits_as_long_as_the_server_asks_for() -> None:
    settings = ReflectorSettings(first_backoff_seconds=0.001)
    async with faulty([refuses(429, "TooManyRequests", {"Retry-After": "32"})]) as server:
        reflector = Reflector(server.session, THINGS, settings=settings)
        task = asyncio.create_task(reflector.run())
        await eventually(lambda: reflector._failures)
        pass_time(30.0)
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done
        assert len(server.seen) == 1
        pass_time(30.0)
        await server.asked(2)
        task.cancel()


class Chunks:
    """As much of a stream reader as `read_lines` asks for."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    async def readany(self) -> bytes:
        return self.chunks.pop(0) if self.chunks else b""


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda b: b.replace(b"\n", b"x"))), st.data())
async def test_lines_come_whole_wherever_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    bounds = [0, *cuts, len(whole)]
    chunks = [whole[a:b] for a, b in itertools.pairwise(bounds) if a != b]
    found = [line async for batch in read_lines(Chunks(chunks), "http://127.0.0.1") for line in batch]  # type: ignore[arg-type]
    assert found == lines


async def test_a_large_line_is_held_once_and_not_after_it_was_taken() -> None:
    """A pod may have 9 MiB of JSON, and an agent has 128 MiB of memory; the next event may come a minute later."""
    line = b"x" * 2**22 + b"\n"
    pieces = 64
    chunks = (line[n : n + len(line) // pieces + 1] for n in range(0, len(line), len(line) // pieces + 1))

    class Stream:
        async def readany(self) -> bytes:
            return next(chunks, b"") or await asyncio.get_running_loop().create_future()

    read = read_lines(Stream(), "http://127.0.0.1")  # type: ignore[arg-type]
    with traced_memory() as memory:
        (taken,) = await anext(read)
        assert line.startswith(taken)
        size = len(taken)
        del taken
        next_batch = asyncio.ensure_future(anext(read))
        await asyncio.sleep(0)
    next_batch.cancel()
    assert size == len(line) - 1
    assert memory.peak < 1.3 * size
    assert memory.held < 0.1 * size


async def test_of_a_line_without_end_little_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BYTES", 2**20)
    taken = 0

    class Stream:
        async def readany(self) -> bytes:
            nonlocal taken
            taken += 2**16
            return b"x" * 2**16

    with traced_memory() as memory, pytest.raises(ConnectionLost, match="a line of more than 1048576 bytes"):
        await anext(read_lines(Stream(), "http://127.0.0.1"))  # type: ignore[arg-type]
    assert taken <= 2**20 + 2**16
    assert memory.peak < 3 * 2**20


async def test_after_a_line_without_end_the_reflector_watches_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BYTES", 2**17)
    too_long = event("ADDED", thing("large", 2, text="x" * 2**18))
    answers = [
        page(1, thing("a", 1)), streams(event("ADDED", thing("b", 2)) + too_long, then=for_ever),
        page(2), streams(event("ADDED", thing("c", 3)), then=for_ever),
    ]  # fmt: skip
    _, reported, _ = await follow(answers, lambda reflector: ("ns", "c") in reflector.store)
    assert reported == ["+a", "+b", "+c"]


async def turns_of_slow_changes(answers: list[Answer], count: int) -> list[int]:
    """For each of so many changes, of which each takes 30 ms, how many turns another task has had before it."""
    turns = 0

    def takes_long(old: Object | None, new: Object | None) -> None:
        seen.append(turns)
        time.sleep(0.03)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    seen: list[int] = []
    async with faulty(answers) as server:
        reflector = Reflector(server.session, THINGS, on_change=takes_long, settings=QUICK)
        tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(others())]
        await eventually(lambda: len(seen) == count)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return seen


async def test_everybody_gets_turns_while_consumers_take_much_time_for_few_objects_of_a_list() -> None:
    """An object of 1.5 MiB may take 30 ms, whatever number of common ones are taken in at a time."""
    seen = await turns_of_slow_changes([page(5, *(thing(str(n), 1) for n in range(4))), streams(then=for_ever)], 4)
    assert len({*seen}) == 4


async def test_everybody_gets_turns_while_consumers_take_in_events_that_have_come_together() -> None:
    """The buffer of a stream holds 128 KiB: hundreds of events, each of which may take a millisecond and more."""
    together = b"".join(event("ADDED", thing(f"t{n}", 10 + n)) for n in range(8))
    seen = await turns_of_slow_changes([page(5, thing("first", 1)), streams(together, then=for_ever)], 9)
    assert len({*seen[1:]}) == 8, "each of them takes longer than a turn"
