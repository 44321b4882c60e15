"""A gang that needs both real nodes starts at once beside a stream of small pods. By hand: `make gangs`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.testbed.clusters import Cluster
from e2e.testbed.images import BUSYBOX_IMAGE
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.system import System, busybox_job, real_system
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

pytestmark = [
    pytest.mark.realnode,
    pytest.mark.skipif(not os.environ.get("CONCERTO_REAL_GANGS"), reason="by hand: make gangs"),
]

PODS, TURNS = 6, 5
STREAM = 8
"""Small pods that run at a time; each ends after two seconds, and another one comes."""


@pytest.fixture(scope="module")
def system(concerto_cluster: Cluster, say: Callable[[str], None]) -> Iterator[System]:
    plane = require_real_nodes(concerto_cluster)
    if not plane.serves_pod_groups:
        pytest.skip("this release has no PodGroups")
    with real_system(plane, say, ("gang-1", "gang-2")) as system:
        yield system


@contextlib.contextmanager
def stream(cluster: Cluster, namespace: str, cpu: str) -> Iterator[None]:
    """Small pods that come and end, until the context is left."""
    job = busybox_job("stream", namespace, "job", ["sleep", "2"], pods=100_000, parallelism=STREAM)
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    cluster.apply(job)
    try:
        eventually("the stream flows", lambda: ended(cluster, namespace) >= STREAM, PATIENCE_SECONDS)
        yield
    finally:
        cluster.kubectl("delete", "job", "stream", "-n", namespace, "--wait=false")


def ended(cluster: Cluster, namespace: str) -> int:
    return int((cluster.get("job", "stream", "-n", namespace).get("status") or {}).get("succeeded", 0))


def gang(namespace: str, name: str, cpu: str) -> list[dict[str, Any]]:
    """A PodGroup and its pods, which print the kernel's clock when they start."""
    container = {
        "name": "c", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never",
        "command": ["sh", "-c", "cut -d' ' -f1 /proc/uptime; sleep 3600"],
        "resources": {"requests": {"cpu": cpu}},
    }  # fmt: skip
    spec = {
        "schedulerName": "concerto", "restartPolicy": "Never", "dnsPolicy": "Default",
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
        "schedulingGroup": {"podGroupName": name}, "containers": [container],
    }  # fmt: skip
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": {"namespace": namespace, "name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": PODS}}},
    }  # fmt: skip
    labels = {"gang": name}
    return [group] + [
        {
            "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"namespace": namespace, "name": f"{name}-{i}", "labels": labels},
        }
        for i in range(PODS)
    ]  # fmt: skip


def starts(cluster: Cluster, namespace: str, name: str) -> list[float]:
    """When each pod of the gang started, seconds of the kernel's clock, once all run.

    One process watches them meanwhile: one for each look would take the CPUs that the pods need to start.
    """
    cluster.wait("--for=jsonpath={.status.phase}=Running", "pod", "-n", namespace, "-l", f"gang={name}", seconds=120)

    def printed(pod: str) -> float:
        look = ("logs", "-n", namespace, pod)
        return float(eventually(f"{pod} has printed the time", lambda: cluster.kubectl(*look).strip()))

    return sorted(printed(f"{name}-{i}") for i in range(PODS))


@pytest.mark.timeout(900)
def test_a_gang_starts_within_a_second_beside_a_stream_of_small_pods(concerto_cluster, system, namespace, say):
    cluster = concerto_cluster
    allocatable = [
        int(cluster.get("node", name)["status"]["allocatable"]["cpu"].removesuffix("m")) for name in system.node_names
    ]
    millicores = min(each if each > 100 else 1000 * each for each in allocatable)
    of_gang, of_stream = int(0.3 * millicores), int(0.1 * millicores)
    spreads = []
    with stream(cluster, namespace, f"{of_stream}m"):
        for turn in range(TURNS):
            name = f"g{turn}"
            before = ended(cluster, namespace)
            cluster.apply(*gang(namespace, name, f"{of_gang}m"))
            found = starts(cluster, namespace, name)
            nodes = {
                pod["spec"]["nodeName"] for pod in cluster.get("pods", "-n", namespace, "-l", f"gang={name}")["items"]
            }
            spreads.append(found[-1] - found[0])
            passed = ended(cluster, namespace) - before
            say(f"gang {turn}: {PODS} pods started within {spreads[-1]:.2f} s; {passed} small pods ended meanwhile")
            assert nodes == set(system.node_names)
            cluster.kubectl("delete", "pod", "-n", namespace, "-l", f"gang={name}", "--force", "--grace-period=0")
            flowed = ended(cluster, namespace)
            eventually("the stream flows again", lambda flowed=flowed: ended(cluster, namespace) > flowed + STREAM)
    assert max(spreads) < 1.0
