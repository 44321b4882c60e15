"""What the API server may answer while a cycle is stored and bound, and objects that nobody can read."""

from __future__ import annotations

import asyncio
import json

import pytest

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, build_placement_record
from concerto.controllers.runtime.prerequisites import missing_kinds, read_owners
from concerto.controllers.scheduling import placement_records
from concerto.controllers.scheduling.binder import BinderSettings, BindResult, bind
from concerto.controllers.scheduling.placement_records import PlacementRecord, discard, store
from concerto.controllers.scheduling.unschedulable import ReporterSettings
from concerto.kube.confirmed_writes import WriteSettings
from concerto.scheduling.state.changes import Change
from support.faulty_server import Faulty, faulty, hangs_up, refuses, resets, says
from support.scheduler_builders import scheduling
from support.waiting import eventually

QUICK = BinderSettings(timeout_seconds=1.0, first_backoff_seconds=0.001, max_backoff_seconds=0.01)
NOW = "2026-03-01T12:00:00Z"


def assignments(count: int) -> list[Assignment]:
    return [Assignment("default", f"p{i}", f"uid-{i}", "n1", "Capacity", "42", 9.0) for i in range(count)]


def stored(count: int) -> dict[str, object]:
    body = build_placement_record("concerto-system", "b", assignments(count))
    return body | {"metadata": body["metadata"] | {"uid": "record", "resourceVersion": "7"}}


def pod(node: str = "", uid: str = "uid-0", phase: str = "Pending") -> dict[str, object]:
    spec = {"schedulerName": "concerto", "containers": [{"name": "c"}]} | ({"nodeName": node} if node else {})
    metadata = {"namespace": "default", "name": "p0", "uid": uid, "creationTimestamp": NOW, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


async def creates(request):
    """201 with the object as it was sent."""
    body = await request.json()
    return await says(201, body | {"metadata": body["metadata"] | {"uid": "record", "resourceVersion": "7"}})(request)


def posts(server: Faulty) -> int:
    return sum(line.startswith("POST") for line in server.seen)


@pytest.mark.parametrize(
    ("sentence", "script", "result", "most_posts"),
    [
        ("lost, and done", [resets, says(200, pod("n1"))], BindResult.BOUND, 1),
        ("lost, and not done", [hangs_up, says(200, pod()), says(201)], BindResult.BOUND, 2),
        ("500, and done", [refuses(500, "InternalError"), says(200, pod("n1"))], BindResult.BOUND, 1),
        ("not JSON, then done", [says(201, "<html>"), says(200, "<html>"), says(201)], BindResult.BOUND, 2),
        ("429", [refuses(429, "TooManyRequests"), says(201)], BindResult.BOUND, 2),
        ("409, and ours", [refuses(409, "Conflict"), says(200, pod("n1"))], BindResult.BOUND, 1),
        ("409, another's", [refuses(409, "Conflict"), says(200, pod("n2"))], BindResult.ELSEWHERE, 1),
        ("409, and gone", [refuses(409, "Conflict"), refuses(404, "NotFound")], BindResult.GONE, 1),
        ("409, another pod", [refuses(409, "Conflict"), says(200, pod(uid="new"))], BindResult.GONE, 1),
        ("409, and unbound", [refuses(409, "Conflict"), says(200, pod())], BindResult.REFUSED, 1),
        ("404", [refuses(404, "NotFound")], BindResult.GONE, 1),
        ("403", [refuses(403, "Forbidden")], BindResult.REFUSED, 1),
        (
            "done unheard, and the second attempt is forbidden",
            [hangs_up, says(200, pod()), refuses(403, "Forbidden"), says(200, pod("n1"))],
            BindResult.BOUND,
            2,
        ),
    ],
)
async def test_a_binding_ends_as_the_pod_says(sentence, script, result, most_posts):
    async with faulty(script) as server:
        outcome = await bind(server.session, PodView.from_raw(pod()), "n1", QUICK)
        assert outcome.result is result, sentence
        assert posts(server) == most_posts


@pytest.mark.parametrize(
    ("sentence", "script", "confirmed", "most_posts"),
    [
        ("done, unheard", [resets, says(200, stored(4))], 4, 1),
        ("lost", [hangs_up, refuses(404, "NotFound"), says(201, stored(4))], 4, 2),
        ("not JSON at all", [says(201, "<html>"), says(200, "<html>"), says(201, stored(4))], 4, 2),
        ("too many requests", [refuses(429, "TooManyRequests")] * 3 + [says(201, stored(4))], 4, 4),
        ("the namespace is gone", [refuses(404, "NotFound")], 0, 1),
        ("no right", [refuses(403, "Forbidden")], 0, 1),
        ("no longer known", [refuses(401, "Unauthorized")], 0, 1),
        ("one is bad, and found by halves", [refuses(422, "Invalid")] * 3 + [creates], 3, 7),
    ],
)
async def test_a_record_is_stored_or_refused_and_the_server_is_not_overrun(
    sentence, script, confirmed, most_posts, monkeypatch
):
    monkeypatch.setattr(placement_records, "_RETRY", WriteSettings(0.01, 0.01))
    async with faulty(script) as server:
        records, refused = await store(server.session, "concerto-system", "b", assignments(4))
        assert sum(len(r.assignments) for r in records) == confirmed, sentence
        assert len(refused) == 4 - confirmed
        assert posts(server) <= most_posts


async def test_a_process_that_no_longer_leads_stores_nothing():
    async with faulty([hangs_up, refuses(404, "NotFound")]) as server:
        work = store(server.session, "concerto-system", "b", assignments(1), may_write=lambda: not posts(server))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await work
        assert posts(server) == 1


WEBHOOK_DOWN = {
    "kind": "Status",
    "code": 500,
    "reason": "InternalError",
    "message": 'failed calling webhook "validate.kyverno": connection refused',
}


async def test_a_webhook_that_is_down_is_reported_on_the_pods_and_in_the_log_and_keeps_no_pod_for_ever(caplog):
    async def answer(request):
        return await (says(500, WEBHOOK_DOWN) if request.method == "POST" else refuses(404, "NotFound"))(request)

    async with faulty([answer]) as server:
        made = scheduling(server.session)
        notes = recorded_notes(made)
        made.informers.nodes.on_change(None, node("n1"))
        made.informers.pods.on_change(None, pod())
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: "The placement record could not be written" in "".join(notes))
        await stopped(running)
        assert "failed calling webhook" in "".join(notes)
        assert "no pod can be placed" in caplog.text
        assert not made.parts.cluster.nodes.avoided.any(), "the node is not to blame"
        text = made.context.metrics.render().decode()
        assert 'concerto_write_failures_total{reason="Webhook",write="PlacementRecord"} 3.0' in text


