"""Kinds that are followed once, for all parts of the operator."""

from __future__ import annotations

import asyncio

import orjson

from concerto.api.pod_trimming import trim_pod
from concerto.controllers.runtime.supervision import Supervisor
from concerto.controllers.runtime.watched_kinds import FollowedKind, WatchedKinds
from concerto.kube.resources import NODES, PODS, SUBSPACE_SNAPSHOTS
from support.faulty_server import faulty, refuses, says
from support.traced_memory import traced_memory


def node(name, version="1"):
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version}}


async def test_a_subscriber_is_given_what_is_there_and_then_each_change():
    async with faulty([refuses(404, "NotFound")]) as server:
        first, later = [], []
        kind = FollowedKind(server.session, NODES, lambda old, new: first.append((old, new)))
        kind.reflector.store["", "a"] = node("a")
        await kind.subscribe(lambda old, new: later.append((old, new)))
        kind._on_change(None, node("b"))
    assert later == [(None, node("a")), (None, node("b"))]
    assert first == [(None, node("b"))]


async def test_a_subscriber_is_given_many_objects_in_parts_and_the_changes_between_them_in_order():
    async with faulty([refuses(404, "NotFound")]) as server:
        given = []
        kind = FollowedKind(server.session, NODES)
        store = kind.reflector.store
        store |= {("", str(number)): node(str(number)) for number in range(2000)}
        subscribing = asyncio.ensure_future(kind.subscribe(lambda old, new: given.append((old, new))))
        await asyncio.sleep(0)
        first = len(given)
        assert 0 < first < 1000
        seen, unseen, gone = given[0][1], *[each for each in store.values() if (None, each) not in given][-2:]
        for old, new in ((seen, "2"), (unseen, "2"), (gone, None), (None, "1")):
            name = old["metadata"]["name"] if old else "new"
            made = new and node(name, new)
            store["", name] = made
            if made is None:
                del store["", name]
            kind._on_change(old, made)
        await subscribing
        name = unseen["metadata"]["name"]
        assert given[first : first + 3] == [(seen, node("0", "2")), (None, node(name, "2")), (None, node("new"))]
        state = {}
        for old, new in given:
            key = (new or old)["metadata"]["name"]
            assert state.get(key) == old
            state[key] = new
        assert state == {name: each for (_, name), each in store.items()}


async def test_an_error_of_a_handler_costs_it_the_one_object_and_the_others_nothing():
    async with faulty([refuses(404, "NotFound")]) as server:
        seen, after = [], []

        def fails(old, new):
            seen.append(new["metadata"]["name"])
            raise RuntimeError("of ours")

        kind = FollowedKind(server.session, NODES, fails)
        await kind.subscribe(fails)
        kind.add(lambda old, new: after.append(new["metadata"]["name"]))
        kind._on_change(None, node("a"))
        kind._on_change(None, node("b"))
    assert (seen, after) == (["a", "a", "b", "b"], ["a", "b"])


async def test_a_new_leader_does_not_wait_for_a_kind_that_is_followed_on_demand():
    async with faulty([refuses(403, "Forbidden")]) as server:
        supervisor = Supervisor(lambda: None)
        nodes, pods = FollowedKind(server.session, NODES), FollowedKind(server.session, PODS, on_demand=True)
        reading = asyncio.ensure_future(WatchedKinds({"nodes": nodes, "pods": pods}, supervisor).read_afresh())
        await server.asked(1)
        nodes.reflector.synced.set()
        async with asyncio.timeout(20):
            await reading
        assert not any("pods" in each for each in server.seen)
        pods.demand()
        async with asyncio.timeout(20), server.arrival:
            await server.arrival.wait_for(lambda: any("pods" in each for each in server.seen))
        await supervisor.stop()


def running_pod(number):
    """A pod of one of three Deployments, as an API server gives it."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{number % 3}", "uid": f"uid-{number % 3}"}
    resources = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    at = f"2026-11-29T0{number % 7}:{number % 60:02d}:{number % 59:02d}Z"
    return {
        "metadata": {
            "namespace": "default",
            "name": f"web-{number % 3}-{number:06d}",
            "uid": f"{number:08d}-1111-2222-3333-444455556666",
            "resourceVersion": str(number),
            "labels": {"app": f"web-{number % 3}", "pod-template-hash": "7d9f8b6c5d"},
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
            "creationTimestamp": at,
        },
        "spec": {
            "nodeName": f"node-{number % 30}",
            "tolerations": tolerations,
            "containers": [{"name": "c", "image": "web", "resources": resources, "ports": [{"containerPort": 8080}]}],
        },
        "status": {
            "phase": "Running",
            "startTime": at,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("Ready", "PodScheduled")
            ],
            "containerStatuses": [{"name": "c", "resources": resources, "allocatedResources": resources["requests"]}],
        },
    }


async def test_a_pod_takes_little_memory_beside_its_siblings():
    async with faulty([refuses(404, "NotFound")]) as server:
        kind = FollowedKind(server.session, PODS, trim=trim_pod)
        store = kind.reflector.store
        with traced_memory() as memory:
            for number in range(1000):
                kind.reflector._take(orjson.dumps({"type": "ADDED", "object": running_pod(number)}))
        assert store["default", "web-1-000007"] == trim_pod(running_pod(7))
    assert memory.held / 1000 < 4000  # bytes; 6700 if each had all of its parts for itself


async def test_large_objects_are_listed_in_small_pages():
    listed = says(200, {"metadata": {"resourceVersion": "200"}, "items": []})
    async with faulty([listed]) as server:
        following = [asyncio.ensure_future(FollowedKind(server.session, k).run()) for k in (NODES, SUBSPACE_SNAPSHOTS)]
        async with asyncio.timeout(20), server.arrival:
            await server.arrival.wait_for(lambda: sum("limit=" in each for each in server.seen) >= 2)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    limits = {
        path.split("?")[0].rpartition("/")[2]: path.rpartition("limit=")[2] for path in server.seen if "limit=" in path
    }
    assert limits == {"nodes": "500", "subspacesnapshots": "100"}
