"""Random changes of a cluster, between one pod that is to be placed and the next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.testbed.placement.random_objects import Object, random_node


@dataclass(frozen=True)
class Change:
    """A change of one object.

    Attributes:
        kind: Node or Pod.
        name: the object's name.
        patch: merge patch of it; None if it is deleted.
        subresource: of the object, which the patch is for; empty for the object itself.
    """

    kind: str
    name: str
    patch: Object | None = None
    subresource: str = ""


def random_change(rng: random.Random, nodes: Sequence[str], pods: Sequence[str]) -> Change:
    """A change of one of the nodes, or of one of the pods on them."""
    if pods and rng.random() < 0.35:
        pod = rng.choice(pods)
        ended = {"status": {"phase": rng.choice(["Succeeded", "Failed"])}}
        return Change("Pod", pod, ended, "status") if rng.random() < 0.5 else Change("Pod", pod)
    name = rng.choice(nodes)
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