async def test_a_server_that_is_in_trouble_for_long_is_reported_on_the_pods_while_it_lasts(monkeypatch):
    monkeypatch.setattr(placement_records, "_RECORD_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(placement_records, "_RETRY", WriteSettings(0.01, 0.01))

    async with faulty([hangs_up]) as server:
        made = scheduling(server.session)
        notes = recorded_notes(made)
        made.informers.nodes.on_change(None, node("n1"))
        made.informers.pods.on_change(None, pod())
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: notes)
        await stopped(running)
        assert "is tried again" in notes[0]


async def test_a_node_on_which_no_placement_can_be_stored_is_avoided_and_the_pod_goes_elsewhere():
    async def answer(request):
        if request.method == "POST" and request.path.endswith("podreservations"):
            body = await request.json()
            bad = any(a["node"] == "bad" for a in body["spec"]["assignments"])
            return await (refuses(422, "Invalid") if bad else creates)(request)
        return await says(201)(request)

    async with faulty([answer]) as server:
        now = [1000.0]
        made = scheduling(server.session, lambda: now[0])
        made.informers.nodes.on_change(None, node("bad", cpu="64"))
        made.informers.pods.on_change(None, pod())
        running = asyncio.create_task(made.scheduler.run())
        await eventually(made.parts.cluster.nodes.avoided.any)
        made.informers.nodes.on_change(None, node("good"))
        now[0] += 5  # the pod's own wait
        made.parts.pending.work.set()
        await eventually(lambda: made.parts.records.assignment_of("uid-0"))
        await stopped(running)
        assert made.parts.records.assignment_of("uid-0").node == "good"
        assert made.parts.cluster.end_avoidance(1000.0 + 29) == Change.NOTHING
        assert made.parts.cluster.end_avoidance(1000.0 + 30) == Change.NODE
        assert not made.parts.cluster.nodes.avoided.any()


