"""What is held of a pod with a large spec or status: what it takes of its node, and little more.

Anybody may write 1.5 MiB of tolerations, scheduling gates or ports, which take ten times as much once they are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from concerto.api.object_bounds import is_large
from concerto.api.pod_constraints import EVERY_PORT
from concerto.api.pod_requests import PodResources
from concerto.api.pod_shape import CONSTRAINTS, LEFT_OUT, is_too_large, restart_all_rule
from concerto.api.pod_start import CONTAINER_STATUSES

Raw = Mapping[str, Any]

MAX_HOST_PORTS = 1024
"""Of a pod that is refused as too large. One with more counts as having every port of its node."""
MAX_RESOURCES = 1024
"""Names of resources, in all containers of a pod that is refused as too large, beside those that each node has. No node
offers so many, so that no kubelet runs such a pod."""
MAX_CONTAINERS = 100
"""Of a pod that is refused as too large. Those of one with more count as one container."""
_MAX_WHOLE_SPEC_BYTES = 4 * 1024
"""JSON of a spec that is held as `trim_pod` leaves it: nothing is to be gained by a closer look."""
_MAX_GATES = 16
_OF_EACH_NODE = ("cpu", "memory", "ephemeral-storage")
_GROUPS = ("containers", "initContainers")


def bound_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec, as `trim_pod` leaves it, without what does not matter if it is large.

    Args:
        spec: is changed, but for the maps and lists that its fields and those of its containers hold.
    """
    whole = {field: value for field, value in spec.items() if field not in ("nodeName", "volumes")}
    if not is_large(whole, _MAX_WHOLE_SPEC_BYTES):
        return spec
    for field, number in (("schedulingGates", _MAX_GATES), ("resourceClaims", 1)):
        if spec.get(field):
            spec[field] = spec[field][:number]
    for container in _containers(spec):
        if container.get("ports"):
            container["ports"] = [port for port in container["ports"] if port.get("hostPort")]
        if rules := container.get("restartPolicyRules"):
            container["restartPolicyRules"] = restart_all_rule(rules) or rules[:1]
    if not is_too_large(spec):
        return spec
    spec[LEFT_OUT] = True
    for field in CONSTRAINTS:
        spec.pop(field, None)
    _bound_amounts(spec)
    return spec


def bound_status(status: dict[str, Any]) -> dict[str, Any]:
    """The status, as `trim_pod` leaves it; if it is large, without what it reports of resources and containers.

    A kubelet writes it. What the pod requests counts then, and the pod is taken to run on.

    Args:
        status: is changed.
    """
    if is_large(status):
        for field in ("resources", "allocatedResources", *CONTAINER_STATUSES):
            status.pop(field, None)
        if conditions := status.get("conditions"):
            status["conditions"] = [*{condition["type"]: condition for condition in conditions}.values()]
    return status


def _bound_amounts(spec: dict[str, Any]) -> None:
    """Leave of the spec's containers what they request, and their host ports."""
    containers = [*_containers(spec)]
    ports = [port for container in containers for port in container.get("ports") or ()]
    if len(ports) > MAX_HOST_PORTS:
        ports = [{"hostPort": EVERY_PORT}]
    left = MAX_RESOURCES
    for each in (spec, *containers):
        each.pop("restartPolicyRules", None)
        each.pop("ports", None)
        if each.get("resources"):
            each["resources"], left = _first_amounts(each["resources"], left)
    if "overhead" in spec:
        spec["overhead"] = _first_amounts({"requests": spec["overhead"]}, left)[0]["requests"]
    if len(containers) > MAX_CONTAINERS:
        spec["containers"] = [{"name": "", "resources": _together(spec)}]
        spec.pop("initContainers", None)
    if ports:
        spec["containers"][0]["ports"] = ports


def _first_amounts(resources: Raw, left: int) -> tuple[dict[str, Any], int]:
    """Requests and limits, of the resources that not each node has so many; and how many more may be held."""
    found = {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) or {}
        others = [name for name in amounts if name not in _OF_EACH_NODE][:left]
        left -= len(others)
        found[kind] = {name: amounts[name] for name in (*_OF_EACH_NODE, *others) if name in amounts}
    return found, left


def _together(spec: Raw) -> dict[str, dict[str, str]]:
    """What the containers request together, and their limits, as one container has them."""
    resources = PodResources(
        [each.get("resources") or {} for each in spec.get("containers") or ()],
        [(e.get("resources") or {}, e.get("restartPolicy") == "Always") for e in spec.get("initContainers") or ()],
        {},
        {},
    )
    found = {"requests": resources.requests(), "limits": resources.limits()}
    return {
        kind: {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in amounts.items()}
        for kind, amounts in found.items()
    }


def _containers(spec: Raw) -> Iterable[dict[str, Any]]:
    return (container for group in _GROUPS for container in spec.get(group) or ())
