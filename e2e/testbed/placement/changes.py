"""Random changes of a cluster, between one pod that is to be placed and the next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.testbed.placement.random_objects import Object, random_labels, random_node, resize_status


@dataclass(frozen=True)
class Change:
    """A change of one object.

    Attributes:
        kind: Node, Pod, or that of an object of the scenario's storage.
        name: the object's name.
        patch: merge patch of it; None if it is deleted.
        subresource: of the object, which the patch is for; empty for the object itself.
    """

    kind: str
    name: str
    patch: Object | None = None
    subresource: str = ""


def random_change(rng: random.Random, nodes: Sequence[str], pods: Sequence[Object]) -> Change:
    """A change of one of the nodes, or of one of the pods on them."""
    return _of_pod(rng, rng.choice(pods)) if pods and rng.random() < 0.45 else _of_node(rng, rng.choice(nodes))


def _of_pod(rng: random.Random, pod: Object) -> Change:
    name = pod["metadata"]["name"]
    match rng.choice(["ended", "labels", "labels", "resized", "gone"]):
        case "ended":
            return Change("Pod", name, {"status": {"phase": rng.choice(["Succeeded", "Failed"])}}, "status")
        case "labels":
            return Change("Pod", name, {"metadata": {"labels": {"tenant": None} | random_labels(rng)}})
        case "resized":
            return Change("Pod", name, {"status": resize_status(rng, pod["spec"])}, "status")
    return Change("Pod", name)


def _of_node(rng: random.Random, name: str) -> Change:
    other = random_node(rng, name)
    spec = {"taints": other["spec"].get("taints"), "unschedulable": other["spec"].get("unschedulable")}
    match rng.choice(["spec", "spec", "cordon", "labels", "labels", "status", "gone"]):
        case "spec":
            return Change("Node", name, {"spec": spec})
        case "cordon":
            return Change("Node", name, {"spec": {"unschedulable": rng.choice([True, None])}})
        case "labels":
            gone = dict.fromkeys(("topology.kubernetes.io/zone", "rack", "disk", "size"))
            return Change("Node", name, {"metadata": {"labels": gone | other["metadata"]["labels"]}})
        case "status":
            status = {part: other["status"][part] for part in ("capacity", "allocatable", "images")}
            return Change("Node", name, {"status": status}, "status")
    return Change("Node", name)