async def test_a_pod_that_is_never_bound_has_the_condition_of_a_pod_without_a_node():
    conditions = []

    async def answer(request):
        if request.path.endswith("/binding"):
            return await refuses(403, "Forbidden")(request)
        if request.method == "PATCH" and request.path.endswith("/status"):
            conditions.extend((await request.json())["status"].get("conditions", ()))
        return await (creates if request.path.endswith("podreservations") else says(200, pod()))(request)

    async with faulty([answer]) as server:
        made = scheduling(server.session)
        made.parts.reporter._settings = ReporterSettings(patience_seconds=0.0)
        made.informers.nodes.on_change(None, node("n1"))
        made.informers.pods.on_change(None, pod())
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: conditions)
        await stopped(running)
        assert (conditions[0]["status"], conditions[0]["reason"]) == ("False", "SchedulerError")
        assert conditions[0]["message"].startswith("Binding to n1 was rejected")


def recorded_notes(made) -> list[str]:
    """The notes of events, as they are recorded."""
    notes: list[str] = []
    record = made.context.recorder.record

    def note_and_record(*args, **kwargs):
        notes.append(kwargs["note"])
        record(*args, **kwargs)

    made.context.recorder.record = note_and_record
    return notes


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("answer", [says(200, "<html>"), refuses(403, "Forbidden"), refuses(503, "ServiceUnavailable")])
async def test_a_record_that_can_not_be_deleted_now_is_kept_for_later(answer):
    record = PlacementRecord("b", "record", "7", tuple(assignments(1)))
    async with faulty([refuses(409, "Conflict"), answer]) as server:
        assert await discard(server.session, "concerto-system", record) is False


def node(name: str, **allocatable: object) -> dict[str, object]:
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"} | allocatable, "conditions": [ready]},
    }


BROKEN_POD = pod(uid="uid-x") | {"spec": {"schedulerName": "concerto", "containers": [{"resources": {"requests": {"cpu": "?"}}}]}}  # fmt: skip # noqa: E501


async def test_one_object_that_nobody_can_read_does_not_keep_the_others_waiting():
    async with faulty([refuses(500, "InternalError")]) as server:
        made = scheduling(server.session)
        made.informers.nodes.on_change(None, node("n1"))
        made.informers.nodes.on_change(None, node("n2"))
        made.informers.nodes.on_change(node("n2"), node("n2", cpu="?"))
        made.informers.pods.on_change(None, BROKEN_POD)
        made.informers.pods.on_change(None, pod("n1", uid="uid-y"))
        made.informers.on_capacity(
            None, {"metadata": {"name": "n1", "resourceVersion": "1"}, "status": {"observedAt": 7}}
        )
        made.informers.on_reservation(None, stored(1) | {"spec": {"assignments": [{"uid": "?"}]}})
        assert [n for n in ("n1", "n2") if made.parts.cluster.nodes.exists[made.parts.cluster.row_of.get(n, -1)]] == [
            "n1"
        ]
        assert "uid-x" not in made.parts.pending.queue
        made.informers.pods.on_change(BROKEN_POD, pod(uid="uid-x"))
        assert "uid-x" in made.parts.pending.queue, "mended, and waiting like any other"
        text = made.context.metrics.render().decode()
        for kind in ("Node", "Pod", "NodeCapacity", "PodReservation"):
            assert f'concerto_unreadable_objects_total{{kind="{kind}"}} 1.0' in text


