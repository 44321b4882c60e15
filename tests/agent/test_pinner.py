"""The agent's word on bindings reaches the API server, whatever that has against one of them, and how it leaves."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import logging
from pathlib import Path

import pytest
from aiohttp import web

from concerto_agent import pinner as pinner_module
from concerto_agent.binding_statuses import BindingStatuses
from concerto_agent.inotify import Inotify
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinner import Pinner
from concerto_agent.pinning_settings import PinningSettings
from support.cgroupfs_model import CgroupfsModel, NodeModel
from support.faulty_server import faulty, hangs_up, refuses
from support.sysfs_trees import build, smt
from support.waiting import eventually

NOW = "2026-03-01T12:00:00Z"
LOG = logging.getLogger(__name__)


def binding(name: str) -> dict[str, object]:
    """One that leaves its pod what it has: a plain file is not written as the kernel's are."""
    validated = {"type": "Validated", "status": "True", "observedGeneration": 1, "reason": "Validated"}
    return {
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "generation": 1, "creationTimestamp": NOW,
            "resourceVersion": "1",
        },
        "spec": {"podName": name, "cpuSet": [{"cpuID": cpu} for cpu in range(4)]},
        "status": {"nodeName": "n", "podUID": name, "cpus": "0-3", "mems": "0", "conditions": [validated]},
    }  # fmt: skip


async def hangs(request: web.Request) -> web.StreamResponse:
    """As an admission webhook keeps it."""
    await asyncio.sleep(60)
    return web.Response()


