"""The autoscaler when metrics APIs hang, objects are invalid, autoscalers conflict, or writes have unknown outcomes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import generate_latest

from concerto.api.predictivehpa import ObjectReference, PredictiveHPA
from concerto.api.selector_text import parse_selector
from concerto.api.timestamps import format_timestamp
from concerto.controllers.autoscaling import learning
from concerto.controllers.autoscaling.capacity_reservation import build_reservation, reserve
from concerto.controllers.autoscaling.controller import PredictiveHPAController
from concerto.controllers.autoscaling.targets import Targets
from concerto.kube import Conflict, KubeError, Unreachable
from concerto.kube.discovery import Kinds
from support.autoscaling_world import GADGETS, NOW, Clock, World, autoscaling, load, phpa, scale
from support.crd_schemas import problems
from support.faulty_server import Answer, Faulty, faulty, refuses, says
from support.waiting import eventually


@pytest.mark.parametrize("asks", ["another API", "of another namespace"])
async def test_a_metrics_api_that_hangs_keeps_only_those_waiting_who_ask_it(asks):
    world, never = World(), asyncio.Event()

    async def hangs(request: web.Request) -> web.StreamResponse:
        await never.wait()
        return web.Response()

    world.metrics = {"slow": hangs, "fine": load("4")}
    async with autoscaling(world, Clock()) as autoscaler:
        for number in range(300):
            autoscaler.on_object(None, phpa(f"slow-{number}", "slow"))
        other = phpa("web", "fine")
        if asks == "another API":
            del other["spec"]["metrics"]
        else:
            other["metadata"]["namespace"] = "m"
        autoscaler.on_object(None, other)
        autoscaler.start_due()
        await world.seen("web")
        reason = "FailedGetResourceMetric" if asks == "another API" else "ValidMetricFound"
        assert world.condition("web", "ScalingActive")[1] == reason
        assert "slow-0" not in world.statuses
        never.set()


async def test_one_object_that_ends_in_an_error_of_ours_does_not_keep_the_others_from_being_scaled(monkeypatch):
    world = World()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, Clock()) as autoscaler:
        learn = autoscaler.forecaster.learn

        def broken(s: Any) -> Any:
            if s.spec.name == "bad":
                raise RuntimeError("ours")
            return learn(s)

        monkeypatch.setattr(autoscaler.forecaster, "learn", broken)
        for name in ("bad", "good"):
            autoscaler.on_object(None, phpa(name))
        autoscaler.start_due()
        await world.seen("good")
        await world.seen("bad")
        assert world.scaled == {"good": 4, "bad": 4}, "and the metrics of now still decide on it"


async def test_a_history_that_nobody_can_forecast_from_costs_only_its_own_forecast(monkeypatch):
    world = World()
    world.metrics = {"requests": load("4")}
    predict = learning.predict

    def broken(subjects: Any, *rest: Any, **more: Any) -> Any:
        if any(subject.horizon_seconds == 77.0 for subject in subjects):
            raise RuntimeError("ours")
        return predict(subjects, *rest, **more)

    monkeypatch.setattr(learning, "predict", broken)
    async with autoscaling(world, Clock()) as autoscaler:
        autoscaler.on_object(None, phpa("bad", horizon="77s"))
        autoscaler.on_object(None, phpa("good"))
        autoscaler.start_due()
        await world.seen("good")
        await world.seen("bad")
        assert world.scaled == {"good": 4, "bad": 4}
        assert world.condition("good", "Forecasting")[1] == "WarmingUp"


async def test_a_namespace_with_many_objects_takes_turns_and_keeps_no_other_waiting():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, clock, max_syncs_per_namespace=2, forecast_batch=1) as autoscaler:
        for number in range(5):
            autoscaler.on_object(None, phpa(f"many-{number}"))
        other = phpa("other")
        other["metadata"]["namespace"] = "elsewhere"
        autoscaler.on_object(None, other)
        synced = []
        for _ in range(3):
            before = dict(world.looks)
            autoscaler.start_due()
            autoscaler.start_due()
            await asyncio.gather(*autoscaler._tasks)
            synced.append({name for name in world.looks if world.looks[name] > before.get(name, 0)})
            clock.now += 15
        assert [len(names - {"other"}) for names in synced] == [2, 2, 2]
        assert "other" in synced[0]
        assert len(set.union(*synced)) == 6, "each had its turn"


async def test_a_status_that_a_webhook_keeps_delays_no_other_object_that_was_due_with_it():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    world.stuck = {"stuck"}
    async with autoscaling(world, clock) as autoscaler:
        for name in ("stuck", "free"):
            autoscaler.on_object(None, phpa(name))
        autoscaler.start_due()
        for sync in (1, 2, 3):
            await world.seen("free", sync)
            tracked = autoscaler._objects["n", "free"]
            await eventually(lambda busy=tracked: not busy.busy)
            clock.now += 60
            autoscaler.start_due()
        assert "stuck" not in world.statuses
        assert autoscaler._objects["n", "stuck"].busy
        world.unstuck.set()
        await eventually(lambda: not autoscaler._objects["n", "stuck"].busy)


async def test_a_clock_that_is_set_back_stops_nobody():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, phpa("web"))
        autoscaler.start_due()
        await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        clock.now -= 3600
        autoscaler.start_due()
        await world.seen("web", 2)


def hpa(name: str, target: str) -> dict[str, Any]:
    reference = {"apiVersion": "x.dev/v1beta1", "kind": "Gadget", "name": target}
    return {"metadata": {"namespace": "n", "name": name}, "spec": {"scaleTargetRef": reference}}


CONFLICTS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], bool]] = {
    "alone": ([phpa("web")], [], True),
    "another on the same target": ([phpa("web"), phpa("web") | {"metadata": phpa("two")["metadata"]}], [], False),
    "a preview on the same target": (
        [phpa("web"), phpa("web", mode="Preview") | {"metadata": phpa("two")["metadata"]}],
        [],
        True,
    ),
    "a HorizontalPodAutoscaler on the same target": ([phpa("web")], [hpa("old", "web")], False),
    "a HorizontalPodAutoscaler on nothing that there can be": ([phpa("web")], [hpa("old", "../web")], True),
    "a HorizontalPodAutoscaler on another": ([phpa("web")], [hpa("old", "other")], True),
}


@pytest.mark.parametrize(("objects", "hpas", "scales"), CONFLICTS.values(), ids=CONFLICTS)
@pytest.mark.parametrize("most", [9, 1], ids=["within bounds", "above its bounds"])
async def test_two_that_scale_the_same_target_do_not_fight(objects, hpas, scales, most):
    world = World()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, Clock()) as autoscaler:
        for each in hpas:
            autoscaler.observer.conflicts.on_hpa(None, each)
        for each in objects:
            autoscaler.on_object(None, each | {"spec": each["spec"] | {"maxReplicas": most}})
        autoscaler.start_due()
        status = await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        assert ("web" in world.scaled) == scales
        if not scales:
            assert world.condition("web", "ScalingActive") == ("False", "AmbiguousSelector")
            assert "scaled by" in status["lastDecision"]["message"]
            autoscaler.observer.conflicts.on_hpa(hpas[0] if hpas else hpa("old", "web"), None)
            autoscaler.on_object(phpa("two"), None)
            assert autoscaler.observer.conflicts.of(("PredictiveHPA", "n", "web")) == ([], 0)


async def test_a_forecast_that_is_not_made_is_not_said_to_be_switched_off():
    world = World()
    async with autoscaling(world, Clock()) as autoscaler:
        autoscaler.on_object(None, phpa("web") | {"spec": phpa("web")["spec"] | {"maxReplicas": 1}})
        autoscaler.start_due()
        await world.seen("web")
        assert world.condition("web", "Forecasting") == ("False", "NotAsked")


async def read_and_write(script: list[Answer], replicas: int = 5) -> Faulty:
    async with faulty([says(200, GADGETS), says(200, scale()), *script]) as server:
        targets = Targets(server.session, Kinds(server.session, lambda: NOW))
        found = await targets.read("n", ObjectReference("Gadget", "web", "v1"))
        await targets.write("n", "web", found, replicas)
        return server


CONFLICT, FAULT = refuses(409, "Conflict"), refuses(500, "InternalError")
WRITES: dict[str, tuple[list[Answer], type[Exception] | None, int]] = {
    "done": ([says(200)], None, 1),
    "somebody changed something else": ([CONFLICT, says(200, scale(version="2")), says(200)], None, 2),
    "somebody else scaled it to the same": ([CONFLICT, says(200, scale(5)), says(200)], None, 1),
    "somebody else scaled it to zero": ([CONFLICT, says(200, scale(0)), says(200)], Conflict, 1),
    "it was made anew under its name": ([CONFLICT, says(200, scale(uid="new")), says(200)], Conflict, 1),
    "it is gone": ([refuses(404, "NotFound")], KubeError, 1),
    "done, with an error, and its repetition conflicts": ([FAULT, FAULT, CONFLICT, says(200, scale(5))], None, 2),
    "done, with an error": ([FAULT, says(200, scale(5))], None, 1),
    "not done, with errors": ([FAULT, says(200, scale())] * 5, KubeError, 4),
    "deleted while its outcome is unknown": ([FAULT, refuses(404, "NotFound")], Conflict, 1),
    "refused by admission": ([refuses(422, "Invalid"), says(200, scale())], KubeError, 1),
}


@pytest.mark.parametrize(("script", "error", "puts"), WRITES.values(), ids=WRITES)
async def test_a_scale_is_written_only_to_what_was_decided_on(script, error, puts):
    if error is None:
        server = await read_and_write(script)
        assert sum(line.startswith("PUT") for line in server.seen) == puts
        return
    with pytest.raises(error):
        await read_and_write(script)


async def test_a_kind_that_may_not_be_watched_is_an_error_and_not_a_wait_for_ever():
    kinds = {"resources": [{"name": "deployments", "kind": "Deployment", "namespaced": True}]}
    group = {"preferredVersion": {"version": "v1"}}
    async with faulty([says(200, group), says(200, kinds), refuses(403, "Forbidden")]) as server:
        targets = Targets(server.session, Kinds(server.session, lambda: NOW), patience_seconds=0.1)
        for _ in range(2):
            with pytest.raises(Unreachable, match="cannot be listed and watched"):
                await targets.read("n", ObjectReference("Deployment", "web", "apps/v1"))
        targets.close()


def reservation(owner: str, name: str, phase: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "n", "uid": name, "ownerReferences": [{"uid": owner}]}
    return {"metadata": meta, "status": {"phase": phase}}


async def test_only_what_is_over_of_the_same_object_is_tidied_up():
    """Labels hold 63 letters of a name, so that two objects may share one."""
    spec = PredictiveHPA.from_raw(phpa("web"))
    made = build_reservation(spec, parse_selector("app=web"), count=1, horizon_seconds=60.0, now=NOW)
    held = [
        reservation("web", "now", "Held"),
        reservation("web", "old", "Expired"),
        reservation("other", "x", "Expired"),
    ]
    async with faulty([says(201), says(200, held[0]), says(200, {"items": held}), says(200)]) as server:
        assert await reserve(server.session, made, now=NOW) is None
        deleted = [line for line in server.seen if line.startswith("DELETE")]
        assert [line.rpartition("/")[2] for line in deleted] == ["old"]


async def test_a_rise_does_not_wait_for_its_reservation_for_long(monkeypatch):
    monkeypatch.setattr("concerto.controllers.autoscaling.capacity_reservation._MAX_SECONDS", 0.05)
    never = asyncio.Event()

    async def hangs(_: web.Request) -> web.StreamResponse:
        await never.wait()
        return web.Response()

    spec = PredictiveHPA.from_raw(phpa("web"))
    made = build_reservation(spec, parse_selector("app=web"), count=1, horizon_seconds=60.0, now=NOW)
    async with faulty([hangs]) as server:
        assert "does not answer within" in (await reserve(server.session, made, now=NOW) or "")
        never.set()


@pytest.mark.parametrize("value", ["0", "1n", "9223372036854775807", "9e900", "1e-900", "-1", "NaN"])
@pytest.mark.parametrize("target", ["1", "1n", "9e15"])
async def test_whatever_a_metric_says_the_status_is_one_that_the_crd_takes(value, target):
    """Else it is refused, whole and for ever, and nobody learns why."""
    world, clock = World(), Clock()
    world.metrics = {"requests": load(value)}
    made = phpa("web")
    made["spec"]["metrics"][0]["external"]["target"]["averageValue"] = target
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for times in range(1, 4):
            autoscaler.start_due()
            status = await world.seen("web", times)
            await asyncio.gather(*autoscaler._tasks)
            assert problems(made | {"status": status}) == []
            clock.now += 75
        most = max((v for ring in status.get("history", ()) for v in ring["values"]), default=0)
        assert most <= 1000 * (2**31 - 1)


async def test_an_operator_that_dies_while_it_scales_does_not_allow_as_much_again():
    world, clock = World(), Clock()
    world.metrics, world.dies_here = {"requests": load("9")}, asyncio.Event()
    made = phpa("web")
    made["spec"]["behavior"] = {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 600}]}}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        autoscaler.start_due()
        await world.seen("web")
        async with asyncio.timeout(20):
            await world.taken.wait()
    world.dies_here.set()
    assert world.scaled == {"web": 3}
    clock.now += 15
    async with autoscaling(world, clock) as another:
        another.on_object(None, made | {"status": world.statuses["web"]})
        clock.now += 15
        another.start_due()
        await world.seen("web", 2)
        await asyncio.gather(*another._tasks)
        assert world.condition("web", "ScalingLimited") == ("True", "ScaleUpLimit")
    assert world.scaled == {"web": 3}


async def test_a_status_that_somebody_has_emptied_is_written_again():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("2")}
    made = phpa("web")
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        autoscaler.start_due()
        whole = await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        world.statuses.clear()
        autoscaler.on_object(made, made)
        clock.now += 30
        autoscaler.start_due()
        assert (await world.seen("web", 2)).keys() == whole.keys()


async def test_without_a_scheduler_room_is_not_said_to_be_held_and_what_nobody_gives_up_is_removed(monkeypatch):
    monkeypatch.setattr("concerto.controllers.autoscaling.capacity_reservation._LOOK_SECONDS", 0.001)
    monkeypatch.setattr("concerto.controllers.autoscaling.capacity_reservation._PATIENCE_SECONDS", 0.003)
    spec = PredictiveHPA.from_raw(phpa("web"))
    made = build_reservation(spec, parse_selector("app=web"), count=1, horizon_seconds=60.0, now=NOW)

    def of(name: str, made_at: float) -> dict[str, Any]:
        meta = {**reservation("web", name, "")["metadata"], "creationTimestamp": format_timestamp(made_at)}
        return {"metadata": meta, "spec": {"ttlSeconds": 120}}

    listed = {"items": [of("old", NOW - 121), of("young", NOW - 60)]}
    script = [says(201), *[says(200, of("now", NOW))] * 3, says(200, listed), says(200)]
    async with faulty(script) as server:
        assert "no scheduler has handled" in (await reserve(server.session, made, now=NOW) or "")
        deleted = [line.rpartition("/")[2] for line in server.seen if line.startswith("DELETE")]
        assert deleted == ["old"]


async def test_room_that_there_is_not_is_said_not_to_be_held():
    spec = PredictiveHPA.from_raw(phpa("web"))
    made = build_reservation(spec, parse_selector("app=web"), count=1, horizon_seconds=60.0, now=NOW)
    pending = reservation("web", "now", "Pending")
    pending["status"]["conditions"] = [{"type": "Ready", "message": "0 of 1 units are held"}]
    async with faulty([says(201), says(200, pending), says(200, {"items": []})]) as server:
        assert await reserve(server.session, made, now=NOW) == "0 of 1 units are held"


# What becomes of an object while it is looked at, and what is scaled then
OVERTAKEN: dict[str, tuple[dict[str, Any] | None, dict[str, int]]] = {
    "it is deleted": (None, {}),
    "it becomes a preview": (phpa("web", mode="Preview"), {}),
    "its bounds change": (phpa("web") | {"spec": phpa("web")["spec"] | {"maxReplicas": 3}}, {"web": 3}),
    "it gets another target": (
        phpa("web") | {"spec": phpa("web")["spec"] | {"scaleTargetRef": phpa("other")["spec"]["scaleTargetRef"]}},
        {"other": 4},
    ),
}


@pytest.mark.parametrize(("after", "scaled"), OVERTAKEN.values(), ids=OVERTAKEN)
@pytest.mark.parametrize("slow", ["metrics", "scale"])
async def test_what_is_overtaken_while_it_is_looked_at_is_not_carried_out(slow, after, scaled):
    world, asked, answers = World(), asyncio.Event(), asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        asked.set()
        await answers.wait()
        return await load("4")(request)

    world.metrics = {"requests": slowly if slow == "metrics" else load("4")}
    if slow == "scale":
        world.scale_asked, world.scale_answers = asked, answers
    async with autoscaling(world, Clock()) as autoscaler:
        made = phpa("web")
        autoscaler.on_object(None, made)
        autoscaler.start_due()
        async with asyncio.timeout(20):
            await asked.wait()
        if after is not None:
            after = {**after, "metadata": {**after["metadata"], "generation": 2}}
        autoscaler.on_object(made, after)
        answers.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*autoscaler._tasks)
        assert world.scaled == {}
        if after is None:
            assert autoscaler.observer.selectors.claimants("n", [{"app": "web"}], 1000).keys == [], (
                "nor does it claim pods for ever"
            )
            assert "forecast_active{" not in generate_latest(autoscaler._metrics.registry).decode(), (
                "nor is it a series"
            )
            assert world.statuses == {}
            return
        autoscaler.start_due()
        await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        assert world.scaled == scaled


async def test_a_scale_that_is_refused_is_not_said_to_be_done():
    world = World()
    world.metrics, world.refuses_scales = {"requests": load("4")}, True
    async with autoscaling(world, Clock()) as autoscaler:
        autoscaler.on_object(None, phpa("web"))
        autoscaler.start_due()
        status = await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        assert status["lastDecision"]["message"].startswith("Could not scale from 2 to 4 replicas (")
        assert world.condition("web", "AbleToScale") == ("False", "FailedUpdateScale")


async def changed(world: World, old: dict[str, Any], new: dict[str, Any], *, restarted: bool) -> dict[str, Any]:
    """The status of an object that asks for nine replicas; then it is changed, by then for a load of two."""

    async def look(autoscaler: PredictiveHPAController, times: int) -> None:
        clock.now += 30
        autoscaler.start_due()
        await world.seen("web", times)
        await asyncio.gather(*autoscaler._tasks)

    clock = Clock()
    world.metrics = {"requests": load("9")}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, old)
        await look(autoscaler, 1)
        status = world.statuses["web"]
        new = {**new, "metadata": {**new["metadata"], "generation": 2}, "status": status}
        world.metrics = {"requests": load("2")}
        if not restarted:
            autoscaler.on_object(old, new)
            await look(autoscaler, 2)
            return status
    async with autoscaling(world, clock) as another:
        another.on_object(None, new)
        await look(another, 2)
    return status


RESTARTED = pytest.mark.parametrize("restarted", [False, True], ids=["seen", "while the operator was away"])


@RESTARTED
async def test_what_one_target_needed_is_not_what_another_needs(restarted):
    world, old = World(), phpa("web")
    other = old | {"spec": old["spec"] | {"scaleTargetRef": phpa("other")["spec"]["scaleTargetRef"]}}
    status = await changed(world, old, other, restarted=restarted)
    assert status["history"]
    assert world.scaled == {"web": 4}, "the other has its two, and they are enough"
    assert all(ring["values"] == [2000] for ring in world.statuses["web"]["history"])


@RESTARTED
@pytest.mark.parametrize("mode", ["Off", "Auto"])
async def test_what_a_preview_would_have_done_is_not_done_when_it_is_none_any_more(mode, restarted):
    world = World()
    status = await changed(world, phpa("web", mode="Preview"), phpa("web", mode=mode), restarted=restarted)
    assert status["lastDecision"]["message"].startswith("Would scale from 2 to 4")
    assert [r["replicas"] for r in status["recommendations"]] == [2, 9]
    assert world.scaled == {}
    assert world.statuses["web"]["lastDecision"]["message"].startswith("Kept 2 replicas: current metrics ask for 2")


@pytest.mark.parametrize(("scheduler", "reserved"), [("concerto", 1), ("default-scheduler", 0)])
async def test_room_is_reserved_for_pods_that_would_use_it_up(scheduler, reserved):
    world, clock = World(), Clock()
    world.metrics = {"requests": load("2")}
    rise = [500 + 60 * i for i in range(26)]
    made = phpa("web", horizon="2m", reserveCapacity=True)
    made["status"] = {"history": [{"stepSeconds": 15, "last": int(NOW // 15), "count": 1, "values": rise}]}
    meta = {"namespace": "n", "name": "p", "uid": "p", "labels": {"app": "web"}, "creationTimestamp": LONG_AGO}
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.observer.pods.on_change(None, {"metadata": meta, "spec": {"schedulerName": scheduler}, "status": {}})
        autoscaler.on_object(None, made)
        clock.now += 30
        autoscaler.start_due()
        status = await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        assert status["lastDecision"]["reason"] == "Forecast"
        assert world.scaled["web"] > 2
        assert world.reservations == reserved


async def test_what_cannot_even_be_read_is_said_in_the_last_decision():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    made = phpa("web")
    made["spec"]["scaleTargetRef"]["kind"] = "Widget"
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        autoscaler.start_due()
        status = await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        words = "Scaled nothing: the HPA controller was unable to get the target's current scale: kind 'Widget' is not"
        assert status["lastDecision"]["message"].startswith(words)
        assert set(status["lastDecision"]) == {"at", "reason", "message"}, "no number is known"
        assert problems(made | {"status": status}) == []


async def test_a_trouble_that_has_other_words_at_each_look_does_not_fill_the_events():
    world, clock = World(), Clock()
    made = phpa("web")
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for look in range(20):
            world.metrics = {"requests": load(str(-1 - look))}
            autoscaler.start_due()
            await world.seen("web", look + 1)
            await asyncio.gather(*autoscaler._tasks)
            clock.now += 31
        notes = [s.event["note"] for s in autoscaler._events._recorder._series.values()]
        mine = [note for note in notes if note.startswith("failed to get requests external metric")]
        assert 4 <= len(mine) <= 12, "in ten minutes"


def grown(**status: Any) -> dict[str, Any]:
    return phpa("web") | {"status": status}


LONG_AGO, FAR = "1971-01-01T00:00:00Z", "9999-12-31T23:59:59Z"
EDITED: dict[str, dict[str, Any]] = {
    "a history from the future": grown(
        history=[{"stepSeconds": s, "last": 2**62, "count": 1, "values": [1] * 240} for s in (15, 300)]
    ),
    "a history of more than there can be": grown(
        history=[
            {"stepSeconds": s, "last": int(NOW // s), "count": 2**63 - 1, "values": [0, 1, 2**63 - 1] * 20}
            for s in (15, 300)
        ]
    ),
    "a history that nobody writes": grown(history=[{"stepSeconds": 15, "last": 0, "values": []}] * 2),
    "start-up times without an end": grown(
        initialization={"seconds": 1, "pods": 1, "recent": [2**62] * 64, "before": [2**62] * 64}
    ),
    "times before and after all times": grown(
        initialization={"seconds": 1, "pods": 1, "learnedUntil": LONG_AGO},
        recommendations=[{"at": at, "replicas": 2**31 - 1} for at in (LONG_AGO, FAR)],
        scaleEvents=[{"at": FAR, "change": -(2**31)}] * 512,
    ),
    "times that are not valid": grown(recommendations=[{"at": "0001-01-01T00:00:00+14:00", "replicas": 1}]),
    "a decision of nobody": grown(lastDecision={"at": FAR, "message": "", "reactiveReplicas": 0, "replicas": 0}),
}


@pytest.mark.parametrize("made", EDITED.values(), ids=EDITED)
@pytest.mark.parametrize("least", [0, 3], ids=["metrics decide", "below its minimum"])
async def test_a_status_that_somebody_has_edited_costs_neither_scaling_nor_the_next_status(made, least):
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    made = made | {"spec": made["spec"] | {"minReplicas": least}}
    # The server merges a patch into what it has
    world.statuses["web"] = made["status"]
    async with autoscaling(world, clock) as autoscaler:
        autoscaler.on_object(None, made)
        for look in range(6):
            clock.now += 31
            autoscaler.start_due()
            status = await world.seen("web", look + 1)
            await asyncio.gather(*autoscaler._tasks)
            assert problems(made | {"status": status}) == []
            clock.now += 44
    assert 4 <= world.scaled["web"] <= 9
    assert "InternalError" not in str(autoscaler._events._recorder._series)


async def test_a_selector_that_the_status_has_no_room_for_is_left_out_and_not_cut():
    world = World()
    world.metrics = {"requests": load("4")}
    world.selector = f"app in ({','.join(f'web-{i:05}' for i in range(600))}),tier=front"
    async with autoscaling(world, Clock()) as autoscaler:
        autoscaler.on_object(None, phpa("web"))
        autoscaler.start_due()
        status = await world.seen("web")
        await asyncio.gather(*autoscaler._tasks)
        assert world.scaled == {"web": 4}
        assert "selector" not in status, "a part of it selects other pods"
