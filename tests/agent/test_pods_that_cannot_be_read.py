"""What the agent can't read of one pod costs that pod alone: the others are served as before."""

from __future__ import annotations

import asyncio
import copy
import json
import logging

import pytest
from aiohttp import web
from test_cpusets import agent, claim, node, sets
from test_pinner import binding

from concerto_agent.error_log import ErrorLog
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinner import Pinner
from concerto_agent.pinning_settings import PinningSettings
from concerto_agent.pod_census import PodCensus, trim_pod
from concerto_agent.quotas import QuotaFiles
from support.cgroupfs_model import CgroupfsModel, NodeModel
from support.faulty_server import faulty, hangs_up
from support.sysfs_trees import build, smt

FILES = [(1, "cpuset.cpus"), (1, "cpuset.mems"), (2, "cpuset.cpus"), (2, "cpuset.mems"), (2, "cpuset.cpus.effective")]


def breaks(model: NodeModel, uid: str, file: str) -> None:
    """Neither reads nor writes of this file of the pod's cgroup succeed."""
    path = model.cgroups.root / model.pods[uid] / file
    path.unlink()
    path.mkdir()


def mends(model: NodeModel, uid: str, file: str, text: str) -> None:
    path = model.cgroups.root / model.pods[uid] / file
    path.rmdir()
    path.write_text(text)
    if model.cgroups.version == 2:
        model.cgroups._refresh(path.parent)


@pytest.mark.parametrize(("version", "file"), FILES)
def test_a_pod_that_can_not_be_read_blocks_exclusive_cpus_and_nothing_else(tmp_path, version, file):
    model = node(tmp_path, version, pods="abcx")
    text = (model.cgroups.root / model.pods["x"] / file).read_text()
    breaks(model, "x", file)
    cpusets = agent(model)
    shared, exclusive = claim("a", 1, level="None"), claim("b", 2, created=1)
    cpusets.enforce([shared, exclusive])
    assert sets(model, "a") == {frozenset({1})}
    assert cpusets.outcomes["a"].exact
    assert sets(model, "c") == {frozenset({0, 1, 3})}, "it has left what is kept for b"
    assert cpusets.outcomes["b"].intruder == "pod x", "it may run anywhere"
    mends(model, "x", file, text)
    cpusets.enforce([shared, exclusive])
    assert cpusets.outcomes["b"].exact
    assert not cpusets.outcomes["b"].intruder


@pytest.mark.parametrize(("version", "file"), FILES)
def test_a_bound_pod_that_can_not_be_read_is_reported_as_such(tmp_path, version, file):
    model = node(tmp_path, version, pods="bcx")
    breaks(model, "x", file)
    cpusets = agent(model)
    cpusets.enforce([claim("x", 1), claim("b", 2, level="None", created=1)])
    assert cpusets.outcomes["b"].exact
    assert sets(model, "c") == {frozenset({0, 2, 3})}
    if file == "cpuset.cpus":
        assert not cpusets.outcomes["x"].exact
        assert cpusets.outcomes["x"].error


@pytest.mark.parametrize("text", ["", "max", "x 100000", "1 2 3"])
def test_a_malformed_quota_is_an_error_of_its_pod(tmp_path, text):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "cpu.max").write_text(text)
    error = QuotaFiles(tmp_path, 2).enforce("p", [], lifted=True, limits=None)
    assert error is not None
    assert error.strerror == "its quota can't be read"


UNREADABLE = {
    "a level of a later version": lambda b: b["status"].update(exclusivenessLevel="Rack"),
    "CPUs backwards": lambda b: b["status"].update(cpus="5-2"),
    "CPUs that are no text": lambda b: b["status"].update(cpus=7),
    "no pod's name": lambda b: b["spec"].pop("podName"),
    "no CPUs in the spec": lambda b: b["spec"].update(cpuSet=[{}]),
    "malformed containers": lambda b: b["status"].update(containers=7),
    "a condition without a type": lambda b: b["status"]["conditions"].append({"status": "True"}),
    "a malformed answer": lambda b: b["status"].update(applied="x"),
}


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_binding_that_can_not_be_read_keeps_no_other_from_its_cpus(tmp_path, damage):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    model = NodeModel(CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4))), "cgroupfs")
    for uid in ("a", "b", "c"):
        model.start(uid, "burstable")
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    broken = copy.deepcopy(binding("a"))
    damage(broken)
    reported: set[str] = set()
    all_reported = asyncio.Event()

    async def server(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            name, body = request.path.split("/")[-2], json.loads(await request.read())
            if any(c["type"] == "Prepared" and c["status"] == "True" for c in body["status"].get("conditions") or ()):
                reported.add(name)
            if reported >= {"b", "c"}:
                all_reported.set()
            return web.json_response(binding(name) | {"status": body["status"]})
        if "watch" in request.query:
            return await hangs_up(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [broken, binding("b"), binding("c")]})

    async with faulty([server]) as made:
        settings = PinningSettings(tmp_path / "cpu_manager_state", retry_seconds=1000.0)
        pinner = Pinner(made.session, "n", NodeFiles(sys=sys), settings, lambda: 1e9, dict)
        running = asyncio.create_task(pinner.run())
        async with asyncio.timeout(20):
            await asyncio.wait(
                {running, waiting := asyncio.create_task(all_reported.wait())}, return_when="FIRST_COMPLETED"
            )
        assert not running.done()
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert reported >= {"b", "c"}


# Go writes 9999-12-31T23:59:59-23:59 again as this
LATE = "10000-01-01T23:58:59Z"


class Nobody:
    def pod_started(self, at: float) -> None: ...
    def pod_ended(self, uid: str, started_at: float, at: float) -> None: ...


def running_pod(name: str, started: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
    container = {
        "name": "main",
        "containerID": f"containerd://{name * 64}",
        "state": {"running": {"startedAt": started}},
    }
    status = {"phase": "Running", "startTime": started, "containerStatuses": [container]}
    return trim_pod({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": status})


def test_a_date_that_python_can_not_represent_is_no_date():
    census = PodCensus(Nobody(), max_pods=10)
    census.appeared("a", 1.0)
    census.on_pod_change(None, running_pod("a", LATE), 2.0, 1e9)
    census.working("a", 3.0)
    assert list(census.counted) == ["a"]


def test_an_error_that_lasts_is_logged_once_and_again_when_it_comes_back(caplog):
    errors = ErrorLog(logging.getLogger("agent"))
    for _ in range(3):
        errors.note("pod a", OSError("gone"))
    errors.forget("pod a")
    errors.note("pod a", OSError("gone"))
    errors.note("pod a", KeyError("ours"))
    assert [(r.getMessage(), bool(r.exc_info)) for r in caplog.records] == [
        ("pod a: OSError: gone", False), ("pod a: OSError: gone", False), ("pod a: KeyError: 'ours'", True),
    ]  # fmt: skip