@pytest.mark.parametrize("amount", ["9223372036854775807", "-9223372036854775807"])
async def test_the_largest_amounts_that_the_api_server_takes_break_nothing(amount):
    huge = [{"name": "c", "resources": {"requests": {"cpu": amount, "memory": amount, "a.b/c": amount}}}]
    async with faulty([refuses(500, "InternalError")]) as server:
        made = scheduling(server.session)
        made.informers.nodes.on_change(None, node("n1", cpu=amount, memory=amount))
        for number in range(500):
            bound = pod("n1", uid=f"uid-{number}")
            made.informers.pods.on_change(None, bound | {"spec": bound["spec"] | {"containers": huge}})
        made.informers.nodes.on_change(None, node("n2"))
        made.informers.pods.on_change(None, pod(uid="waits"))
        assert "waits" in made.parts.pending.queue
        assert not made.context.metrics.render().decode().count("unreadable_objects_total{kind=")


async def test_a_record_that_came_true_after_the_end_of_its_process_is_taken_over_and_deleted():
    deleted = asyncio.Event()

    async def delete(request):
        if request.method == "DELETE" and request.path.endswith("cycle-dead-000007"):
            deleted.set()
        return await says(200)(request)

    async with faulty([delete]) as server:
        made = scheduling(server.session)
        found = stored(1)
        dead = found | {"metadata": found["metadata"] | {"name": "cycle-dead-000007", "resourceVersion": "9"}}
        running = asyncio.create_task(made.scheduler.run())
        await asyncio.sleep(0.05)
        made.informers.pods.on_change(None, pod())
        made.informers.on_reservation(None, dead)
        async with asyncio.timeout(60):
            await deleted.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_binding_that_ends_by_an_error_of_ours_ends_the_run():
    """Else its pod would stay promised for ever."""

    async def answer(request):
        if request.method == "POST" and request.path.endswith("podreservations"):
            return await says(201, stored(1))(request)
        return await says(200, json.dumps({"metadata": {}}) if request.method == "GET" else "")(request)

    async with faulty([answer]) as server:
        made = scheduling(server.session)

        made.parts.pending.waited_seconds = None  # an error in the middle of our own code
        made.informers.nodes.on_change(None, node("n1"))
        made.informers.pods.on_change(None, pod())
        async with asyncio.timeout(60):
            with pytest.raises(ExceptionGroup):
                await made.scheduler.run()


ALL_KINDS = [
    "nodecapacities", "nodecputopologies", "podcpubindings", "podreservations", "predictivehpas", "schedulingprofiles",
    "subspacesnapshots",
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refuses(404, "NotFound"), "kubectl apply -k crds"),
        (says(200, {"resources": [{"name": n} for n in ALL_KINDS[1:]]}), "does not serve nodecapacities.concerto.dev"),
        (hangs_up, "the API server does not answer"),
        (refuses(503, "ServiceUnavailable"), "the API server does not answer"),
        (says(200, {"resources": [{"name": n} for n in ALL_KINDS]}), None),
    ],
)
async def test_what_the_operator_waits_for_is_said_in_words(answer, expected):
    async with faulty([answer]) as server:
        said = await missing_kinds(server.session)
        assert said is None if expected is None else expected in said


@pytest.mark.parametrize(
    ("sentence", "script", "owners"),
    [
        ("the Deployment is there", [says(200, {"metadata": {"uid": "u"}})], ["u"]),
        ("there is no Deployment of that name", [refuses(404, "NotFound")], []),
        ("it may not be read", [refuses(403, "Forbidden")], []),
        ("the API server goes away for a while", [hangs_up] * 9 + [says(200, {"metadata": {"uid": "u"}})], ["u"]),
        ("it is overloaded for a while", [refuses(503, "X")] * 9 + [says(200, {"metadata": {"uid": "u"}})], ["u"]),
        ("its token is renewed", [refuses(401, "Unauthorized")] * 9 + [says(200, {"metadata": {"uid": "u"}})], ["u"]),
    ],
)
async def test_a_deployment_owns_what_its_operator_makes_where_it_can_be_read(sentence, script, owners):
    async with faulty(script) as server:
        found = await read_owners(server.session, "concerto-system", "concerto-operator", pause_seconds=0.001)
    assert [owner["uid"] for owner in found] == owners, sentence


async def test_an_operator_that_is_no_pod_of_a_deployment_asks_for_none():
    async with faulty([]) as server:
        assert await read_owners(server.session, "concerto-system", None) == []
        assert server.seen == []
