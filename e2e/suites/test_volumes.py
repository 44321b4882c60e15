"""Pods with PersistentVolumeClaims: the operator binds their volumes with kube-controller-manager's real volume binder.

Nodes are mere API objects here. What a provisioner does from outside of Kubernetes, the tests do by kubectl: they make
the volume for the node that the claim names, or take the node back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from concerto.api.volumes import SELECTED_NODE
from e2e.testbed.clusters import Cluster
from e2e.testbed.failpoints import Failpoint
from e2e.testbed.processes import QUICK_LEASE, Process, operator_process
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import eventually

NODES = ("vol-0000", "vol-0001", "vol-0002")
HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def operator(concerto_cluster: Cluster, failpoint: Failpoint) -> Iterator[Process]:
    """Three nodes that are API objects, two storage classes, and an operator that is started again when it ends."""
    cluster = concerto_cluster
    classes = {"vol-local": "kubernetes.io/no-provisioner", "vol-made": "example.com/v"}
    cluster.apply(*(storage_class(name, provisioner) for name, provisioner in classes.items()))
    with hollow_nodes(cluster, len(NODES), "--api-only", "--prefix", "vol"):
        process = operator_process(cluster, cluster.work_dir, "operator-volumes", QUICK_LEASE, restarts=True)
        failpoint.add_to(process)
        process.start()
        try:
            process.wait_ready()
            yield process
        finally:
            process.stop()
            cluster.kubectl("delete", "storageclass", *classes, "--wait=false")
            cluster.kubectl("delete", "persistentvolume", "-l", "suite=volumes", "--wait=false")


def storage_class(name: str, provisioner: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(name: str, node: str, storage: str = "vol-local", **spec: Any) -> dict[str, Any]:
    """A local volume of 1Gi on a node."""
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
    body = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage,
        "local": {"path": f"/var/nowhere/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    metadata = {"name": name, "labels": {"suite": "volumes"}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": body | spec}


def claim(namespace: str, name: str, storage: str) -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def pod(namespace: str, name: str, *claims: str) -> dict[str, Any]:
    spec = {
        "schedulerName": "concerto",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none.invalid/none"}],
        "volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims],
    }
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def stateful_set(namespace: str, replicas: int) -> dict[str, Any]:
    template = pod(namespace, "db")["spec"]
    del template["volumes"]
    template["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec = {
        "replicas": replicas,
        "serviceName": "db",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": template},
        "volumeClaimTemplates": [
            {"metadata": {"name": "data"}, "spec": claim(namespace, "data", "vol-local")["spec"]},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": namespace, "name": "db"},
        "spec": spec,
    }


def node_of(cluster: Cluster, namespace: str, name: str) -> str:
    found = cluster.kubectl("get", "pod", "-n", namespace, name, "-o", "jsonpath={.spec.nodeName}", check=False)
    return found if found in NODES else ""


def selected(cluster: Cluster, namespace: str, name: str) -> str:
    """The node that a claim's volume is to be made for."""
    annotations = cluster.get("pvc", "-n", namespace, name)["metadata"].get("annotations") or {}
    return str(annotations.get(SELECTED_NODE, ""))


def provision(cluster: Cluster, namespace: str, name: str, node: str) -> None:
    """What a provisioner does: make the claim's volume for the node, already held for the claim."""
    uid = cluster.get("pvc", "-n", namespace, name)["metadata"]["uid"]
    ref = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace, "name": name, "uid": uid}
    cluster.apply(volume(f"{namespace}-{name}", node, "vol-made", claimRef=ref))


def events(cluster: Cluster, namespace: str, name: str) -> list[str]:
    fields = f"involvedObject.name={name},reason=FailedScheduling"
    return [e["message"] for e in cluster.get("events", "-n", namespace, "--field-selector", fields)["items"]]


def bound_to(cluster: Cluster, namespace: str, *names: str) -> dict[str, str]:
    """Nodes of the pods, once all are bound."""
    return eventually(
        f"{', '.join(names)}: bound",
        lambda: found if all((found := {n: node_of(cluster, namespace, n) for n in names}).values()) else None,
    )


