"""What pods request and nodes offer, as fractions, by the documentation alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

Object = Mapping[str, Any]
Amounts = dict[str, Fraction]

_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12}


def amount(text: str) -> Fraction:
    """The value of a quantity such as ``500m`` or ``2Gi``."""
    number, suffix = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text)).groups()  # type: ignore[union-attr]
    if suffix.endswith("i"):
        return Fraction(number) * 1024 ** ("KMGT".index(suffix[0]) + 1)
    return Fraction(number) * Fraction(10) ** _POWERS[suffix]


def allocatable(node: Object) -> dict[str, int]:
    """What the node offers: millicores of cpu, whole units of all else."""
    return {r: _counted(r, amount(v)) for r, v in node["status"]["allocatable"].items()}


def requests_of(pod: Object, *, by_status: bool = False) -> dict[str, int]:
    """What the pod requests of its node: millicores of cpu, whole units of all else, rounded up.

    Args:
        pod: the pod.
        by_status: count what its node has given it already, while it is resized; else only what it wants.
    """
    spec, status = pod["spec"], pod.get("status") or {}
    total = _together(spec, lambda c: _of((c.get("resources") or {}).get("requests")))
    whole = {r: v for r, v in _of((spec.get("resources") or {}).get("requests")).items() if _is_pod_level(r)}
    if by_status:
        total, whole = _by_status(spec, status, total, whole)
    total |= whole
    for resource, value in _of(spec.get("overhead")).items():
        total[resource] = total.get(resource, Fraction(0)) + value
    return {r: _counted(r, v) for r, v in total.items()}


def _by_status(spec: Object, status: Object, wanted: Amounts, whole: Amounts) -> tuple[Amounts, Amounts]:
    """What a pod counts for that is being resized: all of it and, if it has any, its pod-level requests."""
    pending = [c for c in status.get("conditions") or () if c["type"] == "PodResizePending"]
    refused = bool(pending) and pending[0].get("reason") == "Infeasible"
    reported = {
        s["name"]: s for s in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    }

    def allocated(container: Object) -> Amounts:
        own = reported.get(container["name"], {}).get("allocatedResources")
        return _of(own) if own else ({} if refused else _of((container.get("resources") or {}).get("requests")))

    def actual(container: Object) -> Amounts:
        own = (reported.get(container["name"], {}).get("resources") or {}).get("requests")
        return _of(own) if own else allocated(container)

    of_pod = [(status.get("resources") or {}).get("requests"), status.get("allocatedResources")]
    given = [_of(each) for each in of_pod] if all(of_pod) else [_together(spec, actual), _together(spec, allocated)]
    total = _larger([*given] if refused else [wanted, *given])
    if whole and status.get("resources"):
        known = [{r: v for r, v in _of(each).items() if _is_pod_level(r)} for each in of_pod]
        whole = _larger(known if refused else [whole, *known])
    return total, whole


def _together(spec: Object, of: Callable[[Object], Amounts]) -> Amounts:
    """The larger of all containers that run at once, and of each moment of the start."""
    running = [of(c) for c in spec["containers"]]
    sidecars: list[Amounts] = []
    moments: list[Amounts] = []
    for container in spec.get("initContainers") or ():
        moments.append(_sum([*sidecars, of(container)]))
        if container.get("restartPolicy") == "Always":
            sidecars.append(of(container))
    return _larger([_sum([*running, *sidecars]), *moments])


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, Fraction(0)) + value
    return total


def _larger(parts: Iterable[Amounts]) -> Amounts:
    found: Amounts = {}
    for part in parts:
        for resource, value in part.items():
            found[resource] = max(found.get(resource, value), value)
    return found


def _of(amounts: Object | None) -> Amounts:
    return {r: amount(v) for r, v in (amounts or {}).items()}


def _is_pod_level(resource: str) -> bool:
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def _counted(resource: str, value: Fraction) -> int:
    return math.ceil(value * 1000 if resource == "cpu" else value)
