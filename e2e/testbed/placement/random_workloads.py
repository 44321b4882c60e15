"""Random Services and workloads, by whose selectors pods without spread constraints are spread."""

from __future__ import annotations

import random

from e2e.testbed.placement.random_objects import NAMESPACES, Object, RandomPod, make_object

_LABELS = ({"app": "a"}, {"app": "b"}, {"tier": "x"}, {"app": "a", "tier": "y"})
_KINDS = {"ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}
_UID = "00000000-0000-0000-0000-000000000000"


def random_service(rng: random.Random, name: str) -> Object:
    """A Service that selects pods."""
    spec = {"clusterIP": "None", "selector": rng.choice(_LABELS), "ports": [{"port": 80}]}
    return make_object("v1", "Service", name, metadata={"namespace": rng.choice([*NAMESPACES, "red"])}, spec=spec)


def random_workload(rng: random.Random, name: str) -> Object:
    """A ReplicationController, ReplicaSet or StatefulSet that has no pods of its own."""
    kind = rng.choice([*_KINDS])
    labels = rng.choice(_LABELS)
    selector: Object = labels if kind == "ReplicationController" else {"matchLabels": labels}
    if kind != "ReplicationController" and rng.random() < 0.4:
        expressions = [{"key": "app", "operator": "In", "values": [labels.get("app", "c"), "c"]}]
        labels = {"app": "c", **labels}
        selector["matchExpressions"] = [*expressions, {"key": "retired", "operator": "DoesNotExist"}]
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "none.invalid/none"}]},
    }
    spec = {"replicas": 0, "selector": selector, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = "none"
    return make_object(_KINDS[kind], kind, name, metadata={"namespace": rng.choice([*NAMESPACES, "red"])}, spec=spec)


def make_owned(rng: random.Random, pod: RandomPod, workloads: list[Object]) -> None:
    """Have one of the workloads own the pod, or something by which kube-scheduler spreads no pods."""
    workload = rng.choice(workloads)
    owner = {"apiVersion": workload["apiVersion"], "kind": workload["kind"], "name": workload["metadata"]["name"]}
    match rng.random():
        case share if share < 0.1:
            owner |= {"apiVersion": "batch/v1", "kind": "Job"}
        case share if share < 0.2:
            owner["name"] = "none"
    controls = rng.random() < 0.9
    pod.body["metadata"]["namespace"] = workload["metadata"]["namespace"]
    pod.body["metadata"]["ownerReferences"] = [owner | {"uid": _UID, "controller": controls}]
