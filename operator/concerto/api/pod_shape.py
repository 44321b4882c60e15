"""What the pods of one template share: ``PodShape``, decoded once and cached.

A Job's pods differ in name, UID and node, and are otherwise alike. Scheduling computes once for each shape what does
not depend on the single pod.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from concerto.api.node import Taint
from concerto.api.pod_constraints import (
    PREFERRED,
    REQUIRED,
    AntiAffinityTerm,
    HostPort,
    Tolerations,
    claims_of,
    parse_anti_affinity,
    parse_host_ports,
)
from concerto.api.pod_requests import CpuPrediction, PodResources, QoS
from concerto.api.selectors import NodeSelector, NodeSelectorTerm

Raw = Mapping[str, Any]


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
        tolerations: taints it tolerates.
        node_selector: where it may run.
        preferred_nodes: (weight, term) of its preferred node affinity.
        host_ports: ports of the node that it needs.
        anti_affinity: pods that it refuses on its node or in its domain once it runs.
        unsupported: the names of its hard constraints that Concerto does not evaluate.
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
    anti_affinity: tuple[AntiAffinityTerm, ...] = field(compare=False)
    unsupported: tuple[str, ...] = field(compare=False)

    def tolerates(self, taint: Taint) -> bool:
        """Whether one of its tolerations covers the taint."""
        return self.tolerations.tolerate(taint)


def shape_of(spec: Raw) -> PodShape:
    """The shape of a pod with this ``spec``: the same object for equal specs, as long as it is in the cache."""
    return _decode(marshal.dumps(_parts(spec), 2))


def _parts(spec: Raw) -> tuple[Any, ...]:
    """The raw fields that a shape is computed from, in the order in which ``_decode`` takes them apart."""
    return (
        [(c.get("resources"), c.get("ports")) for c in spec.get("containers") or ()],
        [(c.get("resources"), c.get("ports"), c.get("restartPolicy")) for c in spec.get("initContainers") or ()],
        spec.get("overhead"),
        spec.get("resources"),
        spec.get("tolerations"),
        spec.get("nodeSelector"),
        spec.get("affinity"),
        spec.get("topologySpreadConstraints"),
        any(claims_of(v) for v in spec.get("volumes") or ()),
        bool(spec.get("resourceClaims")),
        "workloadRef" in spec,
    )


@lru_cache(maxsize=8192)
def _decode(key: bytes) -> PodShape:
    """The shape of these marshalled parts."""
    containers, inits, overhead, pod, tolerations, selector, affinity, spread, claims, devices, gang = marshal.loads(
        key
    )
    resources = PodResources(
        [own or {} for own, _ in containers],
        [(own or {}, restart == "Always") for own, _, restart in inits],
        overhead or {},
        pod or {},
    )
    nonzero = resources.nonzero_requests()
    nodes = (affinity or {}).get("nodeAffinity") or {}
    running = [*(ports for _, ports in containers), *(ports for _, ports, restart in inits if restart == "Always")]
    anti = ((affinity or {}).get("podAntiAffinity") or {}).get(REQUIRED) or ()
    unsupported = (
        ("required pod affinity", bool(((affinity or {}).get("podAffinity") or {}).get(REQUIRED))),
        ("required pod anti-affinity", bool(anti)),
        ("topology spread (DoNotSchedule)", any(c.get("whenUnsatisfiable") == "DoNotSchedule" for c in spread or ())),
        ("volume claims", claims),
        ("resource claims", devices),
        ("workload reference", gang),
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
        host_ports=parse_host_ports(running),
        anti_affinity=tuple(parse_anti_affinity(t) for t in anti),
        unsupported=tuple(name for name, present in unsupported if present),
    )
