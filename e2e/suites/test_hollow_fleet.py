"""Simulated nodes on a real API server: what a scheduler, a Job controller and an operator see of them."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from concerto.kube import ClusterConfig, Session
from concerto.kube.resources import LEASES, NODE_CAPACITIES, NODES, PODS, SUBSPACE_SNAPSHOTS, Resource
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster
from e2e.testbed.hollow import Fleet, HollowSettings, NodeShape, open_fleet
from e2e.testbed.waiting import eventually_async

Object = dict[str, Any]
JOBS = Resource("batch", "v1", "jobs", "Job", True)

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def session(concerto_cluster: Cluster, admin: ClusterConfig) -> AsyncIterator[Session]:
    async with await Session.open(admin) as session:
        yield session


@asynccontextmanager
async def a_fleet(admin: ClusterConfig, namespace: str, **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet named after the test's namespace: no two share a node."""
    async with open_fleet(admin, HollowSettings(prefix=namespace, **settings)) as fleet:
        yield fleet


def a_pod(name: str, node: str, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    container = {"name": "c", "image": "i"} | ({"resources": spec.pop("resources")} if "resources" in spec else {})
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [container], **spec},
    }


def load(**what: float) -> dict[str, str]:
    return {f"hollow.concerto.dev/{key.replace('_', '-')}": str(value) for key, value in what.items()}


async def capacity_of(session: Session, node: str) -> Object:
    found = await session.get(NODE_CAPACITIES.path(name=node))
    return dict(found.get("status") or {})


def is_ready(obj: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in obj.get("conditions") or [])


async def test_nodes_are_ready_leased_and_measured(session: Session, admin: ClusterConfig, namespace: str) -> None:
    async with a_fleet(admin, namespace, count=12) as fleet:
        found = (await session.list(NODES.path(), label_selector=fleet.node_objects.selector))["items"]
        assert {n["metadata"]["name"] for n in found} == set(fleet.nodes)
        assert all(is_ready(n["status"]) for n in found)
        name = next(iter(fleet.nodes))

        async def renewed() -> bool:
            lease = await session.get(LEASES.path("kube-node-lease", name))
            return str(lease["spec"]["renewTime"]) > first

        first = (await session.get(LEASES.path("kube-node-lease", name)))["spec"]["renewTime"]
        await eventually_async("its Lease is renewed", renewed)

        async def measured() -> bool:
            items = (await session.list(NODE_CAPACITIES.path()))["items"]
            ours = [i for i in items if i["metadata"]["name"] in fleet.nodes]
            return len(ours) == 12 and all(is_ready(i.get("status") or {}) for i in ours)

        await eventually_async("every node's capacity is measured", measured)
        status = await capacity_of(session, name)
        assert status["capacity"] > 1
        assert status["podCount"] == 0
        names = list(fleet.nodes)

    async def gone() -> bool:
        left = (await session.list(NODES.path()))["items"]
        return not [n for n in left if n["metadata"]["name"] in names]

    await eventually_async("the nodes are removed", gone)


async def test_what_an_earlier_node_of_the_same_name_owned_is_replaced(
    session: Session, admin: ClusterConfig, namespace: str
) -> None:
    """The garbage collector is late after a large fleet: the next one finds objects that are about to go."""
    name = f"{namespace}-0000"
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": "00000000-0000-4000-8000-000000000000"}
    metadata = {"name": name, "ownerReferences": [owner], "finalizers": ["concerto.dev/late"]}
    namespaces = {LEASES: {"namespace": "kube-node-lease"}, NODE_CAPACITIES: {}, SUBSPACE_SNAPSHOTS: {}}
    paths = []
    for resource, namespace_of in namespaces.items():
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        paths.append(resource.path(**namespace_of))
        await session.create(paths[-1], {**kind, "metadata": {**metadata, **namespace_of}})

    async def let_go() -> None:
        for path in paths:
            await eventually_async(f"{path}/{name} is being deleted", lambda path=path: is_being_deleted(path))
            await session.patch(f"{path}/{name}", {"metadata": {"finalizers": []}})

    async def is_being_deleted(path: str) -> bool:
        return "deletionTimestamp" in (await session.get(f"{path}/{name}"))["metadata"]

    collector = asyncio.create_task(let_go())
    async with a_fleet(admin, namespace, count=1) as fleet:
        await collector
        for path in paths:
            (reference,) = (await session.get(f"{path}/{name}"))["metadata"]["ownerReferences"]
            assert reference["uid"] == fleet.nodes[name].uid, path


async def test_a_job_runs_and_is_complete(session: Session, admin: ClusterConfig, namespace: str) -> None:
    async with a_fleet(admin, namespace, count=2) as fleet:
        one, _ = fleet.nodes
        template = a_pod("", one, load(wait_seconds=0.5, core_seconds=1))
        template["metadata"].pop("name")
        job = {
            "metadata": {"name": "ten"},
            "spec": {"parallelism": 10, "completions": 10, "template": template},
        }
        await session.create(JOBS.path(namespace), job)

        async def complete() -> bool:
            status = (await session.get(JOBS.path(namespace, "ten")))["status"]
            return status.get("succeeded") == 10 and any(c["type"] == "Complete" for c in status.get("conditions", []))

        await eventually_async("the Job is complete", complete)
        for pod in (await session.list(PODS.path(namespace)))["items"]:
            assert pod["status"]["phase"] == "Succeeded"
            ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
            # 0.5 s of waiting and a core-second at least, in whole seconds
            assert ended["finishedAt"] > ended["startedAt"] >= pod["status"]["startTime"]


