"""What scheduling needs of a Pod.

A Job's pods differ in name, UID and node, and are otherwise alike. What they share is their ``PodShape``: it is decoded
once and cached, and scheduling computes per shape what does not depend on the single pod.

Sources: requests as ``k8s.io/component-helpers/resource`` computes them (KEP-753 sidecars, KEP-2837 pod-level
resources, KEP-1287 resize in place), QoS as ``pkg/apis/core/v1/helper/qos``, host ports as the scheduler's
``HostPortInfo``.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self

from concerto.api.node import Taint
from concerto.api.quantities import counted, parse_quantity
from concerto.api.selectors import LabelSelector, NodeSelector, NodeSelectorTerm
from concerto.api.timestamps import parse_timestamp

Raw = Mapping[str, Any]
QoS = Literal["Guaranteed", "Burstable", "BestEffort"]

NONZERO_CPU = Decimal("0.1")
"""What a container without a cpu request counts as where pods are spread by requests (kube-scheduler's 100m)."""
NONZERO_MEMORY = Decimal(200 * 2**20)
"""The same for memory (kube-scheduler's 200Mi)."""

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the API's picture of a static pod."""
_WILDCARD = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Which taints a pod does not mind.

    Attributes:
        key: the taint's key; empty means every key.
        operator: Equal or Exists.
        value: the taint's value, for Equal.
        effect: the taint's effect; empty means every effect.
    """

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """Whether the taint is one of them."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that a pod takes.

    Attributes:
        ip: the address it is bound to; ``0.0.0.0`` is all of them.
        protocol: TCP, UDP or SCTP.
        port: the number.
    """

    ip: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Whether both cannot be had on one node."""
        return (
            self.port == other.port
            and self.protocol == other.protocol
            and (self.ip == other.ip or _WILDCARD in (self.ip, other.ip))
        )


@dataclass(frozen=True, slots=True)
class AntiAffinityTerm:
    """Which pods a running pod refuses beside it (its required pod anti-affinity).

    Attributes:
        topology_key: node label whose equal values make two nodes one place.
        selector: the refused pods' labels.
        namespaces: the refused pods' namespaces; empty means the pod's own.
        any_namespace: whether a namespace selector widens that. Namespaces' labels are not read, so a selector counts
            as selecting every namespace: a pod may be kept away that need not be, never the reverse.
    """

    topology_key: str
    selector: LabelSelector
    namespaces: tuple[str, ...]
    any_namespace: bool

    def refuses(self, own_namespace: str, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod in ``own_namespace`` with this term refuses one in ``namespace`` with these labels."""
        if not self.any_namespace and namespace not in (self.namespaces or (own_namespace,)):
            return False
        return self.selector.matches(labels)


class CpuPrediction(NamedTuple):
    """A pod's predicted cpu use, as amounts that settings multiply (seed 001; algorithms section 5).

    Attributes:
        known: millicores of limits and overhead, taken as they are.
        requested: millicores of requests of containers without a limit.
        unsaid: how many containers have neither; 0 in a BestEffort pod.
        best_effort: 1 for a BestEffort pod, else 0.
    """

    known: int
    requested: int
    unsaid: int
    best_effort: int


@dataclass(frozen=True, slots=True)
class PodShape:
    """All that the pods of one template share and placement looks at.

    Two shapes are equal when their keys are: the key holds every raw field that the rest is computed from.

    Attributes:
        key: identity.
        requests: amounts by resource (millicores for cpu, whole units for all else), as the scheduler counts them.
        nonzero_cpu_millicores: cpu request with 100m for each container that has none.
        nonzero_memory_bytes: memory request with 200Mi for each container that has none.
        limits: amounts by resource, as ``requests``.
        predicted_cpu: what its cpu use is predicted from; see ``CpuPrediction``.
        qos: the QoS class.
        tolerations: taints it does not mind.
        node_selector: where it may run.
        preferred_nodes: (weight, term) of its preferred node affinity.
        host_ports: ports of the node it takes.
        anti_affinity: pods it refuses beside it once it runs.
        unsupported: the names of its hard constraints that Concerto does not evaluate.
    """

    key: bytes
    requests: Mapping[str, int] = field(compare=False)
    nonzero_cpu_millicores: int = field(compare=False)
    nonzero_memory_bytes: int = field(compare=False)
    limits: Mapping[str, int] = field(compare=False)
    predicted_cpu: CpuPrediction = field(compare=False)
    qos: QoS = field(compare=False)
    tolerations: tuple[Toleration, ...] = field(compare=False)
    node_selector: NodeSelector = field(compare=False)
    preferred_nodes: tuple[tuple[int, NodeSelectorTerm], ...] = field(compare=False)
    host_ports: tuple[HostPort, ...] = field(compare=False)
    anti_affinity: tuple[AntiAffinityTerm, ...] = field(compare=False)
    unsupported: tuple[str, ...] = field(compare=False)

    def tolerates(self, taint: Taint) -> bool:
        """Whether one of its tolerations covers the taint."""
        return any(t.tolerates(taint) for t in self.tolerations)


@dataclass(frozen=True, slots=True)
class PodView:
    """A Pod as scheduling sees it.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID: the identity that everything is accounted under, as names are used again.
        labels: its labels.
        shape: what it shares with its siblings.
        requests: what it counts for on its node: the shape's requests, except while it is being resized.
        node_name: the node it is bound to; empty while it is bound to none.
        scheduler_name: who is to place it.
        priority: the higher, the sooner.
        created: creation time, seconds since the epoch.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        deleting: whether its deletion has begun.
        owner_kind: kind of its controlling owner; empty without one.
        mirror: whether it is the API's image of a static pod.
        gates: names of its scheduling gates; with one it is not to be considered.
        started: when its node's kubelet took it over, seconds since the epoch; None before.
    """

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    shape: PodShape
    requests: Mapping[str, int]
    node_name: str
    scheduler_name: str
    priority: int
    created: float
    phase: str
    deleting: bool
    owner_kind: str
    mirror: bool
    gates: tuple[str, ...]
    started: float | None = None

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def terminal(self) -> bool:
        """Whether it has ended for good, so that it takes nothing of its node any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def waiting(self) -> bool:
        """Whether it is to be placed: not bound, not over or about to be, and without scheduling gates."""
        return not (self.node_name or self.gates or self.deleting or self.terminal)

    @property
    def counted(self) -> bool:
        """Whether it counts as a unit of measured capacity: static pods and those of DaemonSets belong to the node."""
        return not self.mirror and self.owner_kind != "DaemonSet"

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it, whole or as ``trim_pod`` leaves it."""
        metadata = obj["metadata"]
        spec = obj["spec"]
        status = obj.get("status") or {}
        shape = _shape(marshal.dumps(_parts(spec), 2))
        resized = _resized_requests(spec, status)
        owner = next((o["kind"] for o in metadata.get("ownerReferences") or () if o.get("controller")), "")
        created = metadata.get("creationTimestamp")
        started = status.get("startTime")
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            labels=metadata.get("labels") or {},
            shape=shape,
            requests=shape.requests if resized is None else resized,
            node_name=spec.get("nodeName") or "",
            scheduler_name=spec.get("schedulerName") or "default-scheduler",
            priority=spec.get("priority") or 0,
            created=parse_timestamp(created) if created else 0.0,
            phase=status.get("phase") or "Pending",
            deleting="deletionTimestamp" in metadata,
            owner_kind=owner,
            mirror=MIRROR in (metadata.get("annotations") or ()),
            gates=tuple(g["name"] for g in spec.get("schedulingGates") or ()),
            started=parse_timestamp(started) if started else None,
        )


def trim_pod(obj: Raw) -> dict[str, Any]:
    """The part of a raw Pod that ``PodView`` reads, so that a reflector does not keep environments and volumes."""
    metadata = obj["metadata"]
    spec = obj["spec"]
    status = obj.get("status") or {}
    kept_metadata = {k: metadata[k] for k in _METADATA if k in metadata}
    if MIRROR in (metadata.get("annotations") or ()):
        kept_metadata["annotations"] = {MIRROR: ""}
    kept = {k: spec[k] for k in _SPEC if k in spec}
    for containers in ("containers", "initContainers"):
        if containers in spec:
            kept[containers] = [{k: c[k] for k in _CONTAINER if k in c} for c in spec[containers]]
    claims = [{k: v[k] for k in ("name", *_CLAIMS) if k in v} for v in spec.get("volumes") or () if _is_claim(v)]
    if claims:
        kept["volumes"] = claims
    kept_status: dict[str, Any] = {k: status[k] for k in _STATUS if k in status}
    for statuses in ("containerStatuses", "initContainerStatuses"):
        resized = [
            {k: s[k] for k in _CONTAINER_STATUS if k in s} for s in status.get(statuses) or () if "resources" in s
        ]
        if resized:
            kept_status[statuses] = resized
    pending = [c for c in status.get("conditions") or () if c.get("type") == "PodResizePending"]
    if pending:
        kept_status["conditions"] = pending
    return {"metadata": kept_metadata, "spec": kept, "status": kept_status}


_METADATA = (
    "namespace", "name", "uid", "resourceVersion", "labels", "ownerReferences", "creationTimestamp",
    "deletionTimestamp",
)  # fmt: skip
_SPEC = (
    "nodeName", "schedulerName", "priority", "overhead", "resources", "tolerations", "nodeSelector", "affinity",
    "topologySpreadConstraints", "resourceClaims", "schedulingGates", "workloadRef",
)  # fmt: skip
_STATUS = ("phase", "startTime", "resources", "allocatedResources")
_CONTAINER = ("name", "resources", "ports", "restartPolicy")
_CONTAINER_STATUS = ("name", "resources", "allocatedResources")
_CLAIMS = ("persistentVolumeClaim", "ephemeral")


def _is_claim(volume: Raw) -> bool:
    return any(kind in volume for kind in _CLAIMS)


def _parts(spec: Raw) -> tuple[Any, ...]:
    """The raw fields that a shape is computed from, in the order in which ``_shape`` takes them apart."""
    return (
        [(c.get("resources"), c.get("ports")) for c in spec.get("containers") or ()],
        [(c.get("resources"), c.get("ports"), c.get("restartPolicy")) for c in spec.get("initContainers") or ()],
        spec.get("overhead"),
        spec.get("resources"),
        spec.get("tolerations"),
        spec.get("nodeSelector"),
        spec.get("affinity"),
        spec.get("topologySpreadConstraints"),
        any(_is_claim(v) for v in spec.get("volumes") or ()),
        bool(spec.get("resourceClaims")),
        "workloadRef" in spec,
    )


@lru_cache(maxsize=8192)
def _shape(key: bytes) -> PodShape:
    """The shape that these parts, marshalled, make."""
    containers, inits, overhead, pod, tolerations, selector, affinity, spread, claims, devices, gang = marshal.loads(
        key
    )
    affinity = affinity or {}
    nodes = affinity.get("nodeAffinity") or {}
    anti = (affinity.get("podAntiAffinity") or {}).get(_REQUIRED) or ()
    pod = pod or {}
    mains = [resources or {} for resources, _ in containers]
    begins = [(resources or {}, restart == "Always") for resources, _, restart in inits]
    requests = _total([m.get("requests") for m in mains], [(i.get("requests"), s) for i, s in begins])
    on_pod = _pod_level(pod.get("requests"))
    requests |= on_pod
    _add(requests, overhead)
    nonzero = _nonzero(mains, begins, on_pod, requests)
    _add(nonzero, overhead)
    limits = _total([m.get("limits") for m in mains], [(i.get("limits"), s) for i, s in begins])
    limits |= _pod_level(pod.get("limits"))
    _add(limits, {r: v for r, v in (overhead or {}).items() if limits.get(r)})
    filled = _counted(nonzero)
    qos = _qos(mains, [i for i, _ in begins], pod)
    unsupported = (
        ("required pod affinity", bool((affinity.get("podAffinity") or {}).get(_REQUIRED))),
        ("required pod anti-affinity", bool(anti)),
        ("topology spread (DoNotSchedule)", any(c.get("whenUnsatisfiable") == "DoNotSchedule" for c in spread or ())),
        ("volume claims", claims),
        ("resource claims", devices),
        ("workload reference", gang),
    )
    return PodShape(
        key=key,
        requests=_counted(requests),
        nonzero_cpu_millicores=filled.get("cpu", 0),
        nonzero_memory_bytes=filled.get("memory", 0),
        limits=_counted(limits),
        predicted_cpu=_predicted_cpu([*mains, *(i for i, stays in begins if stays)], pod, overhead or {}, qos),
        qos=qos,
        tolerations=tuple(
            Toleration(t.get("key", ""), t.get("operator", ""), t.get("value", ""), t.get("effect", ""))
            for t in tolerations or ()
        ),
        node_selector=NodeSelector.from_raw(selector, nodes.get(_REQUIRED)),
        preferred_nodes=tuple(
            (t["weight"], NodeSelectorTerm.from_raw(t["preference"])) for t in nodes.get(_PREFERRED) or ()
        ),
        host_ports=_host_ports([p for _, p in containers] + [p for _, p, restart in inits if restart == "Always"]),
        anti_affinity=tuple(_anti_affinity(t) for t in anti),
        unsupported=tuple(name for name, present in unsupported if present),
    )


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Amounts = dict[str, Decimal]


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


def _nonzero(
    mains: Sequence[Raw], inits: Sequence[tuple[Raw, bool]], on_pod: Amounts, requests: Mapping[str, Decimal]
) -> Amounts:
    """Requests with a default for every container that has none (kube-scheduler's ``NonMissingContainerRequests``)."""
    defaults = {"cpu": NONZERO_CPU, "memory": NONZERO_MEMORY}
    if on_pod:
        defaults = {r: v for r, v in defaults.items() if r not in requests}

    def filled(resources: Raw) -> Raw:
        return {**defaults, **(resources.get("requests") or {})}

    return _total([filled(m) for m in mains], [(filled(i), s) for i, s in inits]) | on_pod


def _counted(amounts: Mapping[str, Decimal]) -> dict[str, int]:
    """Millicores for cpu, whole units for all else, rounded up."""
    return {r: counted(r, v) for r, v in amounts.items() if v > 0}


def _qos(mains: Sequence[Raw], inits: Sequence[Raw], pod: Raw) -> QoS:
    """The QoS class: from pod-level resources where they are set, from all containers where they are not."""
    requests: Amounts = {}
    limits: Amounts = {}
    guaranteed = True
    for resources in [pod] if pod else [*mains, *inits]:
        _add(requests, _compute(resources.get("requests")))
        mine = _compute(resources.get("limits"))
        _add(limits, mine)
        guaranteed = guaranteed and len(mine) == 2
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"


def _predicted_cpu(containers: Sequence[Raw], pod: Raw, overhead: Raw, qos: QoS) -> CpuPrediction:
    """From the limit, else the request, of each container, or of the pod as a whole where that has one."""
    limits, requests, unsaid = Decimal(0), Decimal(0), 0
    whole = any("cpu" in (pod.get(kind) or {}) for kind in ("limits", "requests"))
    for resources in [pod] if whole else containers:
        if (limit := (resources.get("limits") or {}).get("cpu")) is not None:
            limits += parse_quantity(limit)
        elif (request := (resources.get("requests") or {}).get("cpu")) is not None:
            requests += parse_quantity(request)
        else:
            unsaid += 1
    best_effort = qos == "BestEffort"
    known = limits + parse_quantity(overhead.get("cpu", "0"))
    return CpuPrediction(_millicores(known), _millicores(requests), 0 if best_effort else unsaid, int(best_effort))


def _millicores(cores: Decimal) -> int:
    return counted("cpu", cores)


def _compute(resources: Raw | None) -> Raw:
    return {r: v for r, v in (resources or {}).items() if r in ("cpu", "memory") and parse_quantity(v) > 0}


def _host_ports(ports: Iterable[Sequence[Raw] | None]) -> tuple[HostPort, ...]:
    return tuple(
        HostPort(p.get("hostIP") or _WILDCARD, p.get("protocol") or "TCP", p["hostPort"])
        for group in ports
        for p in group or ()
        if p.get("hostPort")
    )


def _anti_affinity(term: Raw) -> AntiAffinityTerm:
    return AntiAffinityTerm(
        topology_key=term["topologyKey"],
        selector=LabelSelector.from_raw(term.get("labelSelector")),
        namespaces=tuple(term.get("namespaces") or ()),
        any_namespace=term.get("namespaceSelector") is not None,
    )


def _resized_requests(spec: Raw, status: Raw) -> dict[str, int] | None:
    """Requests of a pod whose containers have, or are about to have, other resources than its spec says (KEP-1287).

    For each container the largest of wanted, allocated and actual counts, or of the latter two if the node has called
    the resize infeasible. None where all agree, which is nearly always.
    """
    reported = {
        s["name"]: s
        for group in ("containerStatuses", "initContainerStatuses")
        for s in status.get(group) or ()
        if "resources" in s
    }
    mains = spec.get("containers") or ()
    inits = spec.get("initContainers") or ()
    if all(_agrees(c, reported.get(c.get("name", ""))) for c in (*mains, *inits)):
        return None
    infeasible = any(
        c.get("type") == "PodResizePending" and c.get("reason") == "Infeasible" for c in status.get("conditions") or ()
    )

    def effective(container: Raw) -> Raw:
        wanted, said = _requests_of(container), reported.get(container.get("name", ""))
        if said is None:
            return wanted
        highest: Amounts = {}
        for amounts in (() if infeasible else (wanted,)) + (_requests_of(said), said.get("allocatedResources") or {}):
            _raise(highest, {r: parse_quantity(v) for r, v in amounts.items()})
        return highest

    total = _total(
        [effective(c) for c in mains],
        [(effective(c), True) if c.get("restartPolicy") == "Always" else (_requests_of(c), False) for c in inits],
    )
    total |= _pod_level((spec.get("resources") or {}).get("requests"))
    _add(total, spec.get("overhead"))
    return _counted(total)


def _requests_of(container: Raw) -> Raw:
    """Requests of a container, or of a container's status."""
    return (container.get("resources") or {}).get("requests") or {}


def _agrees(container: Raw, said: Raw | None) -> bool:
    """Whether a container's status has the requests of its spec."""
    if said is None:
        return True
    wanted = _requests_of(container)
    return wanted == _requests_of(said) and wanted == (said.get("allocatedResources") or wanted)
