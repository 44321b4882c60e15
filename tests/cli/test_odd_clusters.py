"""What commands say of clusters that are empty, that hide things, and that hold what cannot be read: sentences."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from concerto.cli.main import main
from support.scheduling_builders import NOW, capacity, load

POD = {
    "metadata": {"name": "p", "namespace": "a", "uid": "u-p", "creationTimestamp": "2026-03-01T12:00:00Z"},
    "spec": {"schedulerName": "concerto", "containers": [{"name": "main", "image": "x:1"}]},
    "status": {"phase": "Pending"},
}
PROFILE = {
    "metadata": {"name": "concerto", "uid": "u-s", "creationTimestamp": "2026-03-01T12:00:00Z"},
    "spec": {"schedulerName": "concerto"},
}
NODE = {
    "metadata": {"name": "n1", "uid": "u-n", "creationTimestamp": "2026-03-01T12:00:00Z"},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
CAPACITY = {
    "metadata": {"name": "n1", "uid": "u-c"},
    "spec": {},
    "status": capacity("n1", 2.5, at=NOW, windows=load((0.5, 0.1), (0.2, 0.1))).status.to_raw(),
}
PODS, ONE = "/api/v1/pods", "/api/v1/namespaces/a/pods/p"
OURS = "/apis/concerto.dev/v1alpha1"
SMALL = {
    ONE: POD,
    PODS: [POD],
    "/api/v1/nodes": [NODE],
    f"{OURS}/nodecapacities": [CAPACITY],
    f"{OURS}/schedulingprofiles": [PROFILE],
}


def refusal(code, reason, message):
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


NO_KIND = (404, "NotFound", "the server could not find the requested resource")


def forbidden(what):
    return (403, "Forbidden", f'{what} is forbidden: User "jo" cannot list resource "{what}" at the cluster scope')


@asynccontextmanager
async def serving(contents, folder) -> AsyncIterator[str]:
    """A kubeconfig of an API server with these objects by path; a list that is not among them is empty."""

    async def answer(request: web.Request) -> web.Response:
        found = contents.get(request.path)
        if isinstance(found, tuple):
            return refusal(*found)
        if isinstance(found, dict):
            return web.json_response(found)
        if found is None and request.path.startswith((f"{OURS}/subspacesnapshots/", f"{OURS}/nodecputopologies/", ONE)):
            return refusal(404, "NotFound", f"{request.path} not found")
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": found or []})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = folder / "config"
        path.write_text(json.dumps(config))
        yield str(path)


async def says(contents, arguments, folder, capsys):
    """Exit status, standard output and standard error of a command on a cluster."""
    async with serving(contents, folder) as config:
        status = await asyncio.to_thread(main, [*arguments, "--kubeconfig", config])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


EXPLAIN, TOP, TOP_NODE, TOP_CPUS = ["explain", "pod", "a/p"], ["top"], ["top", "node", "n1"], ["top", "cpus", "n1"]
EMPTY = {
    "explain": (EXPLAIN, 1, "there is no pod a/p"),
    "top": (TOP, 0, ""),
    "top node": (TOP_NODE, 1, "there is no NodeCapacity n1: is the node's agent running?"),
    "top cpus": (TOP_CPUS, 1, "there is no NodeCPUTopology n1: is the node's agent running?"),
}


@pytest.mark.parametrize(("arguments", "status", "message"), EMPTY.values(), ids=EMPTY)
async def test_an_empty_cluster_is_shown_as_that(arguments, status, message, tmp_path, capsys):
    found, out, err = await says({}, arguments, tmp_path, capsys)
    assert found == status
    assert message in err
    assert status or out.startswith("NODE  CAN TAKE")


async def test_a_pod_in_a_cluster_without_nodes_is_explained(tmp_path, capsys):
    status, out, _ = await says({**SMALL, "/api/v1/nodes": []}, EXPLAIN, tmp_path, capsys)
    assert (status, out.splitlines()[0]) == (0, "Pod a/p, waiting, schedulerName concerto")


MISSING = {"capacities": "nodecapacities", "profiles": "schedulingprofiles", "bindings": "podcpubindings"}


@pytest.mark.parametrize("plural", MISSING.values(), ids=MISSING)
async def test_a_kind_that_is_not_installed_is_named_and_not_taken_for_the_pod(plural, tmp_path, capsys):
    status, _, err = await says({**SMALL, f"{OURS}/{plural}": NO_KIND}, EXPLAIN, tmp_path, capsys)
    assert status == 1
    assert f"{plural}.concerto.dev" in err
    assert "kubectl apply -k crds" in err
    assert "there is no pod" not in err


async def test_top_names_a_kind_that_is_not_installed(tmp_path, capsys):
    status, _, err = await says({f"{OURS}/nodecapacities": NO_KIND}, TOP, tmp_path, capsys)
    assert status == 1
    assert "nodecapacities.concerto.dev" in err
    topology = {f"{OURS}/nodecputopologies/n1": {"metadata": {"name": "n1"}, "spec": {"nodeName": "n1"}}}
    status, _, err = await says({**topology, f"{OURS}/podcpubindings": NO_KIND}, TOP_CPUS, tmp_path, capsys)
    assert status == 1
    assert "PodCPUBinding" in err


@pytest.mark.parametrize("arguments", [EXPLAIN, TOP, TOP_NODE], ids=["explain", "top", "top node"])
async def test_a_right_that_is_missing_is_named(arguments, tmp_path, capsys):
    status, _, err = await says({**SMALL, "/api/v1/nodes": forbidden("nodes")}, arguments, tmp_path, capsys)
    assert status == 1
    assert 'User "jo" cannot list resource "nodes"' in err
    assert "the right to list nodes in all namespaces" in err


LATE = "10000-01-01T23:58:59Z"


def odd(obj, name, **status):
    made = copy.deepcopy(obj)
    made["metadata"] |= {"name": name, "uid": f"u-{name}"}
    made["status"] = {**made.get("status", {}), **status}
    return made


UNREADABLE = {
    "a capacity": (f"{OURS}/nodecapacities", odd(CAPACITY, "n2", observedAt=LATE), "NodeCapacity n2 is left out"),
    "a capacity of nothing": (
        f"{OURS}/nodecapacities",
        {"metadata": {"name": "n2"}, "status": {"observedAt": NOW}},
        "n2",
    ),
    "a node": ("/api/v1/nodes", odd(NODE, "n2", allocatable={"cpu": "lots"}), "Node n2 is left out"),
    "a pod": (PODS, {**odd(POD, "q"), "spec": {"containers": [{"resources": {"requests": {"cpu": "x"}}}]}}, "Pod a/q"),
}


@pytest.mark.parametrize(("path", "obj", "message"), UNREADABLE.values(), ids=UNREADABLE)
async def test_an_object_that_cannot_be_read_costs_only_itself(path, obj, message, tmp_path, capsys):
    contents = {**SMALL, path: [obj, *SMALL[path]]}
    status, out, err = await says(contents, TOP, tmp_path, capsys)
    assert (status, message in err, "n1    2.5" in out) == (0, True, True)
    status, out, _ = await says(contents, EXPLAIN, tmp_path, capsys)
    assert (status, message in out, "\nn1 " in out) == (0, True, True)


async def test_many_objects_that_cannot_be_read_are_counted(tmp_path, capsys):
    odd_ones = [odd(CAPACITY, f"x{i}", observedAt=LATE) for i in range(30)]
    _, _, err = await says({f"{OURS}/nodecapacities": odd_ones}, TOP, tmp_path, capsys)
    assert err.count("\n") == 6
    assert "25 more objects are left out" in err


async def test_a_pod_or_profile_that_cannot_be_read_is_said_to_be_that(tmp_path, capsys):
    broken = {**POD, "spec": {**POD["spec"], "containers": [{"resources": {"requests": {"cpu": "x"}}}]}}
    status, _, err = await says({**SMALL, ONE: broken}, EXPLAIN, tmp_path, capsys)
    assert (status, "pod a/p cannot be read" in err) == (1, True)
    profile = {**PROFILE, "spec": {"schedulerName": "concerto", "scores": [{"name": "Nonsense"}]}}
    status, _, err = await says({**SMALL, f"{OURS}/schedulingprofiles": [profile]}, EXPLAIN, tmp_path, capsys)
    assert (status, "SchedulingProfile concerto cannot be used" in err, "kubectl describe sprof" in err) == (
        1,
        True,
        True,
    )


async def test_events_without_a_note_or_a_time_are_no_reason_to_give_up(tmp_path, capsys):
    path = "/apis/events.k8s.io/v1/namespaces/a/events"
    events = [
        {"reason": "FailedScheduling"},
        {"reason": "FailedScheduling", "note": "late", "eventTime": LATE},
        {"reason": "FailedScheduling", "note": "two\nlines", "series": None, "eventTime": None},
    ]
    status, out, _ = await says({**SMALL, path: events}, EXPLAIN, tmp_path, capsys)
    assert (status, out.splitlines()[1:3]) == (0, ["  late", "  two\N{REPLACEMENT CHARACTER}lines"])


ESCAPE = "\x1b]0;x\x07\x1b[2J"


async def test_nothing_that_users_have_written_reaches_the_terminal_as_a_command(tmp_path, capsys):
    named = {**POD, "spec": {**POD["spec"], "schedulerName": f"c{ESCAPE}"}}
    status, out, err = await says({**SMALL, ONE: named}, EXPLAIN, tmp_path, capsys)
    assert (status, "\x1b" in out + err) == (1, False)
    owner = {"apiVersion": "x/v1", "kind": "Y", "name": f"o{ESCAPE}", "uid": "u", "controller": True}
    owned = {**odd(POD, "q", phase="Running"), "spec": {**POD["spec"], "nodeName": "n1"}}
    owned["metadata"]["ownerReferences"] = [owner]
    status, out, err = await says({**SMALL, PODS: [owned]}, TOP_NODE, tmp_path, capsys)
    assert (status, "\x1b" in out + err, "a/Y/o" in out) == (0, False, True)


TOPOLOGIES = {
    "memory nodes of other CPUs": {
        "cpus": [0, 1],
        "sockets": {"0": {"cpus": [0], "cores": {"0": {"cpus": [0, 1]}}}},
        "numaNodes": {"0": {"cpus": [7]}, "1": {"cpus": []}},
    },
    "two sockets of one CPU": {
        "sockets": {"0": {"cores": {"0": {"cpus": [0]}}}, "1": {"cores": {"0": {"cpus": [0]}}}},
        "numaNodes": {"0": {"cpus": [0]}},
    },
    "nothing": {"cpus": [], "sockets": {}, "numaNodes": {}},
    "a core of nothing": {"sockets": {"0": {"cores": {"0": {"cpus": []}}}}, "numaNodes": {}},
    "numbers that are words": {"sockets": {"x": {"cores": {}}}, "numaNodes": {}},
    "something else": {"sockets": 7},
}


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
async def test_a_topology_that_makes_no_sense_is_drawn_as_far_as_possible_or_named(topology, tmp_path, capsys):
    obj = {"metadata": {"name": "n1"}, "spec": {"nodeName": "n1"}, "status": {"topology": topology}}
    bound = {"resourceStatus": "[/x]", "cpus": "0,9", "exclusivenessLevel": "NUMA", "nodeName": "n1"}
    bindings = [
        {"metadata": {"name": "b", "namespace": "a"}, "spec": {}},
        {
            "metadata": {"name": "c", "namespace": "a", "uid": "u", "creationTimestamp": "2026-03-01T12:00:00Z"},
            "spec": {"podName": "p", "cpuSet": [{"cpuID": 0}]},
            "status": bound,
        },
        {
            "metadata": {"name": "d", "namespace": "a", "uid": "v", "creationTimestamp": "2026-03-01T12:00:00Z"},
            "spec": {"podName": "q", "cpuSet": [{"cpuID": 0}]},
            "status": {**bound, "cpus": "x"},
        },
    ]
    contents = {f"{OURS}/nodecputopologies/n1": obj, f"{OURS}/podcpubindings": bindings}
    status, out, err = await says(contents, TOP_CPUS, tmp_path, capsys)
    assert (status == 0 and "n1" in out) or (status == 1 and "NodeCPUTopology n1" in err)
