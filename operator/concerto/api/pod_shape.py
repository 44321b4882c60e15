"""What the pods of one template share: ``PodShape``, decoded once and cached.

A Job's pods differ in name, UID and node, and are otherwise alike. Scheduling computes once for each shape what does
not depend on the single pod.
"""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from weakref import WeakValueDictionary

from concerto.api.node import Taint
from concerto.api.pod_constraints import (
    PREFERRED,
    REQUIRED,
    HostPort,
    PodAffinityTerm,
    SpreadConstraint,
    Tolerations,
    parse_host_ports,
    parse_pod_affinity,
    parse_preferred,
)
from concerto.api.pod_requests import (
    ContainerResources,
    CpuPrediction,
    PodResources,
    QoS,
    pod_level_limits,
)
from concerto.api.pod_volumes import MAX_BYTES as MAX_VOLUME_BYTES
from concerto.api.pod_volumes import are_left_out
from concerto.api.selectors import NodeSelector, NodeSelectorTerm

Raw = Mapping[str, Any]

MAX_BYTES = 64 * 1024
"""Size of a pod's requests and constraints beyond which it is refused: anybody may write them, up to 1.5 MiB."""
MAX_CACHED_BYTES = 2**20
"""Size of the shapes that are kept although no pod has them any more; in memory they take some 13 times as much."""

CONSTRAINTS = ("tolerations", "nodeSelector", "affinity", "topologySpreadConstraints")
"""Fields of a spec that are left out of that of a pod that is refused as too large."""
LEFT_OUT = "constraintsLeftOut"
"""Set in a spec of which they are left out."""
MAX_UNPACKED_BYTES = 4 * 1024
"""Of marshalled constraints that are held as maps and lists: these take ten times as much memory as their text."""
_PACKED = "packedConstraints"
"""Field of a spec whose constraints take more: holds all of them, marshalled."""
_MAX_PLAIN_KEY_BYTES = 4 * 1024
"""Of the marshalled parts that a shape is found by; of more, the digest is its key, which other objects hold, too."""

_MAX_CONTAINERS = 100
_MANY_VOLUMES = f"claims and disks of more than {MAX_VOLUME_BYTES // 1024} KiB"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PodShape:
    """All that the pods of one template share and placement looks at.

    Two shapes are equal when their keys are: the key holds every raw field that the rest is computed from.

    Attributes:
        key: identity; a digest where it would be long.
        requests: amounts by resource (millicores for cpu, whole units for all else), as the scheduler counts them.
        nonzero_cpu_millicores: cpu request with 100m for each container that has none.
        nonzero_memory_bytes: memory request with 200Mi for each container that has none.
        limits: amounts by resource, as ``requests``.
        predicted_cpu: what its cpu use is predicted from; see ``CpuPrediction``.
        qos: the QoS class.
        tolerations: taints it tolerates.
        node_selector: where it may run.
        preferred_nodes: (weight, term) of its preferred node affinity.
        host_ports: ports of the node that it needs.
        affinity: pods that it requires in its domain.
        anti_affinity: pods that it refuses in its domain.
        soft_affinity: (weight, term) of pods that it prefers in its domain, with weights below 0 to be away from them.
        hard_spread: topology spread constraints that must hold (``DoNotSchedule``).
        soft_spread: those that need not (``ScheduleAnyway``).
        unsupported: the names of its hard constraints that Concerto does not evaluate.
        node_features: features that its node must declare.
        containers: its containers, init containers that restart among them; at most 100.
        pod_level_requests: where the pod has requests of its own, those over its containers', with overhead, in
            thousandths; None elsewhere.
        pod_level_limits: limits of the pod as a whole, in thousandths.
    """

    key: bytes
    requests: Mapping[str, int] = field(compare=False)
    nonzero_cpu_millicores: int = field(compare=False)
    nonzero_memory_bytes: int = field(compare=False)
    limits: Mapping[str, int] = field(compare=False)
    predicted_cpu: CpuPrediction = field(compare=False)
    qos: QoS = field(compare=False)
    tolerations: Tolerations = field(compare=False)
    node_selector: NodeSelector = field(compare=False)
    preferred_nodes: tuple[tuple[int, NodeSelectorTerm], ...] = field(compare=False)
    host_ports: tuple[HostPort, ...] = field(compare=False)
    affinity: tuple[PodAffinityTerm, ...] = field(compare=False)
    anti_affinity: tuple[PodAffinityTerm, ...] = field(compare=False)
    soft_affinity: tuple[tuple[int, PodAffinityTerm], ...] = field(compare=False)
    hard_spread: tuple[SpreadConstraint, ...] = field(compare=False)
    soft_spread: tuple[SpreadConstraint, ...] = field(compare=False)
    unsupported: tuple[str, ...] = field(compare=False)
    node_features: frozenset[str] = field(compare=False)
    containers: tuple[ContainerResources, ...] = field(compare=False, default=())
    pod_level_requests: Mapping[str, int] | None = field(compare=False, default=None)
    pod_level_limits: Mapping[str, int] = field(compare=False, default_factory=dict)

    @property
    def selects_pods(self) -> bool:
        """Whether it has constraints on other pods."""
        return bool(self.affinity or self.anti_affinity or self.soft_affinity or self.hard_spread or self.soft_spread)

    @property
    def spreads(self) -> bool:
        """Whether it has topology spread constraints, so that no default ones apply."""
        return bool(self.hard_spread or self.soft_spread)

    @property
    def selects_nodes(self) -> bool:
        """Whether it has a node selector or a required node affinity."""
        return bool(self.node_selector.labels) or self.node_selector.terms is not None

    @property
    def requests_extended_resource(self) -> bool:
        """Whether it requests a resource that Kubernetes does not know itself, such as ``example.com/gpu``."""
        return any("/" in resource for resource in self.requests)

    def tolerates(self, taint: Taint) -> bool:
        """Whether one of its tolerations covers the taint."""
        return self.tolerations.tolerate(taint)


