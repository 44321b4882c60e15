from __future__ import annotations

import asyncio
import json
import re

import pytest
from aiohttp import web

from concerto.kube import ClusterConfig, Object, Session
from concerto.kube.events import EventRecorder, EventSettings, Occurrence, Reporter, build_event, build_reference
from support.event_recorders import running
from support.faulty_server import faulty, hangs_up, refuses, says
from support.step_counts import steps_of
from support.waiting import eventually


def pod(name: str, namespace: str = "ns") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7", "labels": {}},
        "spec": {},
    }


def test_a_reference_names_its_object_and_nothing_more() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u"}}
    assert build_reference(node) == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
    assert build_reference(pod("a")) == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "a", "uid": "uid-a", "resourceVersion": "7",
    }  # fmt: skip


NAMES = {
    "a short name": "a",
    "the longest name": "a" * 253,
    "one that is cut after a dash": "a" * 228 + "--" + "b" * 20,
    "one that is cut after a dot": "a" * 229 + "." + "b" * 20,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_an_event_lives_beside_its_object_under_a_name_of_its_own(name: str) -> None:
    def build(regarding: Object, suffix: str) -> Object:
        occurrence = Occurrence(regarding, "Normal", reason="Scheduled", note="done", action="Binding")
        return build_event(
            occurrence, Reporter("concerto.dev/scheduler", "host-1"), now=1_700_000_000.25, suffix=suffix
        )

    event = build(build_reference(pod(name)), "abc123")
    assert event["metadata"]["namespace"] == "ns"
    assert len(event["metadata"]["name"]) <= 253
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", part) for part in event["metadata"]["name"].split("."))
    assert event["metadata"]["name"] != build(build_reference(pod(name)), "abc124")["metadata"]["name"]
    assert event["eventTime"] == "2023-11-14T22:13:20.250000Z"

    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u"}}
    assert build(build_reference(node), "x")["metadata"]["namespace"] == "default"


def scheduled(recorder: EventRecorder, name: str, note: str = "done") -> None:
    recorder.record(pod(name), reason="Scheduled", note=note, action="Binding")


async def test_whether_other_writes_come_first_is_asked_once_for_events_that_are_sent_together() -> None:
    asked = 0

    def busy() -> bool:
        nonlocal asked
        asked += 1
        return False

    async with faulty([says(200, {})]) as server:
        recorder = EventRecorder(server.session, "test", "one", busy=busy)
        async with running(recorder):
            for number in range(30):
                scheduled(recorder, f"p{number}")
            assert await recorder.drain(10)
    assert recorder.written == 30
    assert 1 <= asked <= 6


async def test_a_full_queue_drops_counts_before_events_and_the_oldest_first() -> None:
    bodies: list[Object] = []

    async def takes(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.Response(text="{}")

    async with faulty([takes]) as server:
        settings = EventSettings(queue_length=3, concurrency=1)
        recorder = EventRecorder(server.session, "test", "one", settings=settings)
        async with running(recorder):
            scheduled(recorder, "repeated")
            assert await recorder.drain(10)
        # nobody writes just now
        for name in ("repeated", "b", "c", "d", "e"):
            scheduled(recorder, name)
        assert recorder.dropped == 1  # "b": the count of "repeated" comes later
        bodies.clear()
        async with running(recorder):
            assert await recorder.drain(10)
        *events, count = bodies
        assert [event["regarding"]["name"] for event in events] == ["c", "d", "e"]
        assert count["series"]["count"] == 2


async def test_a_namespace_with_many_events_that_wait_loses_some_of_its_own() -> None:
    async with await Session.open(ClusterConfig("http://127.0.0.1:1")) as session:
        recorder = EventRecorder(session, "test", "one", settings=EventSettings(queue_length=5))
        recorder.record(pod("one", "quiet"), reason="Scheduled", note="done", action="Binding")
        for i in range(100):
            scheduled(recorder, f"pod-{i}")
        assert recorder.dropped == 96
        assert [each.namespace for each in recorder._series.values()].count("quiet") == 1


@pytest.mark.parametrize("hanging", [1, 40])
async def test_events_whose_writes_hang_keep_none_of_another_namespace_from_being_written(hanging: int) -> None:
    """Five such namespaces kept all others from theirs."""
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/namespaces/stuck" in request.path:
            await release.wait()
        return web.json_response({}, status=201)

    def record(name: str, namespace: str) -> None:
        recorder.record(pod(name, namespace), reason="Scheduled", note="done", action="Binding")

    async with faulty([answer]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            record("first", "quiet")
            assert await recorder.drain(10)
            for i in range(hanging):
                for number in range(100 // hanging):
                    record(f"pod-{i}-{number}", f"stuck{i}")
            await server.asked(1 + min(hanging, 4))
            record("second", "quiet")
            try:
                await eventually(lambda: recorder.written == 2)
                assert sum("/namespaces/stuck" in line for line in server.seen) <= 4
            finally:
                release.set()
            assert await recorder.drain(20)
            assert recorder.written == 2 + hanging * (100 // hanging)


async def steps_of_an_event_beside(namespaces: int) -> int:
    """To record it, and to see whether one may be written: events of so many namespaces wait for their places."""
    release = asyncio.Event()

    async def hangs(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response(status=201, text="{}")

    async with faulty([hangs]) as server:
        recorder = EventRecorder(server.session, "test", "one")

        def record() -> None:
            scheduled(recorder, "another")
            assert recorder._has_turn

        async with running(recorder):
            for i in range(namespaces):
                recorder.record(pod(f"p{i}", f"n{i}"), reason="Scheduled", note="done", action="Binding")
            await server.asked(recorder._settings.concurrency // 4)
            await eventually(lambda: not recorder._has_turn)
            steps = steps_of(record)
        release.set()
        return steps


async def test_an_event_costs_no_more_where_events_of_many_namespaces_wait() -> None:
    assert await steps_of_an_event_beside(200) == await steps_of_an_event_beside(20)


async def test_recording_does_not_wait_for_a_server_that_is_away() -> None:
    async with await Session.open(ClusterConfig("http://127.0.0.1:1")) as session:
        recorder = EventRecorder(session, "test", "one", settings=EventSettings(queue_length=5))
        for i in range(1000):
            scheduled(recorder, f"pod-{i}")
        assert recorder.dropped == 995
        assert not await recorder.drain(0.01)


async def test_what_is_said_again_while_it_is_written_is_counted_afterwards() -> None:
    seen: list[Object] = []
    being_written, release = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        being_written.set()
        await release.wait()
        return web.Response(status=201, text="{}")

    async with faulty([slow]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            scheduled(recorder, "a")
            await being_written.wait()
            for _ in range(3):
                scheduled(recorder, "a")
            release.set()
            assert await recorder.drain(10)
        assert [request.split()[0] for request in server.seen] == ["POST", "PATCH"]
        assert seen[1]["series"]["count"] == 4


async def test_a_creation_of_unknown_outcome_is_tried_once_more_under_the_same_name() -> None:
    names: list[str] = []

    async def lost(request: web.Request) -> web.StreamResponse:
        names.append((await request.json())["metadata"]["name"])
        return await hangs_up(request)

    async def taken(request: web.Request) -> web.StreamResponse:
        names.append((await request.json())["metadata"]["name"])
        body = {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "it exists"}
        return web.Response(status=409, text=json.dumps(body))

    async with faulty([lost, taken]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            scheduled(recorder, "a")
            assert await recorder.drain(10)
        assert (recorder.written, recorder.dropped) == (1, 0)
        assert names[0] == names[1]


async def test_an_event_that_nobody_takes_is_counted_and_forgotten() -> None:
    async with faulty([refuses(403, "Forbidden"), says(201)]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            scheduled(recorder, "a")
            assert await recorder.drain(10)
            assert (recorder.written, recorder.dropped) == (0, 1)
            scheduled(recorder, "b")
            assert await recorder.drain(10)
            assert (recorder.written, recorder.dropped) == (1, 1)


TERMINATING = "events is forbidden: unable to create new content in namespace x because it is being terminated"


@pytest.mark.parametrize(("status", "reason", "message"), [(403, "Forbidden", TERMINATING), (404, "NotFound", "gone")])
async def test_an_event_of_a_namespace_that_is_deleted_is_no_loss(status: int, reason: str, message: str) -> None:
    refused = {"kind": "Status", "reason": reason, "message": message, "code": status}
    async with faulty([says(status, refused)]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            scheduled(recorder, "a")
            assert await recorder.drain(10)
            assert (recorder.written, recorder.dropped) == (0, 0)


async def test_a_series_that_the_server_has_forgotten_begins_anew() -> None:
    async with faulty([says(201), refuses(404, "NotFound"), says(201)]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            for _ in range(2):
                scheduled(recorder, "a")
                assert await recorder.drain(10)
        assert [request.split()[0] for request in server.seen] == ["POST", "PATCH", "POST"]


async def test_another_note_is_another_event() -> None:
    async with faulty([says(201)]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            scheduled(recorder, "a", "0/3 nodes are available")
            scheduled(recorder, "a", "0/4 nodes are available")
            scheduled(recorder, "b", "0/4 nodes are available")
            assert await recorder.drain(10)
        assert [request.split()[0] for request in server.seen] == ["POST"] * 3


@pytest.mark.parametrize("note", ["x" * 5000, "ü" * 5000, "x" + "🎵" * 300])
async def test_a_note_too_long_for_the_server_is_cut(note: str) -> None:
    notes: list[str] = []

    async def takes(request: web.Request) -> web.StreamResponse:
        notes.append((await request.json())["note"])
        return web.Response(text="{}")

    async with faulty([takes]) as server:
        recorder = EventRecorder(server.session, "test", "one")
        async with running(recorder):
            scheduled(recorder, "a", note)
            assert await recorder.drain(10)
    assert 1020 < len(notes[0].encode()) <= 1024
    assert notes[0][-1] == "…"
    assert note.startswith(notes[0][:-1])


async def test_a_series_that_begins_again_is_not_the_first_to_be_forgotten() -> None:
    async with await Session.open(ClusterConfig("http://127.0.0.1:1")) as session:
        settings = EventSettings(max_series=2, series_window_seconds=-1.0)  # so that nothing joins a series
        recorder = EventRecorder(session, "test", "one", settings=settings)
        for name in ("a", "b", "a", "c"):
            scheduled(recorder, name)
        assert [key[0] for key in recorder._series] == ["uid-a", "uid-c"]
