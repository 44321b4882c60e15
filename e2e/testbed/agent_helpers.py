"""What the agent's scenarios share: what its objects say, and pods that are bound to a node by hand."""

from __future__ import annotations

import json
from typing import Any

from e2e.testbed.clusters import Cluster
from e2e.testbed.images import BUSYBOX_IMAGE
from e2e.testbed.waiting import eventually

Object = dict[str, Any]


def condition(obj: Object | None, kind: str) -> Object:
    """The condition of that type; one with empty fields if it is missing."""
    conditions = (obj or {}).get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == kind), {"status": "", "reason": "", "message": ""})


def ncap(cluster: Cluster, name: str) -> Object | None:
    """The node's NodeCapacity."""
    found = cluster.get("ncap", f"--field-selector=metadata.name={name}")["items"]
    return found[0] if found else None


def status(cluster: Cluster, name: str) -> Object:
    """The status of the node's NodeCapacity; empty if it is missing."""
    return dict((ncap(cluster, name) or {}).get("status", {}))


def wait_ready(cluster: Cluster, name: str) -> Object:
    """The node's NodeCapacity once it is Ready."""

    def ready() -> Object | None:
        obj = ncap(cluster, name)
        return obj if condition(obj, "Ready")["status"] == "True" else None

    return dict(eventually(f"NodeCapacity {name} is Ready", ready))


def pod_spec(command: str) -> Object:
    """One container that runs a shell command."""
    container = {"name": "c", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", command]}
    return {
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }


def make_pod(cluster: Cluster, namespace: str, node: str, name: str, command: str = "sleep 1000") -> str:
    """A pod that is on the node from the start; its UID."""
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"nodeName": node, "restartPolicy": "Never", **pod_spec(command)},
        }
    )
    return str(cluster.get("pod", "-n", namespace, name)["metadata"]["uid"])


def make_daemon_pod(cluster: Cluster, namespace: str, node: str) -> str:
    """The pod of a DaemonSet, made by its controller, on the node; its UID."""
    labels = {"app": "daemon"}
    cluster.kubectl("label", "node", node, "daemon=here", "--overwrite")
    spec = {"schedulerName": "nobody", "nodeSelector": {"daemon": "here"}, **pod_spec("sleep 1000")}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "daemon", "namespace": namespace},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        }
    )
    pod = eventually(
        "the DaemonSet has its pod", lambda: cluster.get("pod", "-n", namespace, "-l=app=daemon")["items"]
    )[0]
    name = pod["metadata"]["name"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    return str(pod["metadata"]["uid"])
