"""The operator follows pods that kubelet has resized in place, and nothing else."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest
from aiohttp import web

from concerto.api.nodecputopology import CPUPools, NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Pin
from concerto.api.schedulingprofile import WorkloadAwareSettings
from concerto.controllers.pinning.binding_objects import SIZE_ANNOTATION, build_pod_cpu_binding
from concerto.controllers.pinning.resizes import PodResizes
from concerto.kube import ApiError
from concerto.kube.events import EventRecorder
from support.crd_schemas import problems
from support.faulty_server import Answer, faulty, refuses
from support.scheduling_builders import NOW, cluster_state, node, pod, profile, raw_pod
from support.topologies import machine

SEED = machine(2, 5, 2)  # CPU n and n+10 share a core; 0-4 and 10-14 are socket 0
KEY = ("default", "p")
TYPE = {"concerto.dev/workload-type": "cpu-bound"}


def rounded(cpu: str, actual: str, allocated: str) -> dict[str, Any]:
    """As kubelet reports it on cgroup v2: what the pod as a whole runs with is rounded."""
    raw = running(cpu, allocated)
    raw["status"] |= {"resources": {"requests": {"cpu": actual}}, "allocatedResources": {"cpu": allocated}}
    return raw


def running(cpu: str, actual: str | None = None, **over: Any) -> dict[str, Any]:
    """The pod as it is on its node, which reports the requests that its container runs with."""
    reported = [{"name": "main", "resources": {"requests": {"cpu": actual or cpu}}}]
    over = {"labels": TYPE, "nodeName": "n1", "phase": "Running"} | over
    return raw_pod("p", requests={"cpu": cpu}, status={"containerStatuses": reported}, **over)


def binding(cpus: str, made_for: str = "2", level: str = "CPU", **status: object) -> dict[str, Any]:
    """Its binding, applied."""
    before = PodView.from_raw(running(made_for))
    pin = Pin(cpus, "0", level, "p")
    obj = build_pod_cpu_binding(before, Assignment("default", "p", "uid-p", "n1", "Requests", "", NOW, pin=pin), "r")
    obj["metadata"] |= {"uid": "b", "generation": 1, "resourceVersion": "7"}
    held = {"nodeName": "n1", "podUID": "uid-p", "cpus": cpus, "mems": "0", "exclusivenessLevel": level}
    return obj | {"status": held | {"observedGeneration": 1, "resourceStatus": "Applied"} | status}


class World:
    """A node of 20 CPUs with the pod and its binding; what was written of it, and what was reported."""

    def __init__(self, raw: dict[str, Any], obj: dict[str, Any], *others: PodView, using: Any = None) -> None:
        self.obj = obj
        self.cluster = cluster_state([node("n1", allocatable={"cpu": 20_000})], [PodView.from_raw(raw), *others])
        self.cluster.set_topology(NodeCPUTopology("n1", SEED, CPUPools()))
        self.cluster.set_cpu_binding(obj)
        self.pods = {KEY: raw}
        self.profiles = {"concerto": using or profile()}
        self.patches: list[dict[str, Any]] = []
        self.notes: list[str] = []

    async def reconcile(self, *times: dict[str, Any], answer: Answer | None = None) -> list[float | None]:
        """Reconcile the binding as it is, and then as each of the objects."""

        async def server(request: web.Request) -> web.StreamResponse:
            body = json.loads(await request.read())
            if request.method == "POST":
                self.notes.append(f"{body['reason']}: {body['note']}")
                return web.json_response(body)
            self.patches.append(body)
            if answer is not None:
                return await answer(request)
            return web.json_response({"metadata": {"generation": 2}})

        async with faulty([server]) as made:
            recorder = EventRecorder(made.session, component="c", instance="i")
            resizes = PodResizes(made.session, self.cluster, self.profiles, self.pods, recorder, lambda: True)
            waits = []
            for obj in (self.obj, *times):
                waits.append(await resizes.reconcile((obj["metadata"]["namespace"], obj["metadata"]["name"]), obj))
            writing = asyncio.create_task(recorder.run())
            assert await recorder.drain(20.0)
            writing.cancel()
        return waits

    def cpus(self) -> list[list[int]]:
        """CPUs that were written, one list a write."""
        return [[item["cpuID"] for item in body["spec"]["cpuSet"]] for body in self.patches]


# the pod now, its binding, CPUs that are written
FOLLOWED = {
    "more": (running("4"), binding("0-1"), [[0, 1, 2, 3]]),
    "fewer": (running("1"), binding("0-1"), [[0]]),
    "a part of a CPU more is a CPU more": (running("2100m"), binding("0-1"), [[0, 1, 2]]),
    "CPUs that a person chose are where it goes on": (running("3"), binding("5-6"), [[5, 6, 7]]),
    "on cgroup v2": (rounded("7", "6992m", "7"), binding("0-1"), [[0, 1, 2, 3, 4, 10, 11]]),
    "on cgroup v2, not carried out": (rounded("7", "1999m", "2"), binding("0-1"), []),
    "as before": (running("2"), binding("0-1"), []),
    "kubelet has not carried it out": (running("4", "2"), binding("0-1"), []),
    "another pod has its name": (running("4", uid="other"), binding("0-1"), []),
    "it has no type any more": (running("4", labels={}), binding("0-1"), []),
    "its type takes one CPU in any case": (
        running("4", labels={"concerto.dev/workload-type": "best-effort"}), binding("0", "1", "None"), [],
    ),
    "the binding is not validated as it is": (running("4"), binding("0-1", observedGeneration=0), []),
    "the binding is refused": (running("4"), binding("0-1", resourceStatus="CPUSetAllocationFailed"), []),
    "no profile places the pod": (running("4", schedulerName="other"), binding("0-1"), []),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "obj", "expected"), FOLLOWED.values(), ids=FOLLOWED)
async def test_a_binding_has_as_many_cpus_as_its_pod_runs_with(raw, obj, expected):
    world = World(raw, obj)
    assert await world.reconcile() == [None]
    assert (world.cpus(), world.notes) == (expected, [])


async def test_a_binding_of_a_person_and_one_of_an_earlier_operator_stay():
    for drop in ("labels", "annotations"):
        obj = binding("0-1")
        del obj["metadata"][drop]
        world = World(running("4"), obj)
        await world.reconcile()
        assert world.patches == []


async def test_what_is_written_is_valid_and_loses_against_any_change_meanwhile():
    world = World(running("4"), binding("0-1"))
    assert await world.reconcile(answer=refuses(409, "Conflict")) == [1.0], "it is read again and tried again"
    (body,) = world.patches
    assert body["metadata"] == {"resourceVersion": "7", "annotations": {SIZE_ANNOTATION: "4"}}
    assert body["spec"]["containers"] is None, "the CPUs are for the whole pod"
    whole = copy.deepcopy(world.obj)
    whole["spec"] |= {"cpuSet": body["spec"]["cpuSet"]}
    whole["metadata"]["annotations"] |= body["metadata"]["annotations"]
    assert problems(whole) == []


async def test_containers_that_request_whole_cpus_since_the_resize_get_them():
    raw = running("3")
    raw["spec"]["containers"].append({"name": "log", "resources": {"requests": {"cpu": "100m"}}})
    world = World(raw, binding("0-1"))
    await world.reconcile()
    assert world.patches[0]["spec"]["containers"] == ["main"]
    assert world.patches[0]["metadata"]["annotations"] == {SIZE_ANNOTATION: "3 main"}


async def test_where_there_is_no_room_the_pod_keeps_its_cpus_and_gets_an_event():
    physical = profile(workload_aware=WorkloadAwareSettings("Balanced", frozenset({"PhysicalCores"})))
    requested = [pod(f"r{n}", requests={"cpu": "4"}, nodeName="n1", phase="Running") for n in range(4)]
    world = World(running("3"), binding("0-1", level="Core"), *requested, using=physical)
    (wait,) = await world.reconcile()
    assert wait is not None and world.patches == []
    assert world.notes == [
        "CPUsNotResized: Keeps CPUs 0-1: node n1 has no CPUs for 3 cpu-bound threads that no other pod holds or "
        "requests"
    ], "six CPUs of three cores, of which others have requested two"


class Neighbours(World):
    """A node with two pods of a namespace each, one of which is resized first."""

    def __init__(self, raw: dict[str, Any], obj: dict[str, Any], theirs: dict[str, Any]) -> None:
        super().__init__(raw, obj)
        self.other, self.theirs = running("4"), theirs
        for each in (self.other, theirs):
            each["metadata"] |= {"name": "q", "namespace": "team"}
        uid = self.other["metadata"]["uid"] = "uid-q"
        theirs["status"]["podUID"] = theirs["metadata"]["ownerReferences"][0]["uid"] = uid
        self.pods["team", "q"] = self.other
        self.cluster.set_pod(PodView.from_raw(self.other), NOW)
        self.cluster.set_cpu_binding(theirs)

    def judged(self, cpus: str, made_for: str) -> dict[str, Any]:
        """The binding that was written, validated."""
        found = copy.deepcopy(self.obj)
        found["metadata"]["generation"] = found["status"]["observedGeneration"] = 2
        found["metadata"]["annotations"][SIZE_ANNOTATION] = made_for
        found["status"]["cpus"] = cpus
        return found


async def test_the_next_pod_of_the_node_gets_no_cpus_of_a_binding_that_is_not_validated_yet():
    world = Neighbours(running("4"), binding("0-1"), binding("5-6"))
    assert await world.reconcile(world.theirs) == [None, None]
    assert world.cpus() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    near = Neighbours(running("4"), binding("0-1"), binding("4,10"))
    assert await near.reconcile(near.theirs) == [None, None]
    first, second = near.cpus()
    assert not set(first) & set(second)


async def test_the_next_pod_waits_where_it_has_room_only_in_what_the_one_before_gives_up():
    world = Neighbours(running("2"), binding("0-5", "6"), binding("6-7"))
    rest = binding("8-19", "12")
    rest["metadata"] |= {"name": "rest"}
    world.cluster.set_cpu_binding(rest)
    sent: list[list[int]] = []

    async def server(request: web.Request) -> web.StreamResponse:
        sent.append([item["cpuID"] for item in json.loads(await request.read())["spec"]["cpuSet"]])
        return web.json_response({"metadata": {"generation": 2}})

    async with faulty([server]) as made:
        recorder = EventRecorder(made.session, component="c", instance="i")
        resizes = PodResizes(made.session, world.cluster, world.profiles, world.pods, recorder, lambda: True)
        assert await resizes.reconcile(KEY, world.obj) is None
        assert await resizes.reconcile(("team", "q"), world.theirs) == 1.0
        judged = world.judged(",".join(map(str, sent[0])), "2")
        world.cluster.set_cpu_binding(judged)
        assert await resizes.reconcile(KEY, judged) is None
        assert await resizes.reconcile(("team", "q"), world.theirs) is None
        assert not recorder._series, "nobody is told that there is no room"
    assert [len(cpus) for cpus in sent] == [2, 4]


@pytest.mark.parametrize("answer", [refuses(500, "InternalError"), refuses(403, "Forbidden")])
async def test_a_write_that_fails_keeps_no_other_pod_of_the_node_from_its_cpus(answer):
    world = Neighbours(running("4"), binding("0-1"), binding("5-6"))
    sent: list[list[int]] = []

    async def server(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/p"):
            return await answer(request)
        sent.append([item["cpuID"] for item in json.loads(await request.read())["spec"]["cpuSet"]])
        return web.json_response({"metadata": {"generation": 2}})

    async with faulty([server]) as made:
        resizes = PodResizes(made.session, world.cluster, world.profiles, world.pods, None, lambda: True)  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(ApiError):
                await resizes.reconcile(KEY, world.obj)
        assert len(made.seen) == 2, "each is tried once"
        assert await resizes.reconcile(("team", "q"), world.theirs) is None
    assert sent == [[5, 6, 7, 8]]


async def test_the_next_pod_of_the_node_is_resized_while_the_write_for_the_one_before_hangs():
    world, release = Neighbours(running("4"), binding("0-1"), binding("4,10")), asyncio.Event()
    sent: dict[str, list[int]] = {}

    async def server(request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        sent[name] = [item["cpuID"] for item in json.loads(await request.read())["spec"]["cpuSet"]]
        if name == "p":
            await release.wait()
        return web.json_response({"metadata": {"generation": 2}})

    async with faulty([server]) as made:
        resizes = PodResizes(made.session, world.cluster, world.profiles, world.pods, None, lambda: True)  # type: ignore[arg-type]
        hanging = asyncio.create_task(resizes.reconcile(KEY, world.obj))
        await made.asked(1)
        assert await resizes.reconcile(("team", "q"), world.theirs) is None
        release.set()
        await hanging
    assert len(sent["q"]) == 4
    assert not set(sent["p"]) & set(sent["q"])


def test_a_change_of_requests_or_of_what_the_node_reports_is_looked_at():
    marked: list[str] = []
    world = World(running("2"), binding("0-1"))
    resizes = PodResizes(None, world.cluster, {}, {}, None, lambda: True)  # type: ignore[arg-type]
    resizes.mark = lambda namespace, name: marked.append(f"{namespace}/{name}")
    before, asked, done = running("2"), running("4", "2"), running("4")
    for old, new, expected in (
        (before, before, []),
        (before, asked, ["default/p"]),
        (asked, done, ["default/p"]),
        (done, None, []),
        (running("2", labels={}), running("4", labels={}), []),
    ):
        resizes.on_pod(old, new)
        assert marked == expected
        marked.clear()
