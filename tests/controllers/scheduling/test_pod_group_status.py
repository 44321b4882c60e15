from __future__ import annotations

import pytest

from concerto.controllers.scheduling.binding_load import BindingLoad, PipelineSettings
from concerto.controllers.scheduling.pod_group_status import PodGroupStatus, build_condition_patch
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.changes import Change
from support.faulty_server import faulty, refuses, resets, says
from support.gang_builders import add, group, member
from support.scheduling_builders import cluster_state, node

KEY = ("default", "g")
TRUE = {"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled", "message": ""}
NO_CPU = Diagnosis(1, {"Insufficient cpu": 1}, Change.NODE)
FEW = Diagnosis(1, {"waiting": 1}, Change.NOTHING, concerns_pod=True, condition_reason="WaitingForPodGroup")
WRONG = Diagnosis(1, {"wrong": 1}, Change.NOTHING, concerns_pod=True, condition_reason="SchedulerError")


class World:
    def __init__(self, session, min_count=2, **over):
        self.now = 1000.0
        self.cluster = cluster_state([node("n")])
        add(self.cluster, group("g", min_count, **over), member("a"), member("b"))
        load = BindingLoad(PipelineSettings())
        self.status = PodGroupStatus(session, self.cluster, lambda: self.now, {"concerto"}, load)
        self.conditions = []
        write = self.status._write

        async def noted(group, body):
            (condition,) = body["status"]["conditions"]
            self.conditions.append((group.name, *(condition[each] for each in ("status", "reason", "message"))))
            return None if session is None else await write(group, body)

        self.status._write = noted

    async def written(self, after=0.0, seconds=1.0):
        """The conditions that are written then, of those that are due in so many seconds."""
        self.now += after
        self.conditions.clear()
        for key, _ in self.status._due.take(seconds):
            await self.status._report(key)
        return list(self.conditions)


async def test_true_is_written_once_enough_pods_are_bound():
    async with faulty([says(200)]) as server:
        world = World(server.session)
        add(world.cluster, member("a", nodeName="n"))
        world.status.note_changed([KEY])
        assert await world.written() == []
        add(world.cluster, member("b", nodeName="n"))
        world.status.note_changed([KEY])
        assert await world.written() == [("g", "True", "Scheduled", "")]
        assert await world.written() == []


async def test_false_is_written_after_a_while_and_again_only_if_the_reasons_differ():
    async with faulty([says(200)]) as server:
        world = World(server.session)
        world.status.note(KEY, NO_CPU)
        assert await world.written(1.0) == []
        text = "0/1 nodes are available: 1 Insufficient cpu."
        assert await world.written(1.0) == [("g", "False", "Unschedulable", text)]
        world.status.note(KEY, NO_CPU)
        assert await world.written(60.0) == []
        world.status.note(KEY, WRONG)
        assert await world.written() == [("g", "False", "SchedulerError", "0/1 nodes are available: wrong.")]
        world.status.note(KEY, FEW)
        assert await world.written(29.0) == []
        assert await world.written(1.0) == [("g", "False", "Unschedulable", "0/1 nodes are available: waiting.")]


async def test_what_was_scheduled_once_stays_so_and_what_is_gone_is_forgotten():
    async with faulty([says(200)]) as server:
        world = World(server.session, conditions=[TRUE])
        world.status.note(KEY, NO_CPU)
        assert await world.written(10.0) == []
        world = World(server.session)
        world.status.note(KEY, NO_CPU)
        world.cluster.pod_groups.remove_group(KEY)
        world.status.note_changed([KEY])
        assert await world.written(10.0) == []


async def test_a_group_whose_pods_are_placed_one_by_one_is_scheduled_with_the_first():
    async with faulty([says(200)]) as server:
        world = World(server.session, None)
        add(world.cluster, member("a", nodeName="n"))
        world.status.note_changed([KEY])
        assert await world.written() == [("g", "True", "Scheduled", "")]


@pytest.mark.parametrize("other", [{"nodeName": "n"}, {}], ids=["on a node", "waiting"])
async def test_another_scheduler_writes_the_conditions_of_its_groups(other):
    async with faulty([says(200)]) as server:
        world = World(server.session, 1)
        add(world.cluster, member("a", nodeName="n"), member("b", schedulerName="default-scheduler", **other))
        world.status.note_changed([KEY])
        assert await world.written() == []


