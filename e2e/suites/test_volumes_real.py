"""A StatefulSet with claims on real nodes: on local volumes, and on those that a real provisioner makes. By hand
(`make volumes`): the provisioner is built first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.testbed.clusters import Cluster, LocalControlPlane, Unusable
from e2e.testbed.clusters.binaries import find_or_build_local_path_provisioner
from e2e.testbed.clusters.process import Child
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNodes
from e2e.testbed.processes import operator_process
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

pytestmark = [
    pytest.mark.realnode,
    pytest.mark.skipif(not os.environ.get("CONCERTO_REAL_VOLUMES"), reason="by hand: make volumes"),
]

FOLDER = "/var/lib/concerto-volumes"
PODS = ("db-0", "db-1", "db-2")
PROVISIONER = "rancher.io/local-path"


@pytest.fixture(scope="module")
def nodes(concerto_cluster: Cluster) -> Iterator[RealNodes]:
    """Two real nodes and an operator; no agents, so that requests decide."""
    plane = require_real_nodes(concerto_cluster)
    with RealNodes(plane, ("vol-1", "vol-2")) as nodes:
        nodes.wait_ready()
        image = build_image(plane.work_dir / "busybox.tar", BUSYBOX_IMAGE)
        for node in nodes:
            node.import_image(image)
        process = operator_process(plane, plane.logs, "operator-volumes-real").start()
        try:
            process.wait_ready()
            yield nodes
        finally:
            process.stop()


@pytest.fixture(scope="module")
def provisioner(concerto_cluster: Cluster, say: Callable[[str], None]) -> Iterator[Child]:
    """The real provisioner, as a process beside the control plane. Its helper pods make the directories."""
    plane = concerto_cluster
    assert isinstance(plane, LocalControlPlane)
    try:
        program = find_or_build_local_path_provisioner(say)
    except Unusable as error:
        pytest.skip(str(error))
    namespace = "local-path-storage"
    plane.make_namespace(namespace)
    config = plane.work_dir / "provisioner.json"
    config.write_text(json.dumps({"nodePathMap": [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [FOLDER]}]}))
    helper = plane.work_dir / "helper-pod.yaml"
    container = {"name": "helper-pod", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never"}
    spec = {"containers": [container], "automountServiceAccountToken": False, "dnsPolicy": "Default"}
    helper.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "helper"}, "spec": spec}))
    scripts = {"setup": 'mkdir -m 0777 -p "$VOL_DIR"', "teardown": 'rm -rf "$VOL_DIR"'}
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": "local-path-config"},
            "data": {name: f"#!/bin/sh\nset -eu\n{script}\n" for name, script in scripts.items()},
        },
        storage_class("local-path", PROVISIONER),
    )
    child = Child(
        "local-path-provisioner",
        [
            str(program),
            "start",
            f"--kubeconfig={plane.kubeconfig}",
            f"--config={config}",
            f"--helper-pod-file={helper}",
            f"--helper-image={BUSYBOX_IMAGE}",
            f"--namespace={namespace}",
            "--configmap-name=local-path-config",
            "--service-account-name=default",
            f"--provisioner-name={PROVISIONER}",
        ],
        plane.logs / "local-path-provisioner.log",
    )
    yield child
    child.stop()


def storage_class(name: str, provisioner: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def local_volume(name: str, node: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "real-local",
        "local": {"path": f"{FOLDER}/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def stateful_set(namespace: str, storage: str) -> dict[str, Any]:
    """Pods that add a line to their volume each time they start."""
    container = {
        "name": "db",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "hostname >> /data/starts; exec sleep 3600"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"requests": {"cpu": "10m"}},
    }
    template = {
        "schedulerName": "concerto",
        "terminationGracePeriodSeconds": 0,
        "dnsPolicy": "Default",
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    spec = {
        "replicas": len(PODS),
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": template},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": namespace, "name": "db"},
        "spec": spec,
    }


def running(cluster: Cluster, namespace: str, *, but_not: frozenset[str] = frozenset()) -> dict[str, tuple[str, str]]:
    """Node and UID of each pod, once all are Ready and none has one of these UIDs."""

    def look() -> dict[str, tuple[str, str]] | None:
        pods = cluster.get("pods", "-n", namespace, "-l", "app=db")["items"]
        conditions = [(p, c) for p in pods for c in p["status"].get("conditions", ())]
        ready = [p for p, c in conditions if (c["type"], c["status"]) == ("Ready", "True")]
        found = {p["metadata"]["name"]: (p["spec"]["nodeName"], p["metadata"]["uid"]) for p in ready}
        return found if len(found) == len(PODS) and not but_not & {uid for _, uid in found.values()} else None

    return eventually("every pod of the StatefulSet is Ready", look, 2 * PATIENCE_SECONDS)


def check_that_pods_come_back_to_their_data(cluster: Cluster, namespace: str) -> None:
    before = running(cluster, namespace)
    cluster.kubectl("delete", "pod", "-n", namespace, "-l", "app=db", "--wait=false")
    after = running(cluster, namespace, but_not=frozenset(uid for _, uid in before.values()))
    assert {n: node for n, (node, _) in after.items()} == {n: node for n, (node, _) in before.items()}
    for name in PODS:
        starts = cluster.kubectl("exec", "-n", namespace, name, "--", "cat", "/data/starts").split()
        assert starts == [name, name]


def test_on_local_volumes(concerto_cluster, nodes, namespace):
    cluster = concerto_cluster
    names = [node.name for node in nodes]
    places = {f"real-{i}": names[i % len(names)] for i in range(len(PODS))}
    for name, node in places.items():
        nodes[node].exec("mkdir", "-p", f"{FOLDER}/{name}")
    cluster.apply(
        storage_class("real-local", "kubernetes.io/no-provisioner"),
        *(local_volume(name, node) for name, node in places.items()),
        stateful_set(namespace, "real-local"),
    )
    check_that_pods_come_back_to_their_data(cluster, namespace)


def test_on_volumes_that_a_real_provisioner_makes(concerto_cluster, nodes, provisioner, namespace):
    cluster = concerto_cluster
    cluster.apply(stateful_set(namespace, "local-path"))
    check_that_pods_come_back_to_their_data(cluster, namespace)
    assert provisioner.is_running()


def test_a_pod_moves_with_a_new_claim(concerto_cluster, nodes, provisioner, namespace):
    cluster = concerto_cluster
    cluster.apply(stateful_set(namespace, "local-path"))
    before = running(cluster, namespace)
    node, uid = before["db-2"]
    cluster.kubectl("cordon", node)
    try:
        cluster.kubectl("delete", "pvc", "-n", namespace, "data-db-2", "--wait=false")
        cluster.kubectl("delete", "pod", "-n", namespace, "db-2")
        after = running(cluster, namespace, but_not=frozenset({uid}))
        assert after["db-2"][0] != node
        assert cluster.kubectl("exec", "-n", namespace, "db-2", "--", "cat", "/data/starts").split() == ["db-2"]
    finally:
        cluster.kubectl("uncordon", node)
