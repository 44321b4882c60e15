"""Gangs are bound together or not at all, whatever the API server answers and whenever the operator starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from concerto.api.podreservation import Assignment, build_placement_record
from concerto.controllers.scheduling.gang_preemption import GangPreemptionController, GangPreemptionSettings
from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty, is_dry_run, refuses, says
from support.gang_builders import raw_group, raw_member
from support.scheduler_builders import Scheduling, scheduling
from support.scheduling_builders import raw_pod
from support.step_counts import steps_of
from support.waiting import eventually

KEY = ("default", "g")


def raw_node(name: str, cpu: str = "64") -> dict[str, Any]:
    status = {
        "allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "2000"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {}, "status": status}


class Server:
    """Takes everything, but what a test refuses.

    Attributes:
        bound: names of the pods that were bound, and where, in order.
        records: names of the pods in each placement record that was stored.
        deleted: names of the placement records and pods that were deleted.
        refuses_record: whether a record with these pods is refused.
        refuses_binding: whether the binding of that pod is refused.
        asked: how many records it was asked to store.
        may_store: set unless the answer about records is to wait.
        holds_binding: whether the binding of that pod waits for `may_bind`.
        may_bind: set unless such bindings are to wait.
    """

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.records: list[list[str]] = []
        self.order: list[str] = []
        self.deleted: list[str] = []
        self.refuses_record: Callable[[list[str]], bool] = lambda names: False
        self.refuses_binding: Callable[[str], bool] = lambda name: False
        self.asked = 0
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.holds_binding: Callable[[str], bool] = lambda name: False
        self.may_bind = asyncio.Event()
        self.may_bind.set()

    async def __call__(self, request):
        parts = request.path.strip("/").split("/")
        body = await request.json() if request.method == "POST" else {}
        if request.method == "POST" and parts[-1] == "podreservations":
            names = [each["name"] for each in body["spec"]["assignments"]]
            self.asked += 1
            await self.may_store.wait()
            if self.refuses_record(names):
                return await refuses(422, "Invalid")(request)
            self.records.append(names)
            self.order.append("record")
            stored = body | {"metadata": body["metadata"] | {"uid": "r", "resourceVersion": "7"}}
            return await says(201, stored)(request)
        if request.method == "POST" and parts[-1] == "binding":
            name = parts[-2]
            if self.holds_binding(name):
                await self.may_bind.wait()
            if self.refuses_binding(name):
                return await refuses(403, "Forbidden")(request)
            self.bound[name] = body["target"]["name"]
            self.order.append("binding")
            return await says(201)(request)
        if request.method == "GET" and "pods" in parts:
            name = parts[-1]
            found = raw_member(name, nodeName=self.bound.get(name, ""))
            return await says(200, found)(request)
        if request.method == "DELETE" and not is_dry_run(await request.read()):
            self.deleted.append(parts[-1])
        return await says(200)(request)


def see(made: Scheduling, *, nodes: Iterable[Any] = (), groups: Iterable[Any] = (), pods: Iterable[Any] = ()) -> None:
    for each in nodes:
        made.informers.nodes.on_change(None, each)
    for each in groups:
        made.informers.pod_groups.on_change(None, each)
    for each in pods:
        made.informers.pods.on_change(None, each)


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("count", [6, 260])
async def test_every_record_of_a_gang_is_stored_before_its_first_binding(count):
    server = Server()
    async with faulty([server]) as found:
        made = scheduling(found.session, time.time)  # a busy machine may need a second look
        see(made, nodes=[raw_node("n1"), raw_node("n2")], groups=[raw_group("g", count)])
        see(made, pods=[raw_member(f"p{i}") for i in range(count)])
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: len(server.bound) == count)
        await stopped(running)
    assert server.order.index("binding") == len(server.records)
    assert [len(names) for names in server.records] == ([6] if count == 6 else [250, 10])


async def test_a_gang_one_pod_of_which_cannot_be_stored_is_not_bound_and_others_are():
    server = Server()
    server.refuses_record = lambda names: "p3" in names
    async with faulty([server]) as found:
        made = scheduling(found.session)
        see(made, nodes=[raw_node("n1"), raw_node("n2")], groups=[raw_group("g", 6)])
        see(made, pods=[*(raw_member(f"p{i}") for i in range(6)), raw_pod("alone")])
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: "alone" in server.bound)
        await eventually(lambda: not made.parts.cluster.is_placed("uid-p0"))
        await stopped(running)
    assert set(server.bound) == {"alone"}
    assert not any(made.parts.cluster.is_placed(f"uid-p{i}") for i in range(6))


@pytest.mark.parametrize("gone", ["gone", "being deleted", "bound by others"])
async def test_a_gang_one_pod_of_which_goes_before_the_first_binding_is_not_bound(gone):
    server = Server()
    server.may_store.clear()
    async with faulty([server]) as found:
        made = scheduling(found.session)
        see(made, nodes=[raw_node("n1"), raw_node("n2")], groups=[raw_group("g", 3)])
        pods = [raw_member(f"p{i}") for i in range(3)]
        see(made, pods=pods)
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: server.asked)
        after = {"being deleted": raw_member("p2", deleting=True), "bound by others": raw_member("p2", nodeName="n3")}
        made.informers.pods.on_change(pods[2], after.get(gone))
        server.may_store.set()
        await eventually(lambda: not made.parts.cluster.is_placed("uid-p0"))
        await stopped(running)
    assert server.bound == {}


async def test_a_pod_whose_binding_was_refused_goes_first_once_others_of_its_gang_are_bound():
    server = Server()
    server.refuses_binding = lambda name: name == "p3"
    now = [1000.0]
    async with faulty([server]) as found:
        made = scheduling(found.session, lambda: now[0])
        see(made, nodes=[raw_node("n1", cpu="6")], groups=[raw_group("g", 6)])
        see(made, pods=[raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(6)])
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: made.parts.cluster.pod_groups.unfinished)
        assert made.parts.cluster.pod_groups.unfinished == {KEY: {"uid-p3": "n1"}}
        assert len(server.bound) == 5
        server.refuses_binding = lambda name: False
        see(made, pods=[raw_pod("vip", priority=1000, requests={"cpu": "1"})])
        await eventually(lambda: next(made.parts.pending.queue.heads(now[0]), None) is None)
        now[0] += 1.0  # the wait after a first refusal
        await eventually(lambda: "p3" in server.bound)
        await stopped(running)
    assert "vip" not in server.bound


@pytest.mark.parametrize(("cpu", "pods"), [("9", 6), ("4", 6), ("5", 8)])
async def test_a_gang_none_of_whose_bindings_is_allowed_is_not_tried_again_before_its_pods_have_waited(cpu, pods):
    server = Server()
    server.refuses_binding = lambda name: True
    now = [1000.0]
    async with faulty([server]) as found:
        made = scheduling(found.session, lambda: now[0])
        see(made, nodes=[raw_node("n1", cpu=cpu)], groups=[raw_group("g", 4)])
        see(made, pods=[raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(pods)])
        running = asyncio.create_task(made.scheduler.run())
        queue = made.parts.pending.queue
        await eventually(lambda: server.records and len(queue) == pods)
        await asyncio.sleep(0.3)  # it was tried again each 50 ms
        assert len(server.records) == 1
        now[0] += 1.0  # the wait after a first refusal
        made.parts.pending.work.set()
        await eventually(lambda: len(server.records) == 2 and len(queue) == pods)
        await asyncio.sleep(0.3)
        assert len(server.records) == 2
        server.refuses_binding = lambda name: False
        now[0] += 10.0
        made.parts.pending.work.set()
        await eventually(lambda: len(server.bound) >= 4)
        await stopped(running)


async def test_a_pod_whose_binding_was_refused_is_bound_though_the_rest_of_its_gang_waits_for_it():
    server = Server()
    server.refuses_binding = lambda name: name == "p3"
    server.holds_binding = lambda name: name == "p2"
    server.may_bind.clear()
    now = [1000.0]
    async with faulty([server]) as found:
        made = scheduling(found.session, lambda: now[0])
        see(made, nodes=[raw_node("n1", cpu="4")], groups=[raw_group("g", 4)])
        see(made, pods=[raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(6)])
        running = asyncio.create_task(made.scheduler.run())
        queue = made.parts.pending.queue
        await eventually(lambda: "uid-p3" in queue and next(queue.heads(now[0]), None) is None)
        assert "p2" not in server.bound
        server.may_bind.set()
        await eventually(lambda: len(server.bound) == 3)
        await eventually(lambda: made.parts.cluster.pod_groups.unfinished == {KEY: {"uid-p3": "n1"}})
        await eventually(lambda: next(queue.heads(now[0]), None) is None)
        assert len(server.records) == 1, "it waits after the refusal"
        server.refuses_binding = lambda name: False
        now[0] += 1.0  # the wait after a first refusal
        made.parts.pending.work.set()
        await eventually(lambda: "p3" in server.bound)
        await stopped(running)


def record(name: str, *pods: str) -> dict[str, Any]:
    assignments = [Assignment("default", pod, f"uid-{pod}", "n1", "Requests", "", 9.0, pod_group="g") for pod in pods]
    body = build_placement_record("concerto-system", name, assignments)
    return body | {"metadata": body["metadata"] | {"uid": name, "resourceVersion": "7"}}


RIVALS = [raw_pod(f"vip-{i}", priority=1000, requests={"cpu": "1"}) for i in range(4)]


async def restarted(server: Server, *bound: str, records: Iterable[dict[str, Any]]) -> None:
    """An operator starts where an earlier one has stored these records, and has bound these of four pods."""
    async with faulty([server]) as found:
        made = scheduling(found.session)
        pods = [raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(4)]
        for each in pods:
            if each["metadata"]["name"] in bound:
                each["spec"]["nodeName"] = "n1"
        see(made, nodes=[raw_node("n1", cpu="4")], groups=[raw_group("g", 4)], pods=[*RIVALS, *pods])
        for each in records:
            made.informers.on_reservation(None, each)
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: len(server.bound) + len(bound) == 4)
        await stopped(running)


async def test_a_gang_that_was_half_bound_is_finished_before_all_others():
    server = Server()
    await restarted(server, "p0", "p2", records=[record("r", "p0", "p1", "p2", "p3")])
    assert server.bound == {"p1": "n1", "p3": "n1"}


@pytest.mark.parametrize("other", ["cycle-me-000001.2", "cycle-me-000001b", "cycle-me-000001.2ab"])
async def test_it_is_finished_from_several_records(other):
    server = Server()
    await restarted(server, "p0", records=[record("cycle-me-000001", "p0", "p1"), record(other, "p2", "p3")])
    assert server.bound == {"p1": "n1", "p2": "n1", "p3": "n1"}


async def test_a_gang_of_which_nothing_is_bound_is_decided_on_afresh():
    server = Server()
    await restarted(server, records=[record("r", "p0", "p1", "p2", "p3")])
    assert set(server.bound) == {f"vip-{i}" for i in range(4)}


async def test_pods_that_replace_those_of_a_gang_go_before_nobody_if_none_of_them_is_bound():
    server = Server()
    await restarted(server, "p0", "p1", records=[record("r", "p2", "p3")])
    assert set(server.bound) < {f"vip-{i}" for i in range(4)}


async def test_pods_that_replace_those_of_a_gang_go_before_nobody_while_the_record_of_those_that_stayed_exists():
    server = Server()
    records = [record("cycle-me-000001", "p0", "p1", "gone-2", "gone-3"), record("cycle-me-000002", "p2", "p3")]
    await restarted(server, "p0", "p1", records=records)
    assert set(server.bound) < {f"vip-{i}" for i in range(4)}


async def test_pods_that_replace_those_of_a_gang_are_finished_if_some_of_them_are_bound():
    server = Server()
    records = [record("cycle-me-000001", "p0", "gone-1", "gone-2"), record("cycle-me-000002", "p1", "p2", "p3")]
    await restarted(server, "p0", "p1", records=records)
    assert server.bound == {"p2": "n1", "p3": "n1"}


async def test_a_gang_that_was_begun_is_finished_although_its_group_is_gone():
    server = Server()
    async with faulty([server]) as found:
        made = scheduling(found.session)
        see(made, nodes=[raw_node("n1")], pods=[raw_member("p0", nodeName="n1"), raw_member("p1")])
        made.informers.on_reservation(None, record("r", "p0", "p1"))
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: server.bound == {"p1": "n1"})
        await stopped(running)


async def test_all_records_of_a_gang_are_kept_until_the_last_binding_is_known():
    """Those whose pods are all bound say to a successor that the gang was begun."""
    server = Server()
    async with faulty([server]) as found:
        made = scheduling(found.session, time.time)  # a busy machine may need a second look
        see(made, nodes=[raw_node("n1")], groups=[raw_group("g", 251)], pods=[raw_member(f"p{i}") for i in range(251)])
        server.may_bind.clear()
        server.holds_binding = lambda name: name in server.records[1]
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: len(server.bound) == 250)
        see(made, pods=[raw_member(name, nodeName="n1") for name in server.records[0]])
        await made.parts.records.delete_closable()
        assert server.deleted == []
        server.may_bind.set()
        await eventually(lambda: len(server.bound) == 251)
        see(made, pods=[raw_member(name, nodeName="n1") for name in server.records[1]])
        await eventually(lambda: len(server.deleted) == 2)
        await stopped(running)


async def test_the_record_of_a_gang_that_was_begun_is_kept_until_the_gang_is_finished():
    """So a second successor knows of the gang as well, though its group is gone."""
    server = Server()
    begun = [record("cycle-me-000001", "p0"), record("cycle-me-000001.2", "p1")]
    async with faulty([server]) as found:
        first = scheduling(found.session)
        pods = [raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(2)]
        pods[0]["spec"]["nodeName"] = "n1"
        see(first, nodes=[raw_node("n1", cpu="1")], pods=pods)
        for each in begun:
            first.informers.on_reservation(None, each)
        running = asyncio.create_task(first.scheduler.run())
        await eventually(lambda: first.parts.cluster.pod_groups.unfinished == {KEY: {"uid-p1": "n1"}})
        await first.parts.records.delete_closable()
        await stopped(running)
        assert server.deleted == []

        second = scheduling(found.session)
        see(second, nodes=[raw_node("n1", cpu="1"), raw_node("n2")], pods=pods)
        for each in begun:
            second.informers.on_reservation(None, each)
        running = asyncio.create_task(second.scheduler.run())
        await eventually(lambda: server.bound == {"p1": "n2"})
        see(second, pods=[raw_member("p1", nodeName="n2")])
        await eventually(lambda: {each["metadata"]["name"] for each in begun} <= set(server.deleted))
        await stopped(running)


async def test_pods_wait_for_their_group_and_for_each_other_whatever_comes_first():
    server = Server()
    async with faulty([server]) as found:
        made = scheduling(found.session)
        demanded = []
        made.informers.on_first_group = lambda: demanded.append(True)
        see(made, nodes=[raw_node("n1")], pods=[raw_member("p0")])
        assert demanded
        running = asyncio.create_task(made.scheduler.run())
        queue = made.parts.pending.queue
        await eventually(lambda: next(queue.heads(1000.0), None) is None)
        see(made, groups=[raw_group("g", 2)])
        await eventually(lambda: next(queue.heads(1000.0), None) is None)
        assert server.bound == {}
        see(made, pods=[raw_member("p1")])
        await eventually(lambda: len(server.bound) == 2)
        await stopped(running)


async def test_nobody_is_evicted_for_a_spare_pod_before_its_gang_is_bound():
    server = Server()
    async with faulty([server]) as found:
        made = scheduling(found.session)
        noted = []
        made.scheduler.on_unschedulable = lambda pod, diagnosis: noted.append(pod.name)
        pods = [raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(2)]
        see(made, nodes=[raw_node("n1", cpu="1")], groups=[raw_group("g", 1)], pods=pods)
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: server.bound)
        assert noted == []
        (name,) = server.bound
        see(made, pods=[raw_member(name, requests={"cpu": "1"}, nodeName="n1")])
        await eventually(lambda: noted == [{"p0": "p1", "p1": "p0"}[name]])
        await stopped(running)


async def test_a_gang_is_bound_once_those_have_gone_who_were_evicted_for_all_of_it():
    server = Server()
    async with faulty([server]) as found:
        made = scheduling(found.session)
        preemption = GangPreemptionController(made.context, made.parts, GangPreemptionSettings(max_search_seconds=60.0))
        made.scheduler.on_gang_unschedulable = preemption.note_failure
        low = {f"low-{i}": raw_pod(f"low-{i}", nodeName=f"n{i}", requests={"cpu": "1"}) for i in range(3)}
        see(made, nodes=[raw_node(f"n{i}", cpu="1") for i in range(3)], groups=[raw_group("g", 2)], pods=low.values())
        see(made, pods=[raw_member(f"p{i}", priority=100, requests={"cpu": "1"}) for i in range(2)])
        running = asyncio.create_task(made.scheduler.run()), asyncio.create_task(preemption.run())
        await eventually(lambda: len(server.deleted) == 2)
        assert server.bound == {}
        gone = list(server.deleted)
        for name in gone:
            made.informers.pods.on_change(low[name], None)
        see(made, pods=[raw_pod("rival", requests={"cpu": "1"})])
        await eventually(lambda: len(server.bound) == 2)
        for task in running:
            await stopped(task)
    assert set(server.bound) == {"p0", "p1"}
    assert len(low.keys() - gone) == 1


async def test_pods_that_were_kept_from_held_room_get_it_once_the_gang_is_gone():
    server = Server()
    now = [1000.0]
    async with faulty([server]) as found:
        made = scheduling(found.session, lambda: now[0])
        held_room, queue = made.parts.cluster.pod_groups.held_room, made.parts.pending.queue
        pods = [raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(4)]
        see(made, nodes=[raw_node("n1", cpu="4")], groups=[raw_group("g", 4)])
        see(made, pods=[raw_pod("other", requests={"cpu": "1"}, nodeName="n1"), *pods])
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: next(queue.heads(now[0]), None) is None)
        now[0] += 6.0
        made.parts.pending.look_at_pod_group(KEY)
        await eventually(lambda: held_room.holder == KEY)
        see(made, pods=[raw_pod("small", requests={"cpu": "1"})])
        await eventually(lambda: next(queue.heads(now[0]), None) is None)
        for each in pods:
            made.informers.pods.on_change(each, None)
        await eventually(lambda: "small" in server.bound)
        await stopped(running)


async def test_a_group_that_is_deleted_midway_costs_its_own_pods_alone():
    server = Server()
    async with faulty([server]) as found:
        made = scheduling(found.session)
        see(made, nodes=[raw_node("n1", cpu="1")], groups=[raw_group("g", 2)])
        see(made, pods=[raw_member(f"p{i}", requests={"cpu": "1"}) for i in range(2)])
        running = asyncio.create_task(made.scheduler.run())
        await eventually(lambda: next(made.parts.pending.queue.heads(1000.0), None) is None)
        made.informers.pod_groups.on_change(raw_group("g", 2), None)
        see(made, nodes=[raw_node("n2")], pods=[raw_pod("alone", requests={"cpu": "1"})])
        await eventually(lambda: "alone" in server.bound)
        await stopped(running)
    assert set(server.bound) == {"alone"}


async def test_all_pods_of_a_large_gang_are_reported_and_taking_note_costs_the_same_however_many_there_are():
    async def steps(count):
        async with faulty([Server()]) as server:
            made = scheduling(server.session)
            made.informers.nodes.on_change(None, raw_node("a", cpu="1"))
            made.informers.pod_groups.on_change(None, raw_group("g", 2))
            for i in range(count):
                made.informers.pods.on_change(None, raw_member(f"p{i}", requests={"cpu": "8"}))
            took = []
            take = made.scheduler._take
            made.scheduler._take = lambda result, now: took.append(steps_of(lambda: take(result, now)))  # type: ignore[method-assign]
            running = asyncio.create_task(made.scheduler.run())
            # each time that the cluster changes, the next ones are noted
            waiting, pending = made.parts.reporter._waiting, made.parts.pending
            await eventually(lambda: len(waiting) == count or pending.requeue(Change.NODE))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return took[0]

    assert await steps(11_000) < 1.1 * await steps(5500)
