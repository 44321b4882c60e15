"""A real API server takes objects of which the operator holds little."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from concerto.api.pod_trimming import trim_pod
from concerto.api.poddisruptionbudget import trim_budget
from concerto.controllers.runtime.watched_kinds import FollowedKind
from concerto.kube import Object, ReflectorSettings, Session
from concerto.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from e2e.testbed.waiting import PATIENCE_SECONDS

MOST_BYTES = 32 * 1024


def of_container(**fields: Any) -> Object:
    return {"containers": [{"name": "c", "image": "i", **fields}]}


SPECS: dict[str, Object] = {
    "tolerations": {"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(60_000)]},
    "gates": {"schedulingGates": [{"name": f"g{i}"} for i in range(60_000)]},
    "ports": of_container(ports=[{"containerPort": i, "protocol": "TCP"} for i in range(1, 40_000)]),
    "host-ports": of_container(ports=[{"containerPort": i, "hostPort": i} for i in range(1, 20_000)]),
    "containers": {"containers": [{"name": f"c{i}", "image": "i"} for i in range(8_000)]},
    "resources": of_container(resources={"limits": {f"example.com/r{i}": "1" for i in range(10_000)}}),
}
OWNERS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "n", "uid": f"{i}"} for i in range(8_000)]


async def test_little_is_held_of_large_objects(session: Session, namespace: str) -> None:
    large: list[Object] = [{"metadata": {"name": "owners", "ownerReferences": OWNERS}, "spec": of_container()}]
    large += [{"metadata": {"name": name}, "spec": of_container() | spec} for name, spec in SPECS.items()]
    for each in large:
        each["spec"]["schedulerName"] = "nobody"
        assert len(json.dumps(await session.create(PODS.path(namespace), each))) > 500_000
    selector = {"matchLabels": {f"k{i}": "v" for i in range(40_000)}}
    budget = {"metadata": {"name": "budget"}, "spec": {"minAvailable": 1, "selector": selector}}
    assert len(json.dumps(await session.create(POD_DISRUPTION_BUDGETS.path(namespace), budget))) > 500_000
    for streams in (True, False):
        for kind, trim, number in ((PODS, trim_pod, len(large)), (POD_DISRUPTION_BUDGETS, trim_budget, 1)):
            followed = FollowedKind(session, kind, trim=trim)
            followed.reflector._settings = ReflectorSettings(streams=streams)
            followed.reflector._streams = streams
            running = asyncio.ensure_future(followed.run())
            async with asyncio.timeout(PATIENCE_SECONDS):
                await followed.reflector.synced.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            kept = {name: obj for (where, name), obj in followed.store.items() if where == namespace}
            assert len(kept) == number
            assert all(len(json.dumps(obj)) < MOST_BYTES for obj in kept.values())