def note(world: World, status: str) -> None:
    """Have the condition written with that status."""
    if status == "True":
        add(world.cluster, member("a", nodeName="n"), member("b", nodeName="n"))
        world.status.note_changed([KEY])
    else:
        world.status.note(KEY, NO_CPU)


@pytest.mark.parametrize(
    "failure",
    [refuses(401, "Unauthorized"), refuses(429, "TooManyRequests"), refuses(500, "InternalError"), resets],
    ids=["401", "429", "500", "reset"],
)
@pytest.mark.parametrize("status", ["True", "False"])
async def test_what_the_api_server_could_not_take_is_written_again(failure, status):
    async with faulty([failure, says(200)]) as server:
        world = World(server.session)
        note(world, status)
        assert [len(await world.written(seconds)) for seconds in (2.0, 4.9, 0.1, 60.0)] == [1, 0, 1, 0]


@pytest.mark.parametrize("status", ["True", "False"])
async def test_a_condition_is_not_written_again_before_the_time_that_the_api_server_asks_for(status):
    busy = refuses(429, "TooManyRequests", {"Retry-After": "30"})
    async with faulty([busy, says(200)]) as server:
        world = World(server.session)
        note(world, status)
        assert [len(await world.written(seconds)) for seconds in (2.0, 29.9, 0.1, 60.0)] == [1, 0, 1, 0]


async def test_what_the_api_server_refuses_is_not_written_again():
    async with faulty([refuses(409, "Conflict")]) as server:
        world = World(server.session)
        world.status.note(KEY, NO_CPU)
        assert len(await world.written(2.0)) == 1
        assert await world.written(60.0) == []


async def test_a_group_that_has_taken_the_name_of_another_has_a_condition_of_its_own():
    world = World(None)
    world.status.note(KEY, NO_CPU)
    assert len(await world.written(2.0)) == 1
    add(world.cluster, group("g", uid="another"))
    world.status.note_changed([KEY])
    world.status.note(KEY, NO_CPU)
    assert len(await world.written(2.0)) == 1


def test_a_standby_keeps_nothing_of_groups_that_are_gone():
    world = World(None)
    for i in range(3):
        add(world.cluster, group(f"g{i}"))
        world.status.note_changed([("default", f"g{i}")])
        world.cluster.pod_groups.remove_group(("default", f"g{i}"))
        world.status.note_changed([("default", f"g{i}")])
    assert not world.status._changed


async def test_pods_that_wait_for_a_group_which_is_not_there_take_no_turn_of_those_that_are():
    world = World(None)
    missing = ("default", "missing")
    world.status.note(missing, FEW)
    assert len(world.status._due) == 0
    add(world.cluster, group("missing"))
    world.status.note(missing, FEW)
    assert [name for name, *_ in await world.written(2.0)] == ["missing"]


async def test_many_groups_are_written_a_few_at_a_time():
    async with faulty([says(200)]) as server:
        world = World(server.session)
        for i in range(50):
            add(world.cluster, group(f"g{i}", 1), member(f"p{i}", f"g{i}", nodeName="n"))
            world.status.note_changed([("default", f"g{i}")])
        assert [len(await world.written(seconds=0.5)) for _ in range(4)] == [20, 20, 10, 0]


def test_a_condition_is_that_of_this_very_group():
    body = build_condition_patch(group("g", 2), "False", "Unschedulable", "x" * 40_000)
    assert body["metadata"] == {"uid": "uid-group-g"}
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["observedGeneration"]) == ("PodGroupInitiallyScheduled", 1)
    assert len(condition["message"]) == 32768


async def test_a_namespace_whose_groups_have_ever_other_reasons_keeps_those_of_others_from_nothing():
    world = World(None)
    crowd = [("crowd", f"c{i}") for i in range(2000)]
    for namespace, name in crowd:
        add(world.cluster, group(name, namespace=namespace))
    written = []
    for second in range(90):
        for key in crowd:
            world.status.note(key, (NO_CPU, WRONG)[second % 2])
        if second == 60:
            world.status.note(KEY, NO_CPU)
        written.append(await world.written(1.0))
    at = next(i for i, each in enumerate(written) if any(name == "g" for name, *_ in each))
    assert at <= 63
    assert max(map(len, written)) <= 60
