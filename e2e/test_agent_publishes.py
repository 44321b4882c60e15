"""A real agent process against a real API server, with the rights of its service account and its node's token."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.clusters import Cluster
from e2e.processes import Process, agent_process

Object = dict[str, Any]


def eventually(what: str, look: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value that ``look`` gives."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


def condition(obj: Object, kind: str) -> Object:
    return next((c for c in obj.get("status", {}).get("conditions", ()) if c["type"] == kind), {})


@pytest.fixture
def node(concerto_cluster: Cluster) -> Iterator[str]:
    """A Node object; no kubelet is behind it."""
    name = f"agent-{uuid.uuid4().hex[:8]}"
    concerto_cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield name
    concerto_cluster.kubectl("delete", "node", name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def agent(concerto_cluster: Cluster, node: str, tmp_path: Path) -> Iterator[Process]:
    process = agent_process(concerto_cluster, tmp_path, node).start()
    yield process
    process.kill()


def ncap(cluster: Cluster, name: str) -> Object | None:
    found = cluster.get("ncap", f"--field-selector=metadata.name={name}")["items"]
    return found[0] if found else None


def ready(cluster: Cluster, name: str) -> Object | None:
    obj = ncap(cluster, name)
    return obj if obj and condition(obj, "Ready").get("status") == "True" else None


def test_it_creates_its_objects_and_publishes_what_it_measures(concerto_cluster: Cluster, node: str, agent: Process):
    obj = eventually("a NodeCapacity that is Ready", lambda: ready(concerto_cluster, node))
    uid = concerto_cluster.get("node", node)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    assert obj["metadata"]["ownerReferences"] == [owner]
    assert "annotations" not in obj["metadata"]
    status = obj["status"]
    assert [r["name"] for r in status["resources"]] == ["cpu", "memory"]
    assert all(0 <= r["usage"] <= 1 for r in status["resources"])
    assert status["capacity"] >= 0, "the machine may be full: other tests run on it"
    assert (status["podCount"], status["observedPodUIDs"]) == (0, [])
    assert status["agent"]["mode"] == "Machine"
    assert {w["window"] for w in status["windows"]} == {"5m", "10m", "15m"}
    subspace = concerto_cluster.get("sub", node)
    assert subspace["metadata"]["ownerReferences"] == [owner]
    assert subspace["status"]["resources"] == ["cpu", "memory"]
