"""The agent as a plugin of the container runtime: when it registers, and what containers get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import pytest
from aiohttp import web
from test_pinner import binding

from concerto_agent import node_cpusets
from concerto_agent.cpuset_files import CpusetFiles
from concerto_agent.node_files import NodeFiles
from concerto_agent.nri.client import NriSettings
from concerto_agent.nri.protobuf import Fields, message
from concerto_agent.pinner import Pinner
from concerto_agent.pinning_settings import PinningSettings
from support.cgroupfs_model import CgroupfsModel, NodeModel
from support.faulty_server import faulty, hangs_up
from support.nri_runtime import Peer, container, runtime
from support.sysfs_trees import build, smt
from support.waiting import eventually


@dataclass
class Node:
    """A node of four CPUs with an agent that pins, of which pod a is bound to CPU 1."""

    model: NodeModel
    pinner: Pinner
    peers: list[Peer]
    listed: asyncio.Event

    async def registered(self) -> Peer:
        """The runtime's end of the connection, once it calls the agent for each container."""
        await eventually(lambda: self.peers)
        assert self.pinner.writer == "NRI"
        return self.peers[-1]


def only_cpu(uid: str, cpu: int) -> dict[str, object]:
    made = binding(uid)
    made["spec"] |= {"cpuSet": [{"cpuID": cpu}], "exclusivenessLevel": "CPU"}
    made["status"] |= {"cpus": str(cpu)}
    return made


@pytest.fixture
async def node(tmp_path, monkeypatch) -> AsyncIterator[Node]:
    sys = build(tmp_path / "sys", smt(1, 2, 2))
    cgroups = CgroupfsModel(sys / "fs/cgroup/cpuset", 1, frozenset(range(4)))
    # plain files do not do what the kernel does with a write
    monkeypatch.setattr(node_cpusets, "CpusetFiles", partial(CpusetFiles, write=cgroups.write))
    model = NodeModel(cgroups, "cgroupfs")
    for uid in ("a", "b"):
        model.start(uid, "burstable", containers=0)
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "none"}))
    listed, peers = asyncio.Event(), []

    async def server(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            body = json.loads(await request.read())
            return web.json_response(only_cpu("a", 1) | {"status": body["status"]})
        await listed.wait()
        if "watch" in request.query:
            return await hangs_up(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [only_cpu("a", 1)]})

    async def serve(peer: Peer) -> None:
        await peer.register()
        peers.append(peer)

    async with faulty([server]) as api, runtime(tmp_path / "nri.sock", serve):
        nri = NriSettings(tmp_path / "nri.sock", max_wait_seconds=0.05)
        settings = PinningSettings(tmp_path / "cpu_manager_state", nri=nri)
        pinner = Pinner(api.session, "n", NodeFiles(sys=sys), settings, lambda: 1e9, dict)
        work = asyncio.create_task(pinner.run())
        try:
            yield Node(model, pinner, peers, listed)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def created_with(answer: Fields) -> str:
    """CPUs of a CreateContainerResponse."""
    return answer.message(1, 6, 2, 2).text(6)


async def test_it_registers_when_all_bindings_are_known_and_not_before(node):
    await asyncio.sleep(0.05)
    assert (node.peers, node.pinner.writer) == ([], "Files"), "it would give a bound pod's container everybody's CPUs"
    node.listed.set()
    peer = await node.registered()
    assert created_with(await peer.call("CreateContainer", container("a", "main"))) == "1"
    assert created_with(await peer.call("CreateContainer", container("b", "main"))) == ""
    assert node.model.cgroups.effective(node.model.pods["b"]) == {0, 2, 3}, "its containers inherit this"
    counts = node.pinner.counts()
    assert {kind: count for kind, count in counts.created.items() if count} == {"Bound": 1, "Inherited": 1}
    assert (counts.registrations, counts.late) == (1, 0)


async def test_a_pod_whose_cgroup_the_kernel_has_not_reported_yet_is_found(node):
    node.listed.set()
    peer = await node.registered()
    asked = asyncio.ensure_future(peer.call("CreateContainer", container("c", "main")))
    node.model.start("c", "besteffort", containers=0)
    assert created_with(await asked) == ""
    assert node.model.cgroups.effective(node.model.pods["c"]) == {0, 2, 3}


async def test_a_pod_that_is_not_this_nodes_is_left_alone(node):
    node.listed.set()
    peer = await node.registered()
    for uid in ("z", "", "../../a"):
        assert created_with(await peer.call("CreateContainer", container(uid, "main"))) == ""
    assert node.pinner.counts().created["Unknown"] == 3


async def test_a_cgroup_that_is_wrong_by_then_is_right_when_the_program_starts(node):
    node.listed.set()
    peer = await node.registered()
    await peer.call("CreateContainer", container("a", "main"))
    path = node.model.start_container("a", "c" * 64)
    node.model.cgroups._put(node.model.cgroups.root / node.model.pods["a"], "cpuset.cpus", frozenset({0, 1}))
    node.model.cgroups._put(node.model.cgroups.root / path, "cpuset.cpus", frozenset({0}))
    await peer.call("StartContainer", container("a", "main"))
    assert node.model.cgroups.effective(path) == {1}


async def test_an_update_by_kubelet_does_not_move_a_bound_container(node):
    node.listed.set()
    peer = await node.registered()
    update = (await peer.call("UpdateContainer", container("a", "main"))).message(1)
    assert (update.text(1), update.message(2, 1, 2).text(6)) == ("c" * 64, "1")


async def test_the_runtime_names_containers_before_the_pods_status_does(node):
    node.listed.set()
    peer = await node.registered()
    await peer.call("CreateContainer", container("a", "main", "d" * 64))
    await peer.call("CreateContainer", container("a", "main", "e" * 64))  # started again
    await peer.call("CreateContainer", container("a", "log", "f" * 64))
    assert node.pinner._names("a") == {"e" * 64: "main", "f" * 64: "log"}


async def test_a_large_container_keeps_its_name_when_it_is_started(node):
    node.listed.set()
    peer = await node.registered()
    await peer.call("CreateContainer", container("a", "main"))
    await peer.call("StartContainer", container("a", "main") + message(2, message(8, b"A=") * 100_000))
    assert node.pinner._names("a") == {"c" * 64: "main"}
