"""Pods as large as the API server takes them: an agent of 128 MiB follows them, and reads the same of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from concerto.kube import Reflector
from concerto_agent.agent import Agent, AgentSettings
from concerto_agent.binding_statuses import BindingStatuses
from concerto_agent.bindings import read_claim
from concerto_agent.large_objects import decode_bindings, decode_pods
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinning_settings import PinningSettings
from concerto_agent.pod_census import trim_pod
from support.daemon_sets import daemon_affinity, owner
from support.faulty_server import QUICK, faulty
from support.node_trees import Machine
from support.traced_memory import traced_memory

Object = dict[str, Any]

TIME = "2026-03-01T12:00:00Z"
ENVIRONMENT = [{"name": "a"}] * 75_000
"""1 MiB of JSON."""


def pod(name: str = "p", metadata: Object | None = None, spec: Object | None = None, **status: Any) -> Object:
    container = {"name": "main", "image": "i:1", "env": ENVIRONMENT, "resources": {"limits": {"cpu": "2"}}}
    return {
        "metadata": {
            "namespace": "n", "name": name, "uid": f"uid-{name}", "resourceVersion": "7", "labels": {"a": "b"},
            "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}],
        } | (metadata or {}),
        "spec": {"nodeName": "n1", "restartPolicy": "Always", "containers": [container], "volumes": [{"name": "v"}]}
        | (spec or {}),
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]} | status,
    }  # fmt: skip


def reported(name: str = "main", **state: Any) -> Object:
    return {"name": name, "image": "i:1", "containerID": f"containerd://{name}", "state": state, "lastState": {}}


RUNS, ENDED = {"startedAt": TIME}, {"exitCode": 0, "startedAt": TIME, "finishedAt": TIME}
JOB = owner("Job") | {"name": "j-29000000"}
MAIN = {"name": "main", "image": "i:1", "env": ENVIRONMENT}
CONTROLLED = [owner("Job") | {"controller": False}] * 3 + [{"name": "x"}, owner("ReplicaSet") | {"name": "web-5d"}]
PODS = {
    "one that waits": pod(),
    "one with nulls": pod(
        metadata={"labels": None, "annotations": None, "ownerReferences": None, "generateName": None},
        spec={"affinity": None, "initContainers": None, "overhead": None, "resources": {"limits": None}},
        containerStatuses=[reported() | {"state": None, "lastState": {"waiting": None}}],
        startTime=None,
    ),
    "one with an amount that is a number": pod(spec={"resources": {"limits": {"cpu": 2}}}),
    "one with many owners": pod(metadata={"ownerReferences": CONTROLLED}),
    "one with a controller that is a text": pod(
        metadata={"ownerReferences": [{"kind": "A", "name": "b", "controller": "no"}]}
    ),
    "one that runs": pod(phase="Running", startTime=TIME, containerStatuses=[reported(running=RUNS)]),
    "one of a Deployment": pod(
        metadata={
            "ownerReferences": [owner("Job") | {"controller": False}, owner("ReplicaSet") | {"name": "web-5d"}],
            "labels": {"pod-template-hash": "5d", "app": "web"},
            "generateName": "web-5d-",
        }
    ),
    "one of a DaemonSet": pod(
        metadata={"ownerReferences": [owner("DaemonSet")]}, spec={"affinity": daemon_affinity("n1")}
    ),
    "one with terms that name no node": pod(
        metadata={"ownerReferences": [owner("DaemonSet")]},
        spec={
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                    }
                }
            }
        },
    ),
    "a mirror": pod(
        metadata={
            "annotations": {"kubernetes.io/config.mirror": "c4", "kubernetes.io/config.hash": "c4", "other": "x"},
            "ownerReferences": [owner("Node")],
        }
    ),
    "one of a Job that has ended": pod(
        metadata={"ownerReferences": [JOB]},
        spec={"restartPolicy": "OnFailure"},
        phase="Running",
        containerStatuses=[reported(terminated=ENDED)],
    ),
    "one that is deleted": pod(metadata={"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 30}),
    "one with rules, a sidecar and overhead": pod(
        spec={
            "restartPolicy": "Never",
            "containers": [MAIN | {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In"}}]}],
            "initContainers": [{"name": "side", "image": "s", "restartPolicy": "Always"}],
            "overhead": {"cpu": "250m"},
            "resources": {"limits": {"cpu": "3", "memory": "1Gi"}},
        },
        containerStatuses=[reported(waiting={"reason": "CrashLoopBackOff"}) | {"lastState": {"terminated": ENDED}}],
        initContainerStatuses=[reported("side", running=RUNS)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("whole", PODS.values(), ids=PODS)
def test_of_a_large_pod_the_same_is_read_as_if_it_were_decoded_whole(whole: Object) -> None:
    expected = trim_pod(whole)
    page = decode_pods(orjson.dumps({"metadata": {"resourceVersion": "9", "continue": "c"}, "items": [whole]}))
    assert page["metadata"] == {"resourceVersion": "9", "continue": "c"}
    event = decode_pods(orjson.dumps({"type": "MODIFIED", "object": whole}))
    assert event["type"] == "MODIFIED"
    for read in (*page["items"], event["object"]):
        assert trim_pod(read) == expected


def test_of_a_large_annotation_nothing_is_held() -> None:
    for_static = {"kubernetes.io/config.mirror": "m" * 100_000, "kubernetes.io/config.hash": "h" * 100_000}
    for each in (for_static, {"kubernetes.io/config.hash": "uid-of-another-pod"}):
        assert trim_pod(pod(metadata={"annotations": each}))["metadata"]["annotations"] == {}


ESCAPED = "\\u003c" * 400_000 + "\U0001f600"
"""In a Python string, each of these characters takes 4 bytes."""
LARGE = {
    "environment": {"spec": {"containers": [MAIN]}},
    "one text that JSON escapes": {"spec": {"containers": [MAIN | {"env": [{"name": "a", "value": "ESCAPED"}]}]}},
    "arguments": {"spec": {"containers": [MAIN | {"env": [], "args": [f"{n % 90 + 10}" for n in range(200_000)]}]}},
    "terms of an affinity": {
        "metadata": {"ownerReferences": [owner("DaemonSet")]},
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}] * 300_000}
                }
            }
        },
    },
    "owners": {"metadata": {"ownerReferences": [{"kind": "A", "name": "b", "controller": False}] * 30_000}},
    "labels": {"metadata": {"labels": {f"l{n}": "" for n in range(100_000)}}},
}


async def read_from(body: bytes, folder: Path, read: Callable[[Reflector], Awaitable[Any]]) -> tuple[int, list[Object]]:
    """The most memory that an agent holds while it reads that list of pods, and the pods that it holds then."""
    machine = Machine(folder, "v2")

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    async with faulty([answer]) as server:
        files = NodeFiles(sys=machine.sys, proc=machine.proc)
        agent = Agent(server.session, "n1", files, "1", AgentSettings())
        try:
            with traced_memory() as memory:
                await read(agent._reflect_pods)
        finally:
            agent.measurement.close()
    return memory.peak, [*agent._reflect_pods.store.values()]


@pytest.mark.parametrize("parts", LARGE.values(), ids=LARGE)
async def test_a_node_of_large_pods_is_listed_without_holding_them_decoded(parts, tmp_path) -> None:
    texts = [orjson.dumps(pod(f"p{n}", **parts)).replace(b"ESCAPED", ESCAPED.encode()) for n in range(3)]
    body = b'{"metadata":{"resourceVersion":"9"},"items":[' + b",".join(texts) + b"]}"
    peak, held = await read_from(body, tmp_path, lambda pods: pods._list())
    assert held == [trim_pod(orjson.loads(text)) for text in texts]
    assert peak < 5 * len(body), "decoded whole, they take 14 times as much as their text"


async def test_a_look_whether_storage_went_back_does_not_hold_a_large_pod_decoded(tmp_path) -> None:
    """Each agent asks for one pod after an API server has broken off its watch: the first one by its name."""
    body = b'{"metadata":{"resourceVersion":"9"},"items":[%b]}' % orjson.dumps(pod(spec={"containers": [MAIN]}))
    peak, _ = await read_from(body, tmp_path, lambda pods: pods._look_back())
    assert peak < 5 * len(body)


def binding(**metadata: Any) -> Object:
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodCPUBinding",
        "metadata": {
            "namespace": "n", "name": "b", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": TIME,
        } | metadata,
        "spec": {"podName": "p", "cpuSet": [{"cpuID": 1}, {"cpuID": 2}], "exclusivenessLevel": "Core"},
        "status": {
            "nodeName": "n1", "podUID": "pod", "cpus": "1-2",
            "conditions": [{"type": "Validated", "status": "True", "observedGeneration": 2}],
        },
    }  # fmt: skip


LABELS = {f"l{n}": "" for n in range(80_000)}
BINDINGS = {
    "labels": binding(labels=LABELS | {"concerto.dev/workload-type": "Batch"}),
    "annotations": binding(labels={"concerto.dev/workload-type": "Batch"}, annotations=LABELS),
    "finalizers": binding(
        labels={"concerto.dev/workload-type": "Batch"}, finalizers=[f"a.b/{n}" for n in range(90_000)]
    ),
    "managed fields": binding(labels={"concerto.dev/workload-type": "Batch"}, managedFields=[{"fieldsV1": LABELS}]),
}


@pytest.mark.parametrize("large", BINDINGS.values(), ids=BINDINGS)
def test_of_a_large_binding_what_is_read_is_held_alone(large: Object) -> None:
    small = binding(labels={"concerto.dev/workload-type": "Batch"})
    for text in (
        orjson.dumps({"metadata": {"resourceVersion": "9"}, "items": [large]}),
        orjson.dumps({"type": "MODIFIED", "object": large}),
    ):
        with traced_memory() as memory:
            read = decode_bindings(text)
        assert memory.peak < len(text)
        found = read["object"] if "object" in read else read["items"][0]
        assert read_claim(found, "n1", None) == read_claim(small, "n1", None) != None  # noqa: E711
        assert {key: small["metadata"][key] for key in small["metadata"]} == found["metadata"]


@pytest.mark.parametrize("large", BINDINGS.values(), ids=BINDINGS)
async def test_the_answer_to_a_status_of_a_large_binding_is_not_held_decoded(large: Object) -> None:
    body = orjson.dumps(large)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    status = {"conditions": large["status"]["conditions"]}
    async with faulty([answer]) as server:
        tested = BindingStatuses(
            server.session, PinningSettings(Path("state")), lambda key, obj: status, lambda: 0.0, getLogger(__name__)
        )
        tested.put(("n", "b"), binding(), asks_anew=True)
        with traced_memory() as memory:
            await tested._write_changed()
    assert len(server.seen) == 1
    assert tested._objects["n", "b"]["metadata"] == binding(labels={"concerto.dev/workload-type": "Batch"})["metadata"]
    assert memory.peak < 5 * len(body)


def of_items(items: list[bytes], limits: list[int]) -> Callable[[web.Request], Any]:
    """Answers as an API server pages a list, and notes how many objects were asked for."""

    async def answer(request: web.Request) -> web.StreamResponse:
        limit, start = int(request.query["limit"]), int(request.query.get("continue", "0"))
        limits.append(limit)
        more = str(start + limit) if start + limit < len(items) else ""
        head = orjson.dumps({"resourceVersion": "9", "continue": more})
        return web.Response(body=b'{"metadata":%s,"items":[%s]}' % (head, b",".join(items[start : start + limit])))

    return answer


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10_000] * 9, [500]),
        ([10_000] * 30, [500, 62, 7, 7, 7, 7, 7]),
        ([60_000] * 3, [500, 62, 7, 1, 1, 1]),
        ([500_000], [500, 62, 7, 1]),
        ([60_000] * 3 + [10] * 1000, [500, 62, 7, *[1] * 32, *[8] * 32, *[64] * 12]),
        ([10_000] * 300, [500, 62, *[7] * 32, 56, *[7] * 11]),
    ],
    ids=[
        "one page is small enough",
        "fewer at a time",
        "one at a time",
        "one that is too large by itself",
        "more again once the large ones have come",
        "all are large",
    ],
)
async def test_fewer_objects_are_asked_for_at_a_time_where_a_page_would_be_too_large(sizes, expected) -> None:
    items = [orjson.dumps({"metadata": {"name": f"o{n}", "text": "x" * size}}) for n, size in enumerate(sizes)]
    limits: list[int] = []
    async with faulty([of_items(items, limits)], replace(QUICK, max_page_bytes=100_000)) as server:
        listed = await server.session.list("/api/v1/pods")
    assert [each["metadata"]["name"] for each in listed["items"]] == [f"o{n}" for n in range(len(sizes))]
    assert limits == expected
