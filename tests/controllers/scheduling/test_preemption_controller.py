"""From a pod without a node to the writes that make room for it, in order, and what stops them."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from concerto.api.podreservation import Assignment
from concerto.controllers.scheduling.binding_load import PipelineSettings
from concerto.controllers.scheduling.eviction import EvictionPlaces, EvictionSettings, NotNeeded
from concerto.controllers.scheduling.preemption import (
    MAX_PLACES,
    PreemptionController,
    PreemptionSettings,
    _Remainders,
)
from concerto.controllers.scheduling.preemption_writes import Eviction, PreemptionTasks, PreemptionWrites
from concerto.kube.fair_places import FairPlaces
from concerto.scheduling.framework import FilterDefaults
from concerto.scheduling.preemption.search import Remainder
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state import pod_counting, pod_counts
from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty, refuses, says
from support.scheduler_builders import scheduling
from support.scheduling_builders import capacity, node, pod, raw_pod
from support.waiting import eventually

NOW = 1000.0
OK = says(200, {})
HIGH = {"priority": 100, "requests": {"cpu": "3"}}
STATUS = "PATCH /api/v1/namespaces/default/pods/{}/status"
DELETE = "DELETE /api/v1/namespaces/default/pods/{}"


def passing():
    """A clock that shows NOW first, and then goes on."""
    began = time.monotonic()
    return lambda: NOW + time.monotonic() - began


class Preempting:
    """A scheduler with two full nodes, and its preemption."""

    def __init__(self, server, made, controller):
        self.server, self.made, self.controller = server, made, controller
        self.cluster = made.parts.cluster

    def see(self, name, **over):
        self.made.informers.pods.on_change(None, raw_pod(name, **over))

    def fails(self, name="asks", **over):
        """A cycle has found no node for the pod."""
        self.see(name, **(HIGH | over))
        found = self.made.parts.pending._pods[f"uid-{name}"]
        diagnosis = Diagnosis(2, {"Insufficient cpu": 2}, Change.ENDED, resolvable=np.array([0, 1]))
        self.made.parts.reporter.note(found, diagnosis)
        self.controller.note_failure(found, diagnosis)

    def searches(self):
        (found,) = self.made.context.metrics.preemption_search_seconds.collect()
        return next(sample.value for sample in found.samples if sample.name.endswith("_count"))

    def attempts(self, result):
        return self.made.context.metrics.preemption_attempts.labels(result)._value.get()


@asynccontextmanager
async def preempting(*answers, clock=lambda: NOW, **over):
    async with faulty(answers or [OK]) as server:
        made = scheduling(server.session, clock)
        quick = {"settle_seconds": 0.0, "repeat_seconds": 0.0, "idle_seconds": 0.0}
        settings = PreemptionSettings(**(quick | over))
        found = Preempting(server, made, PreemptionController(made.context, made.parts, settings))
        for name, priority in (("a", 0), ("b", 50)):
            found.cluster.set_node(node(name))
            found.cluster.set_capacity(capacity(name, 50.0), NOW)
            found.see(f"victim-{name}", nodeName=name, priority=priority, requests={"cpu": "4"})
        running = asyncio.create_task(found.controller.run())
        try:
            yield found
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_the_nomination_is_written_before_a_victim_is_marked_and_deleted():
    async with preempting() as it:
        it.fails()
        await it.server.asked(3)
        assert it.server.seen == [STATUS.format("asks"), STATUS.format("victim-a"), DELETE.format("victim-a")]
        assert it.cluster.nominations.node_of("uid-asks") == "a"
        assert it.attempts("found") == 1


async def test_for_a_pod_with_three_victims_nine_requests_are_sent():
    async with preempting() as it:
        it.made.informers.pods.on_change(raw_pod("victim-a", nodeName="a"), None)
        victims = ["v0", "v1", "v2"]
        for name in victims:
            it.see(name, nodeName="a", requests={"cpu": "1300m"})
        it.fails()
        await it.server.asked(9)
        await eventually(lambda: not it.controller._tasks)
        first, *others = (each.rpartition("/")[2] for each in it.server.seen if each in map(DELETE.format, victims))
        assert sorted([first, *others]) == victims
        assert it.server.seen[0] == STATUS.format("asks")
        assert set(it.server.seen[1:4]) == {STATUS.format(name) for name in victims}
        assert set(it.server.seen[4:6]) == {f"{DELETE.format(name)} (dry run)" for name in others}
        assert it.server.seen[6] == DELETE.format(first)
        assert len(it.server.seen) == 9


async def test_the_victims_of_one_pod_are_deleted_before_those_of_the_next_are_marked():
    async with preempting() as it:
        one = EvictionPlaces(EvictionSettings(max_at_a_time=1))
        writes = PreemptionWrites(it.made.context, replace(it.made.parts, eviction_places=one))
        victims = {"first": [pod("v1", nodeName="a"), pod("v2", nodeName="a")], "next": [pod("v3", nodeName="b")]}
        each = [[Eviction(victim, "a", pod(name)) for victim in evicted] for name, evicted in victims.items()]
        await asyncio.gather(*(writes.evict(evictions, lambda: True) for evictions in each))
        assert len(it.server.seen) == 7
        assert it.server.seen[5:] == [STATUS.format("v3"), DELETE.format("v3")]


async def test_a_pod_whose_terms_are_about_very_many_pods_has_them_counted_in_turns(monkeypatch):
    monkeypatch.setattr(pod_counts, "MAX_A_TURN", 30)
    monkeypatch.setattr(pod_counts, "MAX_AT_ONCE", 5)
    monkeypatch.setattr(pod_counting, "_A_PART", 1)
    refuses_none = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "none"}}}
    async with preempting(slice_seconds=0.001) as it:
        for i in range(40):
            it.see(f"other-{i}", nodeName="b", priority=200, labels={"of": str(i)}, namespace="default")
        turns, begin = [], it.cluster.pod_counts.begin_turn
        monkeypatch.setattr(it.cluster.pod_counts, "begin_turn", lambda: turns.append(1) or begin())
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        it.fails(affinity={"podAntiAffinity": {required: [refuses_none]}})
        await it.server.asked(3)
        assert it.cluster.nominations.node_of("uid-asks") == "a"
        assert len(turns) >= 5


HANGING = {
    "its own victims": (["stuck"], "stuck"),
    "those of a namespace that others make room in, too": (["a", "b", "c", "d", "e"], "victims"),
}


@pytest.mark.parametrize(("preemptors", "victims"), HANGING.values(), ids=HANGING)
@pytest.mark.parametrize("hangs", ["PATCH", "DELETE"])
async def test_a_namespace_whose_webhook_does_not_answer_keeps_no_room_from_pods_of_others(preemptors, victims, hangs):
    release = asyncio.Event()

    async def answer(request):
        if request.method == hangs and f"/namespaces/{victims}/" in request.path:
            await release.wait()
        return await OK(request)

    async with preempting(answer) as it:
        for_pods, for_gangs = (PreemptionWrites(it.made.context, it.made.parts) for _ in range(2))

        def evict(writes, name, preemptor, victim):
            asks = pod(f"asks-{name}", namespace=preemptor)
            evictions = [Eviction(pod(f"{name}-{i}", namespace=victim, nodeName="a"), "a", asks) for i in range(3)]
            return writes.evict(evictions, lambda: True)

        namespaces = itertools.cycle(preemptors)
        stuck = [
            asyncio.create_task(evict(writes, f"stuck-{i}", next(namespaces), victims))
            for i in range(100)
            for writes in (for_pods, for_gangs)
        ]
        await it.server.asked(2)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(3):  # a request that hangs ends after 4 s
            await asyncio.gather(*(evict(writes, "free", "free", "free") for writes in (for_pods, for_gangs)))
        release.set()
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


@pytest.mark.parametrize("hangs", ["PATCH", "DELETE"])
async def test_namespaces_whose_webhooks_do_not_answer_keep_no_room_from_others_for_long_however_many_they_are(hangs):
    release = asyncio.Event()

    async def answer(request):
        if request.method == hangs and "/namespaces/stuck" in request.path:
            await release.wait()
        return await OK(request)

    async with preempting(answer) as it:
        places = EvictionPlaces(EvictionSettings())
        writes = PreemptionWrites(it.made.context, replace(it.made.parts, eviction_places=places))

        def evict(name, namespace):
            asks, victim = pod(f"asks-{name}", namespace=namespace), pod(name, namespace=namespace, nodeName="a")
            return writes.evict([Eviction(victim, "a", asks)], lambda: True)

        stuck = [asyncio.create_task(evict(f"p{i}", f"stuck{i % 6}")) for i in range(6 * 20)]
        await it.server.asked(6)
        async with asyncio.timeout(3):  # a request that hangs ends after 4 s
            await evict("free", "free")
        await asyncio.sleep(FairPlaces.LASTS_AFTER_SECONDS)
        await evict("free", "free")
        assert not places.are_slow(["free"])
        assert all(places.are_slow([f"stuck{i}"]) for i in range(6))
        release.set()
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_nominations_that_hang_keep_none_of_another_namespace_from_being_written():
    release = asyncio.Event()

    async def answer(request):
        if "/namespaces/stuck/" in request.path:
            await release.wait()
        return await OK(request)

    async with preempting(answer) as it:
        writes = PreemptionWrites(it.made.context, it.made.parts)
        stuck = [asyncio.create_task(writes.withdraw(pod(f"p{i}", namespace="stuck"))) for i in range(200)]
        await it.server.asked(1)
        async with asyncio.timeout(3):
            await writes.withdraw(pod("p", namespace="free"))
        release.set()
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_the_condition_is_written_with_the_nomination():
    bodies = []

    async def answer(request):
        bodies.append(await request.json())
        return await OK(request)

    async with preempting(answer) as it:
        it.fails()
        await it.server.asked(3)
        status = bodies[0]["status"]
        assert status["nominatedNodeName"] == "a"
        (condition,) = status["conditions"]
        assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
        assert condition["message"].endswith("found a potential placement for pod on node a, preempting 1 victims")


async def test_a_pod_that_a_node_took_before_its_turn_is_not_nominated():
    async with preempting() as it:
        it.see("asks", **HIGH)
        it.cluster.assume(pod("asks"), Assignment("default", "asks", "uid-asks", "b", "Capacity", "1", 1.0), NOW)
        with pytest.raises(NotNeeded):
            await it.controller._writes.nominate(pod("asks"), "a")
        assert it.server.seen == []


class Nominated:
    """The nomination of one pod, as the API server stores it; the first write of one for ``node`` fails or is late."""

    def __init__(self, node, begins):
        self.node, self.begins, self.stored = node, begins, ["a"]

    async def __call__(self, request):
        if request.method == "GET":
            found = {"metadata": {"uid": "uid-asks"}, "spec": {}, "status": {"nominatedNodeName": self.stored[-1]}}
            return await says(200, found)(request)
        node = (await request.json())["status"].get("nominatedNodeName") or ""
        if node == self.node and (begins := self.begins) is not None:
            self.begins = None
            return await begins(self, request)
        self.stored.append(node)
        return await OK(request)


async def fails_at_first(nominated, request):
    return await refuses(500, "InternalError")(request)


async def is_late(nominated, request):
    await asyncio.sleep(0.2)
    return await nominated(request)


@pytest.mark.parametrize("begins", [fails_at_first, is_late])
@pytest.mark.parametrize(("first", "then"), [("", "b"), ("a", "b"), ("a", ""), ("b", "a")])
async def test_of_two_writes_of_a_nomination_the_later_one_is_what_is_stored(first, then, begins):
    nominated = Nominated(first, begins)
    async with preempting(nominated) as it:
        it.see("asks", **HIGH, status={"nominatedNodeName": "a"})
        asks, writes = it.made.parts.pending._pods["uid-asks"], it.controller._writes

        def write(node):
            if not node:
                return writes.withdraw(asks)
            it.cluster.nominations.nominate(asks, node)
            return writes.nominate(asks, node)

        earlier = asyncio.create_task(write(first))
        await it.server.asked(1)
        await write(then)
        await asyncio.gather(earlier, return_exceptions=True)
        assert nominated.stored[-1] == then


async def test_events_wait_and_cycles_are_farther_apart_while_many_preemptions_go_on():
    release = asyncio.Event()

    async def slow(request):
        await release.wait()
        return await OK(request)

    async with preempting(slow) as it:
        load = it.made.parts.load
        tasks = PreemptionTasks(load)
        for _ in range(PipelineSettings().max_preemptions_beside_events):
            tasks.start(release.wait(), pod("asks"))
        assert not load.busy
        between_cycles = load.min_cycle_interval_seconds
        it.fails()
        await it.server.asked(1)
        assert load.busy
        assert load.min_cycle_interval_seconds > between_cycles
        load.are_slow = lambda namespaces: namespaces == {"default"}
        assert not load.busy, "those that hang are no load"
        load.are_slow = lambda namespaces: False
        release.set()
        await eventually(lambda: not load.busy)
        assert load.min_cycle_interval_seconds == between_cycles


@pytest.mark.parametrize("many", [False, True])
async def test_victims_that_end_one_at_a_time_get_no_cycle_each(many, monkeypatch):
    sleep, waits = asyncio.sleep, []

    async def noted(seconds):
        waits.append(seconds)
        await sleep(min(seconds, 0.01))

    monkeypatch.setattr(asyncio, "sleep", noted)
    settings = PipelineSettings(min_cycle_interval_beside_preemptions_seconds=100.0)
    async with faulty([OK]) as server:
        made = scheduling(server.session, settings=settings)
        made.parts.load.preemptions[frozenset({"default"})] = settings.max_preemptions_beside_events + many
        made.informers.pods.on_change(None, raw_pod("asks"))
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: made.parts.reporter._waiting)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert any(each > 50.0 for each in waits) is many


async def test_while_its_victims_live_no_others_are_looked_for():
    async with preempting() as it:
        it.fails()
        await it.server.asked(3)
        it.fails()  # the watch shows nothing of the deletion yet
        it.fails("other", requests={"cpu": "1"})
        await eventually(lambda: it.attempts("found") + it.attempts("not_found") == 2)
        assert STATUS.format("asks") not in it.server.seen[3:]


async def test_alike_pods_are_given_a_node_each():
    async with preempting() as it:
        it.fails("one")
        it.fails("two")
        await it.server.asked(6)
        assert {it.cluster.nominations.node_of(f"uid-{name}") for name in ("one", "two")} == {"a", "b"}
        assert {each for each in it.server.seen if each.startswith("DELETE")} == {
            DELETE.format("victim-a"), DELETE.format("victim-b"),
        }  # fmt: skip


async def test_candidates_that_are_left_are_remembered_for_five_seconds():
    async with preempting() as it:
        it.fails("one")
        await it.server.asked(3)
        key = ("concerto", 100, "default", it.cluster.signatures.of(it.cluster.nominations.of_priority(0)["a"][0]))
        assert [each.node for each in it.controller._remainders.of(key, NOW + 4.9).candidates] == ["b"]
        assert not it.controller._remainders.of(key, NOW + 5.0).candidates


def test_where_a_search_ended_is_remembered_however_many_other_searches_there_are_meanwhile():
    remainders = _Remainders(seconds=5.0)
    mine, other = ("concerto", 0, "mine", 1), ("concerto", 0, "other", 1)
    remainders.keep(mine, Remainder(next_node="n5"), NOW)
    remainders.keep(other, Remainder(next_node="n7"), NOW)
    remainders.of(other, NOW + 60)
    assert remainders.of(mine, NOW + 60) == Remainder(next_node="n5")
    remainders.keep(mine, Remainder(), NOW + 61)
    assert remainders.of(mine, NOW + 61) == Remainder(), "all nodes were looked at"


def test_nothing_stays_of_searches_for_pods_that_went():
    remainders = _Remainders(seconds=5.0)
    for i in range(MAX_PLACES + 10):
        remainders.keep(("concerto", 0, "n", i), Remainder(next_node="n5"), NOW + i)
    remainders.of(("concerto", 0, "n", "next"), NOW + MAX_PLACES + 60)
    assert not remainders._candidates
    assert len(remainders._places) == MAX_PLACES


async def test_without_its_nomination_stored_nobody_is_evicted():
    async with preempting(refuses(404, "NotFound")) as it:
        it.fails()
        await eventually(lambda: it.server.seen and not it.cluster.nominations)
        assert it.server.seen == [STATUS.format("asks")]


async def test_a_refusal_is_counted_and_the_pod_is_looked_at_again():
    async with preempting(refuses(403, "Forbidden")) as it:
        it.fails()
        failed = it.made.context.metrics.preemption_victims.labels("failed")
        await eventually(lambda: failed._value.get() == 1)
        assert it.server.seen == [STATUS.format("asks")]
        assert it.made.parts.pending.work.is_set()


async def test_a_nomination_that_nothing_helps_any_more_is_removed():
    async with preempting() as it:
        it.fails(priority=0, status={"nominatedNodeName": "a"})
        await it.server.asked(1)
        assert it.server.seen == [STATUS.format("asks")]
        assert not it.cluster.nominations
        assert it.attempts("not_found") == 1


async def test_a_nominated_pod_of_lower_priority_loses_its_node():
    async with preempting() as it:
        it.see("low", priority=10, status={"nominatedNodeName": "a"})
        it.fails()
        await it.server.asked(4)
        assert it.server.seen[0] == STATUS.format("asks")
        assert STATUS.format("low") in it.server.seen
        assert it.cluster.nominations.node_of("uid-low") == ""


async def test_a_pod_that_was_placed_meanwhile_needs_nobody_to_go():
    async with preempting() as it:
        it.fails()
        it.see("asks", **HIGH, nodeName="a")
        it.fails("late")
        await it.server.asked(3)
        assert STATUS.format("asks") not in it.server.seen


async def test_where_no_pod_is_less_important_nothing_is_searched_for():
    async with preempting() as it:
        it.fails(priority=0)
        assert not it.controller._waiting
        waiting = it.made.parts.reporter._waiting["uid-asks"]
        assert waiting.text == (
            "0/2 nodes are available: 2 Insufficient cpu. "
            "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
        )
        it.fails("polite", preemptionPolicy="Never")
        assert not it.controller._waiting
        assert it.attempts("not_eligible") == 1


async def test_a_pod_does_not_wait_for_victims_on_a_node_that_will_not_take_it():
    async with preempting(clock=passing()) as it:
        it.fails()
        await it.server.asked(3)
        it.cluster.set_node(node("a", unschedulable=True))  # as its kubelet is away, nobody ends there
        it.fails()
        await it.server.asked(6)
        assert it.server.seen[3:] == [STATUS.format("asks"), STATUS.format("victim-b"), DELETE.format("victim-b")]


async def test_after_a_refusal_it_waits_before_it_tries_again():
    async with preempting(OK, OK, refuses(403, "Forbidden"), clock=passing(), settle_seconds=60.0) as it:
        it.fails()
        failed = it.made.context.metrics.preemption_victims.labels("failed")
        await eventually(lambda: failed._value.get() == 1)
        it.fails()
        it.fails("other", requests={"cpu": "64"})  # is searched for after it
        await eventually(lambda: it.attempts("not_found") == 1 and not it.controller._waiting)
        assert len(it.server.seen) == 3
        assert it.cluster.nominations.node_of("uid-asks") == "a"


async def test_a_nomination_that_was_refused_keeps_no_room():
    async with preempting(refuses(403, "Forbidden"), settle_seconds=60.0) as it:
        it.fails()
        failed = it.made.context.metrics.preemption_victims.labels("failed")
        await eventually(lambda: failed._value.get() == 1)
        await eventually(lambda: not it.cluster.nominations)


async def test_nobody_is_evicted_any_more_for_a_pod_that_has_gone():
    async with preempting(OK, refuses(500, "InternalError"), says(200, raw_pod("victim-a", nodeName="a"))) as it:
        it.fails()
        await it.server.asked(3)
        it.made.informers.pods.on_change(raw_pod("asks", **HIGH), None)
        await eventually(lambda: not it.controller._tasks)
        assert not any(each.startswith("DELETE") for each in it.server.seen)


async def test_a_nomination_stays_while_the_room_that_was_made_is_not_seen_yet():
    async with preempting(settle_seconds=60.0) as it:
        it.see("victim-b", nodeName="b", priority=100, requests={"cpu": "4"}, uid="uid-important")
        it.made.informers.pods.on_change(raw_pod("victim-b"), None)
        it.fails()
        await it.server.asked(3)
        it.made.informers.pods.on_change(raw_pod("victim-a", nodeName="a"), None)
        it.fails()
        it.fails("other", requests={"cpu": "64"})
        await eventually(lambda: it.attempts("not_found") == 1)
        assert it.cluster.nominations.node_of("uid-asks") == "a"
        assert len(it.server.seen) == 3


async def test_nothing_is_kept_of_a_pod_that_has_its_room():
    async with preempting() as it:
        it.fails()
        await it.server.asked(3)
        assert "uid-asks" in it.controller._making_room
        # its binding may still fail: then it has to wait as long as if it had never been placed
        it.cluster.assume(pod("asks"), Assignment("default", "asks", "uid-asks", "b", "Capacity", "1", 1.0), NOW)
        it.fails("more", requests={"cpu": "64"})
        await eventually(lambda: it.attempts("not_found") == 1)
        assert "uid-asks" in it.controller._making_room
        it.see("asks", **HIGH, nodeName="a")
        it.fails("other", requests={"cpu": "64"})
        await eventually(lambda: "uid-asks" not in it.controller._making_room)


async def test_alike_pods_beyond_the_time_of_a_search_come_again_later():
    async with preempting(clock=passing(), max_search_seconds=0.0) as it:
        for name in ("one", "two", "three"):
            it.fails(name)
        await eventually(lambda: it.attempts("not_found") == 3)
        assert it.searches() == 3


async def test_pods_of_a_lower_priority_have_their_turn_in_the_end():
    now = [NOW]
    async with faulty([OK]) as server:
        made = scheduling(server.session, lambda: now[0])
        controller = PreemptionController(made.context, made.parts)
        controller.note(pod("low", priority=1))
        now[0] += 5.0
        controller.note(pod("high", priority=9))
        assert controller._turns._next(now[0]).key[1] == 9
        now[0] += 5.0
        assert controller._turns._next(now[0]).key[1] == 1


async def test_an_error_costs_alike_pods_their_turn_and_nobody_else():
    class Fails(FilterDefaults):
        name = "Fails"

        def prepare(self, query):
            raise ZeroDivisionError

    async with preempting(clock=passing()) as it:
        sound = it.made.parts.profiles["concerto"]
        it.made.parts.profiles.use("concerto", replace(sound, filters=(Fails(),)))
        it.fails()
        await eventually(lambda: it.searches() == 1)
        it.made.parts.profiles.use("concerto", sound)
        it.fails("other", requests={"cpu": "2"})
        await it.server.asked(1)
        assert it.server.seen[0] == STATUS.format("other")


async def test_pods_that_are_gone_take_no_turn():
    async with preempting() as it:
        turns, search = [], it.controller._search

        async def counted(key):
            turns.append(key)
            await search(key)

        it.controller._search = counted
        for i in range(100):
            it.controller.note(pod(f"gone-{i}", priority=i))
        it.fails()
        await it.server.asked(2)
        assert len(turns) == 1