def test_a_stateful_set_gets_local_volumes_and_its_pods_come_back_to_them(concerto_cluster, operator, namespace):
    cluster, names = concerto_cluster, ("db-0", "db-1", "db-2")
    cluster.apply(*(volume(f"{namespace}-{node}", node) for node in NODES), stateful_set(namespace, len(names)))
    before = bound_to(cluster, namespace, *names)
    assert sorted(before.values()) == sorted(NODES), "each volume can be had on one node"
    claims = cluster.get("pvc", "-n", namespace)["items"]
    assert {c["status"]["phase"] for c in claims} == {"Bound"}
    cluster.kubectl("delete", "pod", "-n", namespace, "--all", "--force", "--grace-period=0")
    assert bound_to(cluster, namespace, *names) == before
    held = {v["spec"]["claimRef"]["name"] for v in cluster.get("pv", "-l", "suite=volumes")["items"]}
    assert {c["metadata"]["name"] for c in claims} <= held


def test_a_pod_waits_for_a_volume_and_another_pod_does_not(concerto_cluster, operator, namespace):
    cluster = concerto_cluster
    cluster.apply(claim(namespace, "c", "vol-made"), pod(namespace, "with", "c"))
    node = eventually("a node is selected", lambda: selected(cluster, namespace, "c"))
    cluster.apply(pod(namespace, "without"))
    bound_to(cluster, namespace, "without")
    assert not node_of(cluster, namespace, "with")
    provision(cluster, namespace, "c", node)
    assert bound_to(cluster, namespace, "with") == {"with": node}


def test_a_node_that_the_provisioner_takes_back_is_chosen_anew(concerto_cluster, operator, namespace):
    cluster = concerto_cluster
    cluster.apply(claim(namespace, "c", "vol-made"), pod(namespace, "p", "c"))
    first = eventually("a node is selected", lambda: selected(cluster, namespace, "c"))
    cluster.kubectl("cordon", first)
    try:
        cluster.kubectl("annotate", "pvc", "-n", namespace, "c", f"{SELECTED_NODE}-")
        second = eventually("another node is selected", lambda: selected(cluster, namespace, "c"))
        assert second != first
        assert 'binding volumes: provisioning failed for PVC "c"' in eventually(
            "the event", lambda: events(cluster, namespace, "p")
        )
    finally:
        cluster.kubectl("uncordon", first)
    provision(cluster, namespace, "c", second)
    assert bound_to(cluster, namespace, "p") == {"p": second}


@pytest.mark.parametrize("point", ["after-hold-volumes", "after-select-nodes", "after-volumes-bound"])
def test_an_operator_that_ends_half_way_goes_on_from_there(concerto_cluster, operator, failpoint, namespace, point):
    cluster = concerto_cluster
    if point != "after-hold-volumes":
        cluster.apply(claim(namespace, "c", "vol-made"))
    else:
        cluster.apply(*(volume(f"{namespace}-{node}", node) for node in NODES[:2]), claim(namespace, "c", "vol-local"))
    failpoint.set(point)
    cluster.apply(pod(namespace, "p", "c"))
    if point != "after-hold-volumes":
        node = eventually("a node is selected", lambda: selected(cluster, namespace, "c"))
        provision(cluster, namespace, "c", node)
    eventually(f"{point} is reached", failpoint.is_reached)
    place = bound_to(cluster, namespace, "p")["p"]
    name = cluster.get("pvc", "-n", namespace, "c")["spec"]["volumeName"]
    term = cluster.get("pv", name)["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
    assert term["matchExpressions"][0]["values"] == [place]
    held = [v for v in cluster.get("pv")["items"] if v["spec"].get("claimRef", {}).get("namespace") == namespace]
    assert len(held) == 1, json.dumps(held)


def test_what_a_pod_waits_for_is_said_in_its_event(concerto_cluster, operator, namespace):
    cluster = concerto_cluster
    cluster.apply(pod(namespace, "p", "c"))
    [said] = eventually("the event", lambda: events(cluster, namespace, "p"))
    assert ' nodes are available: persistentvolumeclaim "c" not found.' in said
    cluster.apply(claim(namespace, "c", "vol-made"))
    node = eventually("a node is selected", lambda: selected(cluster, namespace, "c"))
    provision(cluster, namespace, "c", node)
    assert bound_to(cluster, namespace, "p") == {"p": node}
