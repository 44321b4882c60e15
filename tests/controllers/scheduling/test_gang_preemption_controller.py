"""From a gang without nodes to the writes that make room for all of it, and what stops them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from concerto.api.podreservation import Assignment
from concerto.controllers.scheduling.gang_preemption import GangPreemptionController, GangPreemptionSettings
from concerto.scheduling.gangs.gang import being_bound
from concerto.scheduling.reasons import Diagnosis, diagnose_group, diagnose_lack_of_time
from concerto.scheduling.state import pod_counting, pod_counts
from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty, is_dry_run, refuses, says
from support.gang_builders import raw_group, raw_member
from support.scheduler_builders import scheduling
from support.scheduling_builders import node, raw_pod
from support.waiting import eventually

KEY = ("default", "g")
NOW = 1000.0
OK = says(200, {})
STATUS = "PATCH /api/v1/namespaces/default/pods/{}/status"
DELETE = "DELETE /api/v1/namespaces/default/pods/{}"
PODS = {f"g-{i}": {"priority": 100, "requests": {"cpu": "3"}} for i in range(2)}


class Preempting:
    """A gang of two that needs both nodes, and a pod of lower priority on each."""

    def __init__(self, server, made, controller):
        self.server, self.made, self.controller = server, made, controller
        self.cluster = made.parts.cluster

    def see(self, raw):
        self.made.informers.pods.on_change(None, raw)

    def gone(self, raw):
        self.made.informers.pods.on_change(raw, None)

    def fails(self):
        """A cycle has found no nodes for the gang."""
        diagnosis = Diagnosis(2, {"Insufficient cpu": 2}, Change.ENDED, resolvable=np.array([0, 1]), gang=KEY)
        for uid, pod in self.cluster.pod_groups.members(KEY).items():
            if not self.cluster.is_placed(uid):
                self.made.parts.reporter.note(pod, diagnosis)
        self.controller.note_failure(KEY, diagnosis)

    def nominated(self):
        nodes = {name: self.cluster.nominations.node_of(f"uid-{name}") for name in PODS}
        return {name: node for name, node in nodes.items() if node}

    def message(self, name="g-0"):
        return self.made.parts.reporter._waiting[f"uid-{name}"].preemption

    def attempts(self, result):
        return self.made.context.metrics.preemption_attempts.labels(result)._value.get()


def victim(name):
    return raw_pod(f"victim-{name}", nodeName=name, requests={"cpu": "4"})


@asynccontextmanager
async def preempting(*answers, clock=lambda: NOW, min_count=2, **over):
    async with faulty(answers or [OK]) as server:
        made = scheduling(server.session, clock)
        settings = GangPreemptionSettings(**({"max_search_seconds": 60.0, "rest": 0.0, "settle_seconds": 0.0} | over))
        found = Preempting(server, made, GangPreemptionController(made.context, made.parts, settings))
        for name in ("a", "b"):
            found.cluster.set_node(node(name))
            found.see(victim(name))
        made.informers.pod_groups.on_change(None, raw_group("g", min_count))
        for name, spec in PODS.items():
            found.see(raw_member(name, **spec))
        running = asyncio.create_task(found.controller.run())
        try:
            yield found
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_all_pods_are_nominated_before_a_victim_is_marked_and_deleted():
    async with preempting() as it:
        it.fails()
        await it.server.asked(7)
        assert set(it.server.seen[:2]) == {STATUS.format("g-0"), STATUS.format("g-1")}
        assert set(it.server.seen[2:4]) == {STATUS.format("victim-a"), STATUS.format("victim-b")}
        both = {DELETE.format("victim-a"), DELETE.format("victim-b")}
        # The one whose deletion was not checked is deleted first
        (checked,) = both - {it.server.seen[5]}
        assert it.server.seen[4:] == [f"{checked} (dry run)", *(both - {checked}), checked]
        assert sorted(it.nominated().values()) == ["a", "b"]
        assert it.attempts("found") == 1
        assert it.message() == "preemption: found a potential placement for podgroup, preempting 2 victims."


async def test_while_its_victims_live_no_others_are_looked_for():
    async with preempting() as it:
        it.fails()
        await it.server.asked(7)
        seen = len(it.server.seen)
        it.gone(victim("a"))
        it.fails()
        await eventually(lambda: not it.controller._waiting)
        assert (it.attempts("found"), len(it.server.seen)) == (1, seen)


async def test_nobody_is_evicted_if_the_whole_gang_would_not_fit():
    async with preempting(min_count=3) as it:
        it.see(raw_member("g-2", priority=100, requests={"cpu": "3"}))
        it.fails()
        await eventually(lambda: it.attempts("not_found"))
        assert (it.server.seen, it.nominated()) == ([], {})
        assert it.message() == "preemption: the eviction of pods of lower priority would not let the PodGroup fit."


async def test_a_search_that_takes_too_long_is_reported():
    async with preempting(max_search_seconds=0.0) as it:
        it.fails()
        await eventually(lambda: it.attempts("not_found"))
        assert it.server.seen == []
        assert it.message() == "preemption: looking for pods to evict for the whole PodGroup took too long."


REFUSES_NONE = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "none"}}}
TERMS = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [REFUSES_NONE]}}


@asynccontextmanager
async def counting(monkeypatch, **over):
    """A gang whose terms are about so many pods that they are counted in turns, and the turns so far."""
    monkeypatch.setattr(pod_counts, "MAX_A_TURN", 30)
    monkeypatch.setattr(pod_counts, "MAX_AT_ONCE", 5)
    monkeypatch.setattr(pod_counting, "_A_PART", 1)
    async with preempting(count_seconds=0.0, **over) as it:
        for i in range(40):
            it.see(raw_pod(f"other-{i}", nodeName="b", priority=200, labels={"of": str(i)}))
        for name, spec in PODS.items():
            it.see(raw_member(name, **spec, affinity=TERMS))
        turns, begin = [], it.cluster.pod_counts.begin_turn
        monkeypatch.setattr(it.cluster.pod_counts, "begin_turn", lambda **rest: turns.append(1) or begin(**rest))
        yield it, turns


async def test_a_gang_whose_terms_are_about_very_many_pods_has_them_counted_in_turns(monkeypatch):
    async with counting(monkeypatch) as (it, turns):
        it.fails()
        await eventually(lambda: sorted(it.nominated().values()) == ["a", "b"])
        assert len(turns) >= 5


async def test_searches_while_pods_are_counted_leave_the_event_loop_to_others_as_all_others_do(monkeypatch):
    """A hundred gangs that wait for their counts would search one after another, and nothing else would get on."""
    async with counting(monkeypatch, rest=1e6) as (it, turns):
        it.fails()
        await eventually(lambda: turns)
        await asyncio.sleep(0.1)
        assert len(turns) == 1


@pytest.mark.parametrize("in_dry_run", [True, False], ids=["by a policy", "by a webhook that is asked in no dry run"])
async def test_a_pod_that_the_api_server_refuses_to_delete_is_left_alone_and_so_are_the_others(in_dry_run):
    now, protected = [NOW], {"victim-a"}

    async def answer(request):
        if request.method != "DELETE" or request.path.rpartition("/")[2] not in protected:
            return await OK(request)
        if in_dry_run or not is_dry_run(await request.read()):
            return await refuses(422, "Invalid")(request)
        return await refuses(400, "BadRequest", message='admission webhook "w" does not support dry run')(request)

    async with preempting(answer, clock=lambda: now[0]) as it:
        it.fails()
        failed = it.made.context.metrics.preemption_victims.labels("failed")
        await eventually(lambda: failed._value.get() == 1)
        assert it.message() == "preemption: the API server refused to make room by evictions."
        sent = [each for each in it.server.seen if each.startswith("DELETE")]
        is_first = DELETE.format("victim-a") in sent and DELETE.format("victim-b") not in sent
        assert is_first or (DELETE.format("victim-b") in sent) is not in_dry_run
        it.fails()
        await eventually(lambda: it.attempts("not_found") == 1)
        assert it.message() == "preemption: the eviction of pods of lower priority would not let the PodGroup fit."
        protected.clear()
        now[0] += 5.0
        it.fails()
        await eventually(lambda: DELETE.format("victim-a") in it.server.seen)


async def test_a_victim_whose_deletion_was_refused_before_is_deleted_first():
    async with preempting() as it:
        it.cluster.budgets.refused_deletions.refused("uid-victim-b", NOW - 5.0)
        it.fails()
        await it.server.asked(7)
        a, b = DELETE.format("victim-a"), DELETE.format("victim-b")
        assert it.server.seen[4:] == [f"{a} (dry run)", b, a]


async def test_without_all_nominations_stored_nobody_is_evicted():
    async with preempting(refuses(404, "NotFound"), OK, refuses(404, "NotFound")) as it:
        it.fails()
        await eventually(lambda: it.server.seen and not it.nominated())
        assert not [each for each in it.server.seen if "victim" in each]


async def test_if_the_api_server_refuses_the_gang_is_looked_at_again():
    async with preempting(refuses(403, "Forbidden")) as it:
        it.fails()
        failed = it.made.context.metrics.preemption_victims.labels("failed")
        await eventually(lambda: failed._value.get())
        await eventually(lambda: not it.nominated())
        assert not [each for each in it.server.seen if each.startswith("DELETE")]


async def test_if_a_pod_of_the_gang_goes_no_more_victims_are_evicted():
    released = asyncio.Event()

    async def waits(request):
        await released.wait()
        return await OK(request)

    async with preempting(OK, OK, waits) as it:
        it.fails()
        await it.server.asked(4)  # the victims are being marked
        it.gone(raw_member("g-1", **PODS["g-1"]))
        released.set()
        await eventually(lambda: KEY not in it.controller._waiting and not it.controller._tasks)
        assert not [each for each in it.server.seen if each.startswith("DELETE")]


NOT_MENDED = {
    "is not ready any more": Diagnosis(2, {"waiting": 2}, Change.NOTHING, concerns_pod=True, gang=KEY),
    "no node can be looked for": Diagnosis(2, {}, Change.NODE, "selectors take too many comparisons", gang=KEY),
}


@pytest.mark.parametrize("diagnosis", NOT_MENDED.values(), ids=NOT_MENDED)
async def test_a_gang_that_no_eviction_helps_leaves_its_room_to_others(diagnosis):
    async with preempting() as it:
        it.fails()
        await it.server.asked(7)
        assert len(it.nominated()) == 2
        it.controller.note_failure(KEY, diagnosis)
        assert KEY not in it.controller._waiting
        await eventually(lambda: not it.nominated())
        await it.server.asked(9)
        assert {*it.server.seen[7:]} == {STATUS.format("g-0"), STATUS.format("g-1")}


async def test_pods_that_are_being_bound_keep_their_nomination():
    async with preempting() as it:
        it.fails()
        await it.server.asked(7)
        for name in PODS:
            node = it.cluster.nominations.node_of(f"uid-{name}")
            pod = it.cluster.pod_groups.members(KEY)[f"uid-{name}"]
            it.gone(victim(node))
            assert it.cluster.assume(pod, Assignment("default", name, pod.uid, node, "Requests", "", 9.0), NOW)
        it.controller.note_failure(KEY, Diagnosis(2, {"waiting": 2}, Change.NOTHING, concerns_pod=True, gang=KEY))
        await eventually(lambda: not it.controller._tasks)
        assert (len(it.nominated()), len(it.server.seen)) == (2, 7)


async def test_pods_that_never_preempt_get_the_reason_without_a_search():
    async with preempting() as it:
        for name, spec in PODS.items():
            it.gone(raw_member(name, **spec))
            it.see(raw_member(f"{name}-never", preemptionPolicy="Never", **spec))
        it.fails()
        assert it.message("g-0-never") == "preemption: not eligible due to preemptionPolicy=Never."
        assert it.server.seen == []


async def test_after_a_restart_victims_that_are_going_are_waited_for():
    async with preempting() as it:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        it.see(
            raw_pod("victim-a", nodeName="a", requests={"cpu": "4"}, deleting=True, status={"conditions": [condition]})
        )
        it.see(raw_member("g-0", **PODS["g-0"], status={"nominatedNodeName": "a"}))
        it.fails()
        await eventually(lambda: it.attempts("not_eligible"))
        assert it.server.seen == []


async def test_a_gang_keeps_the_room_that_was_made_for_it_while_what_it_waits_for_ends_by_itself():
    async with preempting() as it:
        it.fails()
        await it.server.asked(6)
        it.controller.note_failure(KEY, diagnose_lack_of_time(it.cluster, KEY))
        it.controller.note_failure(KEY, diagnose_group(it.cluster, being_bound(KEY, ())))
        await eventually(lambda: not it.controller._tasks)
        assert (len(it.nominated()), len(it.server.seen)) == (2, 7)


async def test_no_nomination_is_stored_after_it_was_withdrawn():
    stored, asked = {}, []

    async def answer(request):
        name = request.path.split("/")[6]
        node = (await request.json())["status"].get("nominatedNodeName") or ""
        if node and name == "g-0":
            return await refuses(422, "Invalid")(request)
        if node:
            asked.append(node)
        if asked == [node]:  # repeated after a while
            return await refuses(500, "InternalError")(request)
        stored[name] = node
        return await OK(request)

    async with preempting(answer, settle_seconds=1000.0) as it:
        it.fails()
        await eventually(lambda: len(asked) == 2 and len(stored) == 2 and not it.controller._tasks)
        assert (stored, it.nominated()) == ({"g-0": "", "g-1": ""}, {})


async def test_a_gang_looks_elsewhere_where_a_node_of_its_victims_takes_no_pods_any_more():
    async with preempting() as it:
        it.fails()
        await it.server.asked(6)
        it.gone(victim("b"))
        it.cluster.set_node(node("a", unschedulable=True))  # its kubelet is away: the victim there never ends
        it.cluster.set_node(node("c"))
        it.see(victim("c"))
        it.fails()
        await eventually(lambda: it.attempts("found") == 2)
        assert sorted(it.nominated().values()) == ["b", "c"]


async def test_gangs_that_are_gone_take_no_turn():
    async with preempting() as it:
        for i in range(100):
            it.controller._waiting.add(("default", f"gone-{i}"))
        it.fails()
        await it.server.asked(2)
        assert len(it.controller._waiting) == 0
        (searches,) = it.made.context.metrics.preemption_search_seconds.collect()
        assert next(sample.value for sample in searches.samples if sample.name.endswith("_count")) <= 1


async def test_gangs_of_one_priority_take_turns_and_those_of_lower_ones_have_theirs_in_the_end():
    now = [NOW]
    async with preempting(clock=lambda: now[0]) as it:
        for name, priority in (("low", 1), ("high", 9), ("other", 9)):
            it.made.informers.pod_groups.on_change(None, raw_group(name, 1))
            it.see(raw_member(f"{name}-0", name, priority=priority))
        keys = [("default", name) for name in ("low", "high", "other")]
        waiting = it.controller._waiting
        for key, seconds in zip(keys, (0.0, 2.0, 1.0)):
            now[0] = NOW + seconds
            waiting.add(key)
        now[0] = NOW + 3.0
        assert waiting._next(now[0]).key == keys[2]
        now[0] = NOW + 10.0
        assert waiting._next(now[0]).key == keys[0]
