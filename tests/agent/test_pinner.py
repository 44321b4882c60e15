"""The agent's word on bindings reaches the API server, whatever that has against one of them."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from cgroupfs_model import CgroupfsModel, NodeModel
from sysfs_trees import build, smt

from concerto_agent.pinner import Pinner, PinningSettings
from concerto_agent.sampler import SamplerSettings
from kube.faulty_server import faulty, hangs_up, refuses

NOW = "2026-03-01T12:00:00Z"


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


@pytest.mark.parametrize("answer", [refuses(403, "Forbidden"), refuses(500, "InternalError")])
async def test_a_status_that_is_refused_or_is_none_keeps_no_other_binding_waiting(tmp_path, answer):
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    model = NodeModel(CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4))), "cgroupfs")
    for uid in ("a", "b", "c"):
        model.start(uid, "burstable")
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    told: dict[str, str] = {}
    all_told = asyncio.Event()

    async def server(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            name = request.path.split("/")[-2]
            if name == "a":
                return await answer(request)
            body = json.loads(await request.read())
            told[name] = next(c["status"] for c in body["status"]["conditions"] if c["type"] == "Prepared")
            if len(told) == 2:
                all_told.set()
            return web.json_response(binding(name) | {"status": body["status"]})
        if "watch" in request.query:
            return await hangs_up(request)
        items = [binding(name) for name in "zabc"]
        items[0]["status"] |= {"cpus": "5-2"}  # which nobody of ours writes
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async with faulty([server]) as made:
        settings = PinningSettings(tmp_path / "cpu_manager_state", tmp_path / "config.yaml", retry_seconds=1000.0)
        pinner = Pinner(made.session, "n", SamplerSettings(sys=sys), settings, lambda: 1e9, dict)
        running = asyncio.create_task(pinner.run())
        async with asyncio.timeout(20):
            await all_told.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert told == {"b": "True", "c": "True"}
