"""Pods with a workload type on a real kubelet, with the real agent: on their CPU from their first instruction on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from concerto.api.cpulist import parse_cpu_list
from e2e.agent_helpers import eventually
from e2e.clusters import Cluster, LocalControlPlane
from e2e.nodes import real_nodes_available
from e2e.pinning_helpers import FIRST_INSTRUCTION, Kernel, ends, pinning_node, pod
from e2e.processes import operator_process

pytestmark = pytest.mark.realnode

NAME = "pinned-real"
TYPE = "concerto.dev/workload-type"


@pytest.fixture(scope="module")
def kernel(concerto_cluster: Cluster) -> Iterator[Kernel]:
    """A node with both CPUs, its agent, which pins, and an operator with a profile for it."""
    if not isinstance(concerto_cluster, LocalControlPlane):
        pytest.skip(f"real nodes join a control plane on this machine, not {concerto_cluster.origin}")
    available, reason = real_nodes_available(concerto_cluster.binaries)
    if not available:
        pytest.skip(f"no real nodes here: {reason}")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("pinning on a real node takes two CPUs")
    profile = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {"name": NAME},
        "spec": {"schedulerName": NAME, "scores": [{"name": "WorkloadAware"}], "metricsPolicy": "FallbackToRequests"},
    }
    concerto_cluster.apply(profile)
    with pinning_node(concerto_cluster, NAME) as (node, _):
        operator = operator_process(concerto_cluster, concerto_cluster.logs, "operator-pinned-real").start()
        try:
            operator.wait_ready()
            eventually("its CPUs are published", lambda: concerto_cluster.get("ncpu", NAME).get("status"))
            yield Kernel(node)
        finally:
            operator.stop()
            concerto_cluster.kubectl("delete", "sprof", NAME)


def test_pods_that_say_their_type_begin_on_cpus_of_their_own_one_after_the_other(
    concerto_cluster: LocalControlPlane, namespace: str, kernel: Kernel
):
    def asking(name: str, command: str, labels: dict[str, str]) -> dict[str, object]:
        made = pod(namespace, name, command, schedulerName=NAME, nodeSelector={"kubernetes.io/hostname": NAME})
        made["metadata"]["labels"] = labels
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        return made

    # Of two CPUs one stays with everybody else, so that the three have to wait for each other
    names = [f"cpu-{i}" for i in range(3)]
    concerto_cluster.apply(
        asking("beside", "exec sleep 1000", {}),
        *(asking(name, f"{FIRST_INSTRUCTION}; sleep 1", {TYPE: "cpu-bound"}) for name in names),
    )
    held: dict[str, str] = {}

    def look() -> bool:
        for obj in concerto_cluster.get("pcb", "-n", namespace)["items"]:
            if cpus := (obj.get("status") or {}).get("cpus"):
                held[obj["metadata"]["name"]] = cpus
        return held.keys() >= set(names)

    eventually("each has had its turn", look, 60)
    said = ends(concerto_cluster, namespace, names)
    assert {name: said[name] for name in names} == held
    assert all(len(parse_cpu_list(cpus)) == 1 for cpus in held.values())
    eventually("their bindings have gone with them", lambda: not concerto_cluster.get("pcb", "-n", namespace)["items"])
    beside = concerto_cluster.get("pod", "-n", namespace, "beside")["metadata"]["uid"]
    kernel.until(beside, "0-1")
    # Sockets, cores, CPUs, memory nodes, nothing allocated, and all of it shared
    columns = "1 2 2 1 0-1"
    eventually(
        "the node's columns say so", lambda: columns in " ".join(concerto_cluster.kubectl("get", "ncpu", NAME).split())
    )