@pytest.mark.parametrize(
    ("answer", "within_seconds"),
    [
        (refuses(403, "Forbidden"), 1000.0),
        (refuses(422, "Invalid"), 1000.0),
        (refuses(500, "InternalError"), 1000.0),
        (hangs, 0.2),
    ],
    ids=["refused", "not valid", "failed", "not answered"],
)
async def test_a_status_that_is_refused_or_is_none_keeps_no_other_binding_waiting(tmp_path, answer, within_seconds):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    model = NodeModel(CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4))), "cgroupfs")
    for uid in ("a", "b", "c"):
        model.start(uid, "burstable")
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    reported: dict[str, str] = {}
    all_reported = asyncio.Event()

    async def server(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            name = request.path.split("/")[-2]
            if name == "a":
                return await answer(request)
            body = json.loads(await request.read())
            reported[name] = next(c["status"] for c in body["status"]["conditions"] if c["type"] == "Prepared")
            if len(reported) == 2:
                all_reported.set()
            return web.json_response(binding(name) | {"status": body["status"]})
        if "watch" in request.query:
            return await hangs_up(request)
        items = [binding(name) for name in "zabc"]
        items[0]["status"] |= {"cpus": "5-2"}  # which nobody of ours writes
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async with faulty([server]) as made:
        settings = PinningSettings(
            tmp_path / "cpu_manager_state", retry_seconds=within_seconds, write_timeout_seconds=0.2
        )
        pinner = Pinner(made.session, "n", NodeFiles(sys=sys), settings, lambda: 1e9, dict)
        running = asyncio.create_task(pinner.run())
        async with asyncio.timeout(20):
            await all_reported.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert reported == {"b": "True", "c": "True"}


async def test_statuses_that_hang_leave_out_none_however_many_they_are():
    """With four that hang, the first three had all turns: each was due again before the fourth had one."""
    time, reported = 0.0, asyncio.Event()

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal time
        if request.path.split("/")[-2] != "z":
            time += 5.0
            return await hangs(request)
        reported.set()
        return web.json_response(binding("z"))

    async with faulty([server]) as made:
        settings = PinningSettings(Path("state"), write_timeout_seconds=0.02)
        tested = BindingStatuses(made.session, settings, lambda key, obj: {"podUID": "u"}, lambda: time, LOG)
        for name in "abcdz":
            tested.put(("ns", name), binding(name), asks_anew=True)
        for _ in range(12):
            await tested._write_changed()
            time += 2.0
    assert reported.is_set()


async def test_a_status_is_not_tried_again_before_the_time_that_the_api_server_asks_for():
    time, answer = 0.0, refuses(429, "TooManyRequests", headers={"Retry-After": "60"})
    async with faulty([answer]) as made:
        settings = PinningSettings(Path("state"))
        tested = BindingStatuses(made.session, settings, lambda key, obj: {"podUID": "u"}, lambda: time, LOG)
        tested.put(("ns", "a"), binding("a"), asks_anew=True)
        for _ in range(30):
            await tested._write_changed()
            time += 2.0
        assert len(made.seen) == 1
        await tested._write_changed()
        assert len(made.seen) == 2


@pytest.mark.parametrize("answer", [refuses(422, "Invalid"), refuses(409, "Conflict")])
async def test_a_status_that_a_policy_does_not_let_through_is_logged_and_tried_less_and_less_often(answer, caplog):
    """As a ValidatingAdmissionPolicy refuses, unless it names another reason; once it may be another object."""
    time = 0.0
    async with faulty([answer]) as made:
        settings = PinningSettings(Path("state"))
        tested = BindingStatuses(made.session, settings, lambda key, obj: {"podUID": "u"}, lambda: time, LOG)
        tested.put(("ns", "a"), binding("a"), asks_anew=True)
        assert await tested._write_changed()
        assert caplog.records == []
        for _ in range(60):
            time += 1.0
            assert await tested._write_changed()
    assert len(made.seen) <= 8
    (record,) = caplog.records
    assert record.getMessage().startswith("PodCPUBinding ns/a: status not written: 4")


async def test_a_binding_that_was_made_anew_meanwhile_has_its_status_at_once():
    time, answers = 0.0, [refuses(422, "Invalid")]

    async def server(request: web.Request) -> web.StreamResponse:
        return await answers.pop()(request) if answers else web.json_response(binding("a"))

    async with faulty([server]) as made:
        settings = PinningSettings(Path("state"))
        tested = BindingStatuses(made.session, settings, lambda key, obj: {"podUID": "u"}, lambda: time, LOG)
        tested.put(("ns", "a"), binding("a"), asks_anew=True)
        assert await tested._write_changed()
        tested.put(("ns", "a"), binding("a") | {"uid": "another"}, asks_anew=True)
        assert not await tested._write_changed()
    assert len(made.seen) == 2


async def test_a_status_that_a_webhook_changes_in_another_way_each_time_is_written_less_and_less_often():
    """It was written at each look, of which each write asked for another one."""
    time, version = 0.0, 1

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal version
        version += 1
        obj = binding("a")
        status = obj["status"] | {"applied": {"podUID": f"odd-{version}"}}
        return web.json_response(
            obj | {"metadata": obj["metadata"] | {"resourceVersion": str(version)}, "status": status}
        )

    async with faulty([server]) as made:
        settings = PinningSettings(Path("state"))
        status = {"applied": {"podUID": "u"}}
        tested = BindingStatuses(made.session, settings, lambda key, obj: status, lambda: time, LOG)
        tested.put(("ns", "a"), binding("a"), asks_anew=True)
        for _ in range(100):
            await tested._write_changed()
            time += 0.1
        assert 2 <= len(made.seen) <= 5


async def test_a_status_that_is_refused_is_tried_less_and_less_often(tmp_path):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    model = NodeModel(CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4))), "cgroupfs")
    model.start("a", "burstable")
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    tried = 0

    async def server(request: web.Request) -> web.StreamResponse:
        nonlocal tried
        if request.method == "PATCH":
            tried += 1
            return await refuses(403, "Forbidden")(request)
        if "watch" in request.query:
            return await hangs_up(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [binding("a")]})

    async with faulty([server]) as made:
        settings = PinningSettings(tmp_path / "cpu_manager_state", repair_seconds=0.01, retry_seconds=0.02)
        pinner = Pinner(made.session, "n", NodeFiles(sys=sys), settings, lambda: 1e9, dict)
        running = asyncio.create_task(pinner.run())
        await eventually(lambda: tried >= 3)
        await asyncio.sleep(0.6)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert tried <= 8