class _Cache:
    """Shapes by key: those of pods that are there, and the latest of others up to a number of bytes."""

    def __init__(self) -> None:
        self._alive: WeakValueDictionary[bytes, PodShape] = WeakValueDictionary()
        self._latest: OrderedDict[bytes, tuple[PodShape, int]] = OrderedDict()
        self._bytes = 0

    def get(self, parts: bytes) -> PodShape:
        """The shape of these marshalled parts."""
        key = parts if len(parts) <= _MAX_PLAIN_KEY_BYTES else blake2b(parts, digest_size=32).digest()
        if key in self._latest:
            self._latest.move_to_end(key)
            return self._latest[key][0]
        shape = self._alive.get(key)
        if shape is None:
            shape = self._alive[key] = _decode(key, parts)
        self._latest[key] = shape, len(parts)
        self._bytes += len(parts)
        while self._bytes > MAX_CACHED_BYTES:
            _, (_, size) = self._latest.popitem(last=False)
            self._bytes -= size
        return shape


_cache = _Cache()


def shape_of(spec: Raw) -> PodShape:
    """The shape of a pod with this ``spec``: the same object for equal specs, as long as a pod has it."""
    return _cache.get(marshal.dumps(_parts(spec), 2))


def is_too_large(spec: Raw) -> bool:
    """Whether a pod with this ``spec`` is refused because its requests and constraints take more than `MAX_BYTES`."""
    return len(marshal.dumps(_parts(spec), 2)) > MAX_BYTES


