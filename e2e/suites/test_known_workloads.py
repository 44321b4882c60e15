"""Workloads with the constraints that well-known projects have are placed as they are, but for their schedulerName.

The independent rules judge where their pods are. Nodes are mere API objects, with the taints and labels of a cluster in
three zones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.testbed.clusters import Cluster
from e2e.testbed.placement.rules import World
from e2e.testbed.processes import operator_process
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import eventually

WORKLOADS = Path(__file__).parent / "workloads"
NODES = [f"known-{i:04}" for i in range(6)]
STORAGE_CLASS = "workloads-local"
PODS = {"argocd-ha": 11, "online-boutique": 12, "kube-prometheus": 6 + len(NODES), "kafka": 4, "postgres": 5}
UNEVEN_LATER = {"topology spread"}
"""What a pod may break without having broken it when it was placed: others have been placed since."""


@pytest.fixture(scope="module")
def ready(concerto_cluster: Cluster) -> Iterator[Cluster]:
    """Two nodes in each of three zones, one of them for Kafka alone, with a disk each; and an operator."""
    cluster = concerto_cluster
    with hollow_nodes(cluster, len(NODES), "--api-only", "--prefix", "known"):
        for i, name in enumerate(NODES):
            labels = [f"topology.kubernetes.io/zone={'abc'[i % 3]}", "kubernetes.io/os=linux", "disk=ssd"]
            cluster.kubectl("label", "--overwrite", "node", name, *labels)
        cluster.kubectl("taint", "node", NODES[0], "dedicated=kafka:NoSchedule")
        cluster.apply(storage_class(), *(volume(node, size) for node in NODES for size in ("1Gi", "2Gi")))
        process = operator_process(cluster, cluster.work_dir, "operator-known", restarts=True).start()
        try:
            process.wait_ready()
            yield cluster
        finally:
            process.stop()
            cluster.kubectl("delete", "storageclass", STORAGE_CLASS, "--wait=false")
            cluster.kubectl("delete", "persistentvolume", "-l", "suite=known", "--wait=false")


def storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(node: str, size: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": STORAGE_CLASS,
        "local": {"path": f"/var/nowhere/{size}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    metadata = {"name": f"{node}-{size.lower()}", "labels": {"suite": "known"}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("name", PODS)
def test_every_pod_is_placed_where_its_constraints_allow_it(ready: Cluster, namespace: str, name: str):
    cluster = ready
    objects = list(yaml.safe_load_all((WORKLOADS / f"{name}.yaml").read_text()))
    for obj in objects:
        obj["spec"]["template"]["spec"]["schedulerName"] = "concerto"
    cluster.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
    )

    def placed() -> list[dict[str, Any]] | None:
        pods: list[dict[str, Any]] = cluster.get("pods", "-n", namespace)["items"]
        return pods if len(pods) == PODS[name] and all(p["spec"].get("nodeName") for p in pods) else None

    eventually(f"all pods of {name} are placed", placed)
    nodes = {n["metadata"]["name"]: n for n in cluster.get("nodes")["items"]}
    pods = cluster.get("pods", "-A")["items"]
    labels = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in cluster.get("namespaces")["items"]}
    kinds = ("PersistentVolume", "PersistentVolumeClaim", "StorageClass")
    storage = [{**obj, "kind": kind} for kind in kinds for obj in cluster.get(kind.lower(), "-A")["items"]]
    for pod in (p for p in pods if p["metadata"]["namespace"] == namespace):
        others = World(nodes, [p for p in pods if p is not pod], labels, storage)
        broken = others.broken(pod)[pod["spec"]["nodeName"]] - UNEVEN_LATER
        assert not broken, f"{pod['metadata']['name']} on {pod['spec']['nodeName']}: {broken}"
