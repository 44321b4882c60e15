"""What a Pod requests, in exact arithmetic.

Sources: requests as ``k8s.io/component-helpers/resource`` computes them (KEP-753 sidecars, KEP-2837 pod-level
resources, KEP-1287 resize in place), QoS as ``pkg/apis/core/v1/helper/qos``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from concerto.api.pod_start import CONTAINER_STATUSES
from concerto.api.quantities import counted, milli, parse_quantity

Raw = Mapping[str, Any]
QoS = Literal["Guaranteed", "Burstable", "BestEffort"]
Amounts = dict[str, Decimal]

NONZERO_CPU = Decimal("0.1")
"""What a container without a cpu request counts as where pods are spread by requests (kube-scheduler's 100m)."""
NONZERO_MEMORY = Decimal(200 * 2**20)
"""The same for memory (kube-scheduler's 200Mi)."""
_MAX_RESOURCES = 16
_REPORTS = frozenset({"resources", "allocatedResources", *CONTAINER_STATUSES})
"""Fields of a status in which a node reports what a pod or its containers have: absent until the pod starts."""


class ResizedRequests(NamedTuple):
    """What a pod counts for on its node while it is resized in place.

    Attributes:
        requests: by resource.
        nonzero: millicores of cpu and bytes of memory, with defaults for containers without a request.
    """

    requests: dict[str, int]
    nonzero: tuple[int, int]


class CpuPrediction(NamedTuple):
    """A pod's predicted cpu use, as amounts that settings multiply.

    Source: Trimaran, "Predicting the CPU usage of a pod" (docs/references.md, "Load-aware scores").

    Attributes:
        known: millicores of limits and overhead, taken as they are.
        requested: millicores of requests of containers without a limit.
        unspecified: how many containers have neither; 0 in a BestEffort pod.
        best_effort: 1 for a BestEffort pod, else 0.
    """

    known: int
    requested: int
    unspecified: int
    best_effort: int


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """A container's name, and its requests and limits in thousandths, as autoscaling/v2 computes with them."""

    name: str
    requests: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_raw(cls, name: str, resources: Raw) -> Self:
        """From a container's name and its ``resources``, of which the first 16 are held, cpu and memory among them."""
        return cls(name, _in_thousandths(resources.get("requests")), _in_thousandths(resources.get("limits")))


def pod_level_limits(pod: Raw) -> dict[str, int]:
    """Limits of the pod as a whole, in thousandths, from ``spec.resources``; empty where the pod has none."""
    return _in_thousandths(pod.get("limits"))


def _in_thousandths(amounts: Raw | None) -> dict[str, int]:
    first = sorted((amounts or {}).items(), key=lambda item: item[0] not in ("cpu", "memory"))[:_MAX_RESOURCES]
    return {name: milli(amount) for name, amount in first}


@dataclass(frozen=True, slots=True)
class PodResources:
    """The ``resources`` of a pod and of its containers, and what kube-scheduler computes from them.

    Amounts are millicores for cpu and whole units for all else, rounded up.

    Attributes:
        containers: of each container.
        inits: of each init container, and whether it restarts (a sidecar).
        overhead: ``spec.overhead``.
        pod: ``spec.resources``.
    """

    containers: Sequence[Raw]
    inits: Sequence[tuple[Raw, bool]]
    overhead: Raw
    pod: Raw

    def requests(self) -> dict[str, int]:
        """Requested amounts by resource."""
        return _counted(self._exact_requests())

    def pod_level_requests(self) -> dict[str, int] | None:
        """Requests of a pod that has some as a whole, of all resources, in thousandths; None where it has none.

        Of a resource that it has none of as a whole, those of its containers count, as kube-scheduler adds them up: an
        init container that needs more than these counts, too. Source: ``calculatePodLevelRequests`` of autoscaling/v2.
        """
        if not _pod_level(self.pod.get("requests")):
            return None
        return _in_thousandths({name: str(amount) for name, amount in self._exact_requests().items()})

    def nonzero_requests(self) -> dict[str, int]:
        """``requests`` with a default for every container without one (``NonMissingContainerRequests``)."""
        on_pod = _pod_level(self.pod.get("requests"))
        defaults = _missing(self._exact_requests() if on_pod else {})

        def filled(resources: Raw) -> Raw:
            return {**defaults, **(resources.get("requests") or {})}

        total = _total([filled(m) for m in self.containers], [(filled(i), s) for i, s in self.inits]) | on_pod
        _add(total, self.overhead)
        return _counted(total)

    def limits(self) -> dict[str, int]:
        """Limits by resource; overhead counts where there is a limit."""
        total = self._total("limits")
        _add(total, {r: v for r, v in self.overhead.items() if total.get(r)})
        return _counted(total)

    def qos(self) -> QoS:
        """The QoS class: from pod-level resources where they are set, from all containers where they are not."""
        requests: Amounts = {}
        limits: Amounts = {}
        guaranteed = True
        for resources in [self.pod] if self.pod else [*self.containers, *(i for i, _ in self.inits)]:
            _add(requests, _compute(resources.get("requests")))
            own = _compute(resources.get("limits"))
            _add(limits, own)
            guaranteed = guaranteed and len(own) == 2
        if not requests and not limits:
            return "BestEffort"
        return "Guaranteed" if guaranteed and requests == limits else "Burstable"

    def predicted_cpu(self) -> CpuPrediction:
        """From the limit, else the request, of each container, or of the pod as a whole where that has one."""
        limits, requests, unspecified = Decimal(0), Decimal(0), 0
        whole = any("cpu" in (self.pod.get(kind) or {}) for kind in ("limits", "requests"))
        for resources in [self.pod] if whole else [*self.containers, *(i for i, restarts in self.inits if restarts)]:
            if (limit := (resources.get("limits") or {}).get("cpu")) is not None:
                limits += parse_quantity(limit)
            elif (request := (resources.get("requests") or {}).get("cpu")) is not None:
                requests += parse_quantity(request)
            else:
                unspecified += 1
        known = counted("cpu", limits + parse_quantity(self.overhead.get("cpu", "0")))
        best_effort = self.qos() == "BestEffort"
        return CpuPrediction(known, counted("cpu", requests), 0 if best_effort else unspecified, int(best_effort))

    def _exact_requests(self) -> Amounts:
        total = self._total("requests")
        _add(total, self.overhead)
        return total

    def _total(self, kind: str) -> Amounts:
        total = _total([m.get(kind) for m in self.containers], [(i.get(kind), s) for i, s in self.inits])
        return total | _pod_level(self.pod.get(kind))


def _missing(requests: Raw) -> Raw:
    """Defaults for the containers of a pod, but for what the pod as a whole requests."""
    return {r: v for r, v in (("cpu", NONZERO_CPU), ("memory", NONZERO_MEMORY)) if r not in requests}


def _add(total: Amounts, more: Raw | None) -> None:
    for resource, value in (more or {}).items():
        total[resource] = total.get(resource, Decimal(0)) + (
            value if isinstance(value, Decimal) else parse_quantity(value)
        )


def _raise(total: Amounts, floor: Mapping[str, Decimal]) -> None:
    for resource, value in floor.items():
        if value > total.get(resource, Decimal(0)) or resource not in total:
            total[resource] = value


def _total(containers: Iterable[Raw | None], inits: Iterable[tuple[Raw | None, bool]]) -> Amounts:
    """What containers need together: the larger of all that run at once and of each init container's moment.

    An init container that restarts (a sidecar) runs on beside the containers and the init containers after it.
    """
    total: Amounts = {}
    for resources in containers:
        _add(total, resources)
    sidecars: Amounts = {}
    highest: Amounts = {}
    for resources, restarts in inits:
        if restarts:
            _add(total, resources)
            _add(sidecars, resources)
            _raise(highest, sidecars)
        else:
            moment = dict(sidecars)
            _add(moment, resources)
            _raise(highest, moment)
    _raise(total, highest)
    return total


def _pod_level(resources: Raw | None) -> Amounts:
    """What ``spec.resources`` sets for the pod as a whole, which replaces the sum over its containers."""
    return {
        r: parse_quantity(v)
        for r, v in (resources or {}).items()
        if r in ("cpu", "memory") or r.startswith("hugepages-")
    }


def _counted(amounts: Mapping[str, Decimal]) -> dict[str, int]:
    """Millicores for cpu, whole units for all else, rounded up."""
    return {r: counted(r, v) for r, v in amounts.items() if v > 0}


def _compute(resources: Raw | None) -> Raw:
    return {r: v for r, v in (resources or {}).items() if r in ("cpu", "memory") and parse_quantity(v) > 0}


def resized_requests(spec: Raw, status: Raw) -> ResizedRequests | None:
    """Requests of a pod on a node by its spec and its status: they differ while it is resized in place (KEP-1287).

    For each resource the largest of wanted, allocated and actual requests counts, or of the latter two if the node
    reports the resize as infeasible. Allocated and actual requests are those of the pod as a whole where its status
    has both, and else the sums over its containers. A container of which an infeasible resize reports neither counts
    for nothing, as in kube-scheduler. None where all agree word for word, which is nearly always.
    """
    if _REPORTS.isdisjoint(status) and not _is_infeasible(status):
        return None
    of_pod = [each for each in _reported_of_pod(status) if each is not None]
    if _is_as_wanted(spec, _reported_of_containers(status), of_pod) and not _is_infeasible(status):
        return None
    requests = _while_resized(spec, status, {})
    on_pod = _pod_level((spec.get("resources") or {}).get("requests"))
    nonzero = _counted(_while_resized(spec, status, _missing(requests if on_pod else {})))
    return ResizedRequests(_counted(requests), (nonzero.get("cpu", 0), nonzero.get("memory", 0)))


def _while_resized(spec: Raw, status: Raw, defaults: Raw) -> Amounts:
    """What such a pod counts for, with these amounts for each container that requests none."""
    pod_actual, pod_allocated = _reported_of_pod(status)
    reported = _reported_of_containers(status)
    infeasible = _is_infeasible(status)

    def together(of: Callable[[Raw], Raw]) -> Amounts:
        return _sum(spec, lambda container: {**defaults, **of(container)})

    if pod_actual is None or pod_allocated is None:
        present = [together(partial(of, reported, infeasible)) for of in (_actual, _allocated)]
    else:
        present = [_exact(pod_actual), _exact(pod_allocated)]
    total = _highest(*present) if infeasible else _highest(together(_requests_of), *present)
    whole = _pod_level((spec.get("resources") or {}).get("requests"))
    if whole and status.get("resources") is not None:
        found = (_pod_level(pod_actual), _pod_level(pod_allocated))
        whole = _highest(*found) if infeasible else _highest(whole, *found)
    total |= whole
    _add(total, spec.get("overhead"))
    return total


def is_being_resized(spec: Raw, status: Raw) -> bool:
    """Whether the node reports other requests than the spec has: it has not carried out a resize, or never will.

    What a pod as a whole runs with does not count: on cgroup v2 kubelet reports 6992m of 7 CPUs, which is what the
    weight of the pod's cgroup stands for.
    """
    _, allocated = _reported_of_pod(status)
    whole = [] if allocated is None else [allocated]
    return not _is_as_wanted(spec, _reported_of_containers(status), whole)


def _reported_of_pod(status: Raw) -> tuple[Raw | None, Raw | None]:
    """Actual and allocated requests of the pod as a whole, where its status has them."""
    return (status.get("resources") or {}).get("requests"), status.get("allocatedResources")


def _reported_of_containers(status: Raw) -> dict[str, Raw]:
    """Statuses of the containers whose resources are reported, by name."""
    return {
        s["name"]: s
        for group in CONTAINER_STATUSES
        for s in status.get(group) or ()
        if "resources" in s or "allocatedResources" in s
    }


def _is_as_wanted(spec: Raw, reported: Mapping[str, Raw], whole: Sequence[Raw]) -> bool:
    """Whether all that a status reports of containers, and of the pod as a whole, are the requests of the spec."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    if not all(_agrees(container, reported.get(container.get("name", ""))) for container in containers):
        return False
    if not whole:
        return True
    on_pod = (spec.get("resources") or {}).get("requests")
    wanted = _requests_of(containers[0]) if not on_pod and len(containers) == 1 else on_pod
    return all(each == wanted for each in whole)


def _agrees(container: Raw, reported: Raw | None) -> bool:
    if reported is None:
        return True
    wanted = _requests_of(container)
    actual = (reported.get("resources") or {}).get("requests", wanted)
    return bool(wanted == actual and wanted == reported.get("allocatedResources", wanted))


def _is_infeasible(status: Raw) -> bool:
    pending = next((c for c in status.get("conditions") or () if c.get("type") == "PodResizePending"), None)
    return pending is not None and pending.get("reason") == "Infeasible"


def _sum(spec: Raw, requests: Callable[[Raw], Raw]) -> Amounts:
    """What the containers of a pod need together, by what each of them needs."""
    inits = [(requests(c), c.get("restartPolicy") == "Always") for c in spec.get("initContainers") or ()]
    return _total([requests(c) for c in spec.get("containers") or ()], inits)


def _requests_of(container: Raw) -> Raw:
    """What the spec of a container requests."""
    return (container.get("resources") or {}).get("requests") or {}


def _allocated(reported: Mapping[str, Raw], infeasible: bool, container: Raw) -> Raw:
    """What the node has set aside for a container; what its spec says where its status does not say."""
    allocated: Raw | None = reported.get(container.get("name", ""), {}).get("allocatedResources")
    if allocated is not None:
        return allocated
    return {} if infeasible else _requests_of(container)


def _actual(reported: Mapping[str, Raw], infeasible: bool, container: Raw) -> Raw:
    """What a container runs with."""
    resources = reported.get(container.get("name", ""), {}).get("resources") or {}
    actual: Raw | None = resources.get("requests")
    return _allocated(reported, infeasible, container) if actual is None else actual


def _highest(*each: Mapping[str, Decimal]) -> Amounts:
    highest: Amounts = {}
    for amounts in each:
        _raise(highest, amounts)
    return highest


def _exact(amounts: Raw) -> Amounts:
    return {resource: parse_quantity(value) for resource, value in amounts.items()}
