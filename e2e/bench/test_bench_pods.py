"""150,000 running pods: what taking each in costs a replica that starts, and what it holds of them.

Run: ``pytest -s -m bench e2e/bench/test_bench_pods.py`` (a minute). There is no API server: its answers are made here.
"""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import orjson
import pytest

from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.controllers.operator import GARBAGE_THRESHOLDS
from concerto.controllers.runtime.watched_kinds import FollowedKind
from concerto.kube import ClusterConfig, Session
from concerto.kube.resources import PODS
from concerto.scheduling.state.cluster import ClusterState
from e2e.bench.scale_pods import SERVICES, existing_pod, replica_set
from e2e.testbed.hollow.objects import PodLife, pod_status
from e2e.testbed.processes import rss_mib

pytestmark = pytest.mark.bench

NODES, COUNT, PAGE = 5000, 150_000, 500
NOW = 1.8e9
SETS = [replica_set(number) for number in range(SERVICES)]
TOKEN_SOURCES = [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]
OWNERS = {
    each["metadata"]["name"]: {"kind": "ReplicaSet", "name": each["metadata"]["name"], "uid": f"uid-{number}"}
    for number, each in enumerate(SETS)
}


def listed(number: int) -> dict[str, Any]:
    """The pod as an API server lists it: with defaults, a status, and the fields that each writer manages."""
    made = existing_pod(number, NODES, OWNERS)
    uid = f"{number:08x}-1111-2222-3333-444455556666"
    made["metadata"] |= {"uid": uid, "resourceVersion": str(number), "creationTimestamp": "2026-03-01T12:00:00Z"}
    owned = {f"f:{key}": {".": {}, "f:value": {}} for key in (*made["spec"], *made["metadata"], *range(40))}
    made["metadata"]["managedFields"] = [{"manager": "m", "operation": "Update", "fieldsV1": owned}]
    seconds = [{"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute"} for k in ("a", "b")]
    made["spec"] |= {"tolerations": seconds, "priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    token = f"kube-api-access-{number:05x}"
    mount = {"name": token, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    made["spec"]["containers"][0]["volumeMounts"] = [mount]
    made["spec"]["volumes"] = [{"name": token, "projected": {"defaultMode": 420, "sources": TOKEN_SOURCES}}]
    life = PodLife("10.0.0.1", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", NOW + number, NOW + number)
    made["status"] = pod_status(made, life, NOW + number)
    resources = made["spec"]["containers"][0]["resources"]
    made["status"]["containerStatuses"][0] |= {"resources": resources, "allocatedResources": resources["requests"]}
    return made


async def test_a_replica_takes_in_all_pods() -> None:
    cluster, spent = ClusterState(), 0.0
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    async with await Session.open(ClusterConfig("http://127.0.0.1:1")) as session:

        def on_change(old: object, new: Any) -> None:
            cluster.set_pod(PodView.from_raw(new), NOW)

        reflector = FollowedKind(session, PODS, on_change, trim=trim_pod).reflector
        before = rss_mib(os.getpid())
        for first in range(0, COUNT, PAGE):
            lines = [orjson.dumps({"type": "ADDED", "object": listed(number)}) for number in range(first, first + PAGE)]
            began = time.process_time()
            for line in lines:
                reflector._take(line)
            spent += time.process_time() - began
            gc.freeze()
    held, size = rss_mib(os.getpid()) - before, sum(map(len, lines)) / PAGE
    print(f"\n{COUNT} pods of {size:.0f} bytes: {held:.0f} MiB, {1e6 * spent / COUNT:.0f} us of CPU a pod")
    gc.unfreeze()
    assert len(reflector.store) == COUNT