def pack_constraints(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec, which is changed: if its constraints are large, they are held as text until they are looked at."""
    packed = marshal.dumps({field: spec[field] for field in CONSTRAINTS if field in spec}, 2)
    if len(packed) > MAX_UNPACKED_BYTES:
        for field in CONSTRAINTS:
            spec.pop(field, None)
        spec[_PACKED] = packed
    return spec


def constraint(spec: Raw, field: str) -> Any:
    """One of the `CONSTRAINTS` of a ``spec``, raw, whether or not they are packed."""
    return marshal.loads(spec[_PACKED]).get(field) if _PACKED in spec else spec.get(field)


def _parts(spec: Raw) -> tuple[Any, ...]:
    """The raw fields that a shape is computed from, in the order in which ``_decode`` takes them apart."""
    return (
        [(c.get("name"), c.get("resources"), c.get("ports")) for c in spec.get("containers") or ()],
        [
            (c.get("name"), c.get("resources"), c.get("ports"), c.get("restartPolicy"))
            for c in spec.get("initContainers") or ()
        ],
        spec.get("overhead"),
        spec.get("resources"),
        spec.get(_PACKED) or {field: spec[field] for field in CONSTRAINTS if field in spec},
        bool(spec.get("resourceClaims")),
        are_left_out(spec.get("volumes")),
        "workloadRef" in spec,
        "schedulingGroup" in spec and not pod_group_of(spec),
        LEFT_OUT in spec,
        _node_features(spec),
    )


def _node_features(spec: Raw) -> list[str]:
    """Features that kube-scheduler 1.37 infers from a pod's spec and requires of its node."""
    features = []
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    if any(restart_all_rule(container.get("restartPolicyRules")) for container in containers):
        features.append("RestartAllContainersOnContainerExits")
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        features.append("UserNamespacesHostNetworkSupport")
    return features


def restart_all_rule(rules: list[Raw] | None) -> list[Raw]:
    """The first of a container's rules by which all containers of its pod are started again, if there is any."""
    return [rule for rule in rules or () if rule.get("action") == "RestartAllContainers"][:1]


def pod_group_of(spec: Raw) -> str:
    """Name of the PodGroup of a pod with this ``spec``; empty if it has none, or is grouped in a way not known here."""
    return (spec.get("schedulingGroup") or {}).get("podGroupName") or ""


def _decode(key: bytes, parts: bytes) -> PodShape:
    """The shape of these marshalled parts."""
    containers, inits, overhead, pod, constraints, *others, left_out, features = marshal.loads(parts)
    resources = PodResources(
        [own or {} for _, own, _ in containers],
        [(own or {}, restart == "Always") for _, own, _, restart in inits],
        overhead or {},
        pod or {},
    )
    # Of one that is too large, what it requests is counted where it runs; nothing else of it is held or evaluated
    too_large = left_out or len(parts) > MAX_BYTES
    held = {} if too_large else marshal.loads(constraints) if isinstance(constraints, bytes) else constraints
    tolerations, selector, affinity, spread = map(held.get, CONSTRAINTS)
    nonzero = resources.nonzero_requests()
    nodes = (affinity or {}).get("nodeAffinity") or {}
    running = [*containers, *(init[:3] for init in inits if init[3] == "Always")]
    own = tuple(
        ContainerResources.from_raw(name or "", resources or {}) for name, resources, _ in running[:_MAX_CONTAINERS]
    )
    together, apart = ((affinity or {}).get(kind) or {} for kind in ("podAffinity", "podAntiAffinity"))
    spreads = [(c.get("whenUnsatisfiable"), SpreadConstraint.from_raw(c)) for c in spread or ()]
    unsupported = (
        (f"scheduling constraints of more than {MAX_BYTES // 1024} KiB", too_large),
        *zip(("resource claims", _MANY_VOLUMES, "workload reference", "scheduling group"), others),
    )
    return PodShape(
        key=key,
        requests=resources.requests(),
        nonzero_cpu_millicores=nonzero.get("cpu", 0),
        nonzero_memory_bytes=nonzero.get("memory", 0),
        limits=resources.limits(),
        predicted_cpu=resources.predicted_cpu(),
        qos=resources.qos(),
        tolerations=Tolerations.from_raw(tolerations),
        node_selector=NodeSelector.from_raw(selector, nodes.get(REQUIRED)),
        preferred_nodes=tuple(
            (t["weight"], NodeSelectorTerm.from_raw(t["preference"])) for t in nodes.get(PREFERRED) or ()
        ),
        host_ports=parse_host_ports([ports for _, _, ports in running]),
        affinity=tuple(parse_pod_affinity(t) for t in together.get(REQUIRED) or ()),
        anti_affinity=tuple(parse_pod_affinity(t) for t in apart.get(REQUIRED) or ()),
        soft_affinity=parse_preferred(together.get(PREFERRED), 1) + parse_preferred(apart.get(PREFERRED), -1),
        hard_spread=tuple(c for unsatisfiable, c in spreads if unsatisfiable == "DoNotSchedule"),
        soft_spread=tuple(c for unsatisfiable, c in spreads if unsatisfiable == "ScheduleAnyway"),
        unsupported=tuple(name for name, present in unsupported if present),
        node_features=frozenset(features),
        containers=own,
        pod_level_requests=resources.pod_level_requests(),
        pod_level_limits=pod_level_limits(pod or {}),
    )
