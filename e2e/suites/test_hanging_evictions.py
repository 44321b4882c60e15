"""Admission webhooks that never answer to evictions in many namespaces hold up no other, on a real API server.

Nodes are mere API objects with 4 CPUs each, one for each namespace. The webhook is a socket that takes connections and
says nothing.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.suites.test_hanging_webhooks import hanging
from e2e.suites.test_priority import PRIORITIES, fill, node_of, pod, pods_in, priority_class
from e2e.testbed.clusters import Cluster
from e2e.testbed.processes import Process, operator_process, running_operator
from e2e.testbed.requirements import require_local_plane
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import eventually

STUCK = 6
"""Namespaces whose evictions hang, with 96 pods together that others are to be evicted for."""
PODS = 16
"""Of a namespace, of 250 millicores each."""
WITHIN_SECONDS = 10.0
"""Evictions that hang make place for others after 5 s. They are given up after 15 s or somewhat more."""


@pytest.fixture(scope="module")
def nodes(concerto_cluster: Cluster) -> Iterator[list[str]]:
    plane = require_local_plane(concerto_cluster)
    concerto_cluster.apply(*(priority_class(name, value) for name, value in PRIORITIES.items()))
    process: Process = operator_process(plane, plane.work_dir, "operator-evictions", restarts=True)
    with (
        hollow_nodes(plane, STUCK + 1, "--api-only", "--max-pods", "50", "--prefix", "evict"),
        running_operator(process),
    ):
        found = [item["metadata"]["name"] for item in concerto_cluster.get("nodes")["items"]]
        yield sorted(name for name in found if name.startswith("evict"))


def on(node: str, namespace: str, name: str, priority: str) -> dict[str, Any]:
    return pod(namespace, name, priority, "250m", nodeSelector={"kubernetes.io/hostname": node})


def test_evictions_that_hang_in_many_namespaces_hold_up_no_other(concerto_cluster, nodes, namespace):
    cluster = concerto_cluster
    stuck = [f"stuck-{uuid.uuid4().hex[:8]}" for _ in range(STUCK)]
    for each in stuck:
        cluster.make_namespace(each)
    for node, each in zip(nodes, [*stuck, namespace], strict=True):
        fill(cluster, each, *(on(node, each, f"low-{i:02}", "low") for i in range(PODS)))

    def nominated() -> int:
        found = [item for each in stuck for item in pods_in(cluster, each).values()]
        return sum("nominatedNodeName" in item["status"] for item in found)

    with contextlib.ExitStack() as webhooks:
        for each in stuck:
            webhooks.enter_context(hanging(cluster, each, "pods", operation="DELETE"))
        items = [on(node, each, f"high-{i:02}", "high") for node, each in zip(nodes, stuck) for i in range(PODS)]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        eventually("they make room", lambda: nominated() >= STUCK)
        cluster.apply(on(nodes[-1], namespace, "high", "high"))
        eventually("another pod has its room", lambda: node_of(cluster, namespace, "high"), WITHIN_SECONDS)
        for each in stuck:
            assert len(pods_in(cluster, each)) == 2 * PODS, "nobody was evicted there"
    for each in stuck:
        cluster.remove_namespace(each)