async def test_an_agent_without_an_inotify_instance_pins_all_the_same(tmp_path, monkeypatch):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    model = NodeModel(CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4))), "cgroupfs")
    model.start("a", "burstable")
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    reported, listens = asyncio.Event(), asyncio.Event()
    failures = itertools.repeat(None, 3)

    def open_inotify() -> Inotify:
        if next(failures, "none") is None:
            raise OSError(errno.EMFILE, "Too many open files")
        listens.set()
        return Inotify()

    monkeypatch.setattr(pinner_module, "Inotify", open_inotify)

    async def server(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            reported.set()
            return web.json_response(binding("a") | {"status": json.loads(await request.read())["status"]})
        if "watch" in request.query:
            return await hangs_up(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [binding("a")]})

    async with faulty([server]) as made:
        settings = PinningSettings(tmp_path / "cpu_manager_state", repair_seconds=0.05)
        pinner = Pinner(made.session, "n", NodeFiles(sys=sys), settings, lambda: 1e9, dict)
        running = asyncio.create_task(pinner.run())
        async with asyncio.timeout(20):
            await reported.wait()
            await listens.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_type_that_does_not_fit_what_the_pod_uses_is_reported(tmp_path):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    model = NodeModel(CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4))), "cgroupfs")
    model.start("a", "burstable")
    usage = sys / "fs/cgroup/cpuacct" / model.pods["a"] / "cpuacct.usage"
    usage.parent.mkdir(parents=True)
    usage.write_text("0\n")  # it has a CPU and does nothing
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    typed = binding("a")
    typed["metadata"]["labels"] = {"concerto.dev/workload-type": "cpu-bound"}
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def server(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            body = json.loads(await request.read())
            for condition in body["status"]["conditions"]:
                if condition["type"] == "WorkloadTypeFits" and not found.done():
                    found.set_result(condition["reason"])
            return web.json_response(typed | {"status": typed["status"] | body["status"]})
        if "watch" in request.query:
            return await hangs_up(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [typed]})

    async with faulty([server]) as made:
        settings = PinningSettings(tmp_path / "cpu_manager_state", repair_seconds=0.01)
        clock = itertools.count(0, 1000)  # each look is one window after the one before
        pinner = Pinner(
            made.session, "n", NodeFiles(sys=sys), settings, lambda: 1e9, dict, clock=lambda: float(next(clock))
        )
        running = asyncio.create_task(pinner.run())
        async with asyncio.timeout(20):
            assert await found == "MostlyIdle"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("unreadable", "afterwards", "reported"),
    [
        ("sys/devices/system/cpu/online", "0-3", "releasing every pin"),
        ("cpu_manager_state", "1", "pins stay: "),
    ],
    ids=["the topology: pods get what the cgroup above them has", "kubelet's state: a set could be kubelet's"],
)
async def test_an_agent_that_is_removed_releases_what_it_can_though_a_file_can_not_be_read(
    tmp_path, caplog, unreadable, afterwards, reported
):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    model = NodeModel(CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4))), "cgroupfs")
    model.start("a", "burstable")
    for path in reversed(model.below("a")):
        model.cgroups.write(model.cgroups.root / path / "cpuset.cpus", "1")
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    (tmp_path / unreadable).unlink()
    settings = PinningSettings(tmp_path / "cpu_manager_state", daemon_set=("concerto-system", "concerto-agent"))
    async with faulty([refuses(404, "NotFound")]) as made:
        with caplog.at_level("INFO"):
            await Pinner(made.session, "n", NodeFiles(sys=sys), settings, lambda: 1e9, dict).release_on_uninstall()
    found = {(model.cgroups.root / path / "cpuset.cpus").read_text().strip() for path in model.below("a")}
    assert found == {afterwards}
    assert reported in caplog.text