async def test_a_busy_node_says_that_it_can_take_less(session: Session, admin: ClusterConfig, namespace: str) -> None:
    async with a_fleet(admin, namespace, count=2, shape=NodeShape(cores=4)) as fleet:
        busy, idle = fleet.nodes
        made = [
            await session.create(PODS.path(namespace), a_pod(f"p{i}", busy, load(wait_seconds=0, core_seconds=9999)))
            for i in range(5)
        ]

        async def observed() -> bool:
            status = await capacity_of(session, busy)
            return set(status.get("observedPodUIDs", ())) == {pod["metadata"]["uid"] for pod in made}

        await eventually_async("its pods are observed", observed)

        async def full() -> bool:
            one, other = await capacity_of(session, busy), await capacity_of(session, idle)
            return is_ready(one) and one["capacity"] < 1 <= other.get("capacity", 0)

        await eventually_async("it is full, and the other is not", full)


async def test_a_deleted_pod_is_stopped_and_then_gone(session: Session, admin: ClusterConfig, namespace: str) -> None:
    async with a_fleet(admin, namespace, count=1) as fleet:
        (node,) = fleet.nodes
        await session.create(PODS.path(namespace), a_pod("p", node, load(core_seconds=9999)))

        async def running() -> bool:
            return (await session.get(PODS.path(namespace, "p")))["status"]["phase"] == "Running"

        await eventually_async("it runs", running)
        await session.delete(PODS.path(namespace, "p"))

        async def gone() -> bool:
            return not (await session.list(PODS.path(namespace)))["items"]

        await eventually_async("it is gone", gone)

        async def forgotten() -> bool:
            status = await capacity_of(session, node)
            return status["podCount"] == 0

        await eventually_async("its node says that it is empty", forgotten)


async def test_pods_beyond_allocatable_are_refused_as_a_kubelet_does(
    session: Session, admin: ClusterConfig, namespace: str
) -> None:
    async with a_fleet(admin, namespace, count=1, shape=NodeShape(cores=2)) as fleet:
        (node,) = fleet.nodes
        for name in ("one", "two"):
            resources = {"requests": {"cpu": "1500m"}}
            await session.create(PODS.path(namespace), a_pod(name, node, load(core_seconds=9999), resources=resources))

        async def one_refused() -> list[str]:
            pods = (await session.list(PODS.path(namespace)))["items"]
            return [p["metadata"]["name"] for p in pods if p["status"].get("reason") == "OutOfcpu"]

        assert len(await eventually_async("one of them is refused", one_refused)) == 1


async def test_a_service_is_started_again_when_its_container_is_killed(
    session: Session, admin: ClusterConfig, namespace: str
) -> None:
    shape = NodeShape(cores=2, memory_bytes=2 * 2**30)
    async with a_fleet(admin, namespace, count=1, shape=shape) as fleet:
        (node,) = fleet.nodes
        pod = a_pod("hungry", node, load(memory=3 * 2**30), restartPolicy="Always")
        await session.create(PODS.path(namespace), pod)

        async def restarted() -> bool:
            statuses = (await session.get(PODS.path(namespace, "hungry")))["status"].get("containerStatuses")
            return bool(statuses) and statuses[0]["restartCount"] > 0

        await eventually_async("its container was started again", restarted)


async def test_a_failed_node_is_noticed_and_loses_its_pods_when_it_is_back(
    session: Session, admin: ClusterConfig, namespace: str
) -> None:
    async with a_fleet(admin, namespace, count=2) as fleet:
        node, _ = fleet.nodes
        await session.create(PODS.path(namespace), a_pod("p", node, load(core_seconds=9999)))

        async def running() -> bool:
            return (await session.get(PODS.path(namespace, "p")))["status"]["phase"] == "Running"

        await eventually_async("it runs", running)
        fleet.fail(node)

        async def unknown() -> bool:
            conditions = (await session.get(NODES.path(name=node)))["status"]["conditions"]
            return any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)

        await eventually_async("the controller manager has noticed", unknown)
        fleet.restore(node)

        async def ready() -> bool:
            return is_ready((await session.get(NODES.path(name=node)))["status"])

        await eventually_async("it is Ready again", ready)

        async def failed() -> bool:
            status = (await session.get(PODS.path(namespace, "p")))["status"]
            terminated = status.get("containerStatuses", [{}])[0].get("state", {}).get("terminated", {})
            return status["phase"] == "Failed" and terminated.get("exitCode") == 255

        await eventually_async("its pod has failed", failed)


async def test_nodes_that_are_api_objects_only_take_pods_and_never_start_them(
    session: Session, admin: ClusterConfig, namespace: str
) -> None:
    async with a_fleet(admin, namespace, count=100, api_only=True) as fleet:
        name = next(iter(fleet.nodes))
        status = await capacity_of(session, name)
        assert is_ready(status)
        assert status["capacity"] == 110, "all the pods that a kubelet takes"
        await session.create(PODS.path(namespace), a_pod("p", name))
        before, began = fleet.node_writes.sent, time.monotonic()
        await asyncio.sleep(3)
        assert (await session.get(PODS.path(namespace, "p")))["status"]["phase"] == "Pending"
        rounds = 1 + (time.monotonic() - began) / fleet.settings.renew_seconds
        assert fleet.node_writes.sent - before <= 100 * rounds, "Leases only"
        assert fleet.pod_writes.sent == 0


async def test_the_command_line_plays_until_it_is_stopped(session: Session, cluster: Cluster, namespace: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.testbed.hollow", "--nodes", "3", "--prefix", namespace),
        f"--with-parent={os.getpid()}",
        *("--kubeconfig", cluster.kubeconfig),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"3 simulated nodes are ready\n"
    process.terminate()
    assert await process.wait() == 0
    left = (await session.list(NODES.path()))["items"]
    assert not [n for n in left if n["metadata"]["name"].startswith(namespace)]
