"""A pod whose type does not fit gets an event: once for each reason, and not again by a restart of the operator."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from concerto.controllers.pinning.fit_events import FitEvents
from concerto.kube.events import EventRecorder
from support.faulty_server import faulty

KEY = ("default", "b")


def binding(reason: str | None, uid: str = "pod-uid") -> dict[str, object]:
    conditions = []
    if reason is not None:
        status = "True" if reason == "AsLabelled" else "False"
        conditions = [{"type": "WorkloadTypeFits", "status": status, "reason": reason, "message": f"It is {reason}."}]
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodCPUBinding",
        "metadata": {"name": "b", "namespace": "default", "uid": "u"},
        "spec": {"podName": "p"},
        "status": {"applied": {"podUID": uid}, "conditions": conditions},
    }


async def events(*seen: dict[str, object] | None) -> list[tuple[str, str, str]]:
    """Reason, note and the pod's UID of the events about a binding that was seen like this, one after the other."""
    written: list[tuple[str, str, str]] = []

    async def server(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if request.method == "POST":
            written.append((body["reason"], body["note"], body["regarding"]["uid"]))
        return web.json_response(body)

    async with faulty([server]) as made:
        recorder = EventRecorder(made.session, component="c", instance="i")
        reporter = FitEvents(recorder)
        for obj in seen:
            reporter.seen(KEY, obj)
        writing = asyncio.create_task(recorder.run())
        assert await recorder.drain(20.0)
        writing.cancel()
    return written


IDLE = ("WorkloadTypeSuggested", "It is MostlyIdle.", "pod-uid")


async def test_a_type_that_does_not_fit_is_reported_once():
    assert await events(binding(None), binding("AsLabelled"), binding("MostlyIdle"), binding("MostlyIdle")) == [IDLE]


async def test_another_reason_or_another_pod_is_reported_again():
    found = await events(binding(None), binding("MostlyIdle"), binding("WaitsForIO"), binding("WaitsForIO", "other"))
    assert [(note, uid) for _, note, uid in found] == [
        ("It is MostlyIdle.", "pod-uid"),
        ("It is WaitsForIO.", "pod-uid"),
        ("It is WaitsForIO.", "other"),
    ]


async def test_what_was_so_before_the_operator_started_is_not_reported_again():
    assert await events(binding("MostlyIdle"), binding("MostlyIdle"), None, binding("MostlyIdle")) == []
