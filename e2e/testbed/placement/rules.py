"""Which placements the API forbids, by the documentation of its fields, pod by pod and node by node.

Slow and plain on purpose, and without any code of Concerto: it judges Concerto's decisions.
Sources: kubernetes.io, "Assigning Pods to Nodes", "Taints and Tolerations", "Pod Topology Spread Constraints",
"Resource Management for Pods and Containers", "Sidecar Containers", "Resize CPU and Memory Resources assigned to
Containers", "Persistent Volumes", "Node-specific Volume Limits", "Node Declared Features".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from e2e.testbed.placement.amounts import allocatable, requests_of
from e2e.testbed.placement.claims import Storage
from e2e.testbed.placement.profiles import ADDED_TERMS
from e2e.testbed.placement.random_objects import ZONE
from e2e.testbed.placement.selection import labels_of, matches_terms, selects

Object = Mapping[str, Any]
Labels = Mapping[str, str]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass
class World:
    """A cluster as the API server has it.

    Attributes:
        nodes: its Nodes by name.
        pods: pods that are on nodes; those that have ended may be among them.
        namespaces: labels by namespace.
        storage: PersistentVolumes, claims, StorageClasses, CSIDrivers, CSINodes, CSIStorageCapacities and
            VolumeAttachments.
        budgets: PodDisruptionBudgets.
        nominated: pods on no node that are nominated for one.
        services: Services.
        workloads: ReplicationControllers, ReplicaSets and StatefulSets.
        images_moved: whether a node has got or lost images, or gone, since the world began.
    """

    nodes: dict[str, Object]
    pods: list[Object]
    namespaces: Mapping[str, Labels]
    storage: list[Object] = field(default_factory=list)
    budgets: list[Object] = field(default_factory=list)
    nominated: list[Object] = field(default_factory=list)
    services: list[Object] = field(default_factory=list)
    workloads: list[Object] = field(default_factory=list)
    images_moved: bool = False

    @property
    def has_empty_zone(self) -> bool:
        """Whether a node's zone has no name."""
        return any(labels_of(node).get(ZONE) == "" for node in self.nodes.values())

    def pod(self, name: str) -> Object | None:
        """The pod of that name that is on a node; None without one."""
        return next((pod for pod in self.pods if pod["metadata"]["name"] == name), None)

    def put(self, kind: str, name: str, latest: Object | None) -> None:
        """A Node or Pod has come or changed, or is gone (None)."""
        if kind == "Node":
            self.images_moved |= _images(self.nodes.get(name, {})) != _images(latest or {})
            others = {n: node for n, node in self.nodes.items() if n != name}
            self.nodes = others if latest is None else {**others, name: latest}
        else:
            others_ = [pod for pod in self.pods if pod["metadata"]["name"] != name]
            self.pods = others_ if latest is None else [*others_, latest]

    def on(self, node: str) -> list[Object]:
        """Pods on the node that have not ended."""
        return [p for p in self.pods if p["spec"].get("nodeName") == node and _runs(p)]

    def broken(self, pod: Object) -> dict[str, set[str]]:
        """By node, the rules that a placement of the pod there would break."""
        return {name: self.broken_on(pod, name) for name in self.nodes}

    def broken_on(self, pod: Object, name: str) -> set[str]:
        """The rules that a placement of the pod on one node would break: beside nominated pods, or without them."""
        found = self._broken_without_nominated(pod, name)
        nominated = [
            {**p, "spec": {**p["spec"], "nodeName": name}}
            for p in self.nominated
            if p["status"]["nominatedNodeName"] == name and priority_of(p) >= priority_of(pod)
        ]
        if nominated:
            beside = replace(self, pods=[*self.pods, *nominated])
            found |= beside._broken_without_nominated(pod, name)
        return found

    def differ_by_capacity(self, pod: Object, one: Mapping[str, float], other: Mapping[str, float]) -> bool:
        """Whether two scores VolumeBinding, by node, differ at most by the CSIStorageCapacity that counts.

        On each node they are equal, or each is the score by a CSIStorageCapacity that has room for the pod there.
        """
        storage = self._storage()
        return one.keys() == other.keys() and all(
            one[name] == score or {one[name], score} <= storage.scores_of_room(pod, self.nodes[name])
            for name, score in other.items()
        )

    def _storage(self) -> Storage:
        # A pod whose Node is gone uses nothing (kubernetes/kubernetes, ``RemoveNode`` of the scheduler's cache)
        return Storage(self.storage, [p for p in self.pods if _runs(p) and p["spec"].get("nodeName") in self.nodes])

    def _broken_without_nominated(self, pod: Object, name: str) -> set[str]:
        return self._broken_on(pod, self.nodes[name]) | self._storage().broken(pod, self.nodes[name])

    def _broken_on(self, pod: Object, node: Object) -> set[str]:
        there = self.on(node["metadata"]["name"])
        found = {rule for rule, holds in _ALONE.items() if not holds(pod, node)}
        if not _ports_are_free(pod, there):
            found.add("host ports")
        found |= _lacking(pod, node, there)
        found |= {"topology spread" for c in _hard_constraints(pod) if not self._is_even(pod, node, c)}
        if not self._has_company(pod, node):
            found.add("pod affinity")
        if any(self._meets(pod, node, term) for term in _pod_terms(pod, "podAntiAffinity")):
            found.add("pod anti-affinity")
        if self._is_shunned(pod, node):
            found.add("anti-affinity of a pod that runs")
        return found

    # --- pods that want other pods, or do not

    def _selects(self, owner: Object, term: Object, other: Object) -> bool:
        """Whether the term of the owner selects the other pod."""
        namespace = other["metadata"]["namespace"]
        named, selector = term.get("namespaces") or [], term.get("namespaceSelector")
        if not named and selector is None:
            named = [owner["metadata"]["namespace"]]
        in_scope = namespace in named or (selector is not None and selects(selector, self.namespaces[namespace]))
        return in_scope and selects(term.get("labelSelector"), labels_of(other))

    def _beside(self, node: Object, key: str) -> list[Object]:
        """Pods on nodes of the node's domain."""
        domain = labels_of(node).get(key)
        if domain is None:
            return []
        return [p for name, other in self.nodes.items() if labels_of(other).get(key) == domain for p in self.on(name)]

    def _meets(self, pod: Object, node: Object, term: Object) -> bool:
        return any(self._selects(pod, term, other) for other in self._beside(node, term["topologyKey"]))

    def _has_company(self, pod: Object, node: Object) -> bool:
        """Whether one pod that matches all terms is in the domain of each, or the pod is the first of its own group."""
        terms = _pod_terms(pod, "podAffinity")

        def wanted(other: Object) -> bool:
            return all(self._selects(pod, term, other) for term in terms)

        if any(term["topologyKey"] not in labels_of(node) for term in terms):
            return False
        keys = {term["topologyKey"] for term in terms}
        anywhere = any(
            wanted(other) for each in self.nodes.values() for key in keys for other in self._beside(each, key)
        )
        if not anywhere and wanted(pod):
            return True
        return all(any(wanted(other) for other in self._beside(node, key)) for key in keys)

    def _is_shunned(self, pod: Object, node: Object) -> bool:
        for name, other_node in self.nodes.items():
            for other in self.on(name):
                for term in _pod_terms(other, "podAntiAffinity"):
                    domain = labels_of(other_node).get(term["topologyKey"])
                    same = domain is not None and labels_of(node).get(term["topologyKey"]) == domain
                    if same and self._selects(other, term, pod):
                        return True
        return False

    # --- spread

    def _is_even(self, pod: Object, node: Object, constraint: Object) -> bool:
        key = constraint["topologyKey"]
        if key not in labels_of(node):
            return False
        selector = constraint.get("labelSelector")
        own = {k: labels_of(pod)[k] for k in constraint.get("matchLabelKeys") or () if k in labels_of(pod)}

        def counts(other: Object) -> bool:
            return selects(selector, labels_of(other)) and own.items() <= labels_of(other).items()

        domains: dict[str, int] = {}
        for name, each in self.nodes.items():
            if self._is_counted(pod, each, constraint):
                found = (
                    0
                    if _is_empty(selector, own)
                    else sum(
                        counts(p) and p["metadata"]["namespace"] == pod["metadata"]["namespace"] and not _ends(p)
                        for p in self.on(name)
                    )
                )
                domains[labels_of(each)[key]] = domains.get(labels_of(each)[key], 0) + found
        fewest = min(domains.values(), default=0) if len(domains) >= (constraint.get("minDomains") or 1) else 0
        return domains.get(labels_of(node)[key], 0) + counts(pod) - fewest <= constraint["maxSkew"]

    def _is_counted(self, pod: Object, node: Object, constraint: Object) -> bool:
        if any(c["topologyKey"] not in labels_of(node) for c in _hard_constraints(pod)):
            return False
        if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not _is_selected(pod, node):
            return False
        return constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or _tolerates_taints(pod, node)


def priority_of(pod: Object) -> int:
    """Its priority, as the API server has computed it."""
    return int(pod["spec"].get("priority") or 0)


def _is_empty(selector: Object | None, own: Labels) -> bool:
    """A constraint whose selector is empty counts no pods (kubernetes/kubernetes, ``countPodsMatchSelector``)."""
    return not own and not any((selector or {}).get(part) for part in ("matchLabels", "matchExpressions"))


def _images(node: Object) -> object:
    return node.get("status", {}).get("images") or []


def _runs(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _ends(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _tolerated(pod: Object, taint: Object) -> bool:
    for toleration in pod["spec"].get("tolerations") or ():
        if toleration.get("effect", "") not in ("", taint["effect"]):
            continue
        if toleration.get("operator", "Equal") == "Exists":
            if toleration.get("key", "") in ("", taint["key"]):
                return True
        elif toleration.get("operator") in ("Gt", "Lt"):
            number, sign = taint.get("value", ""), 1 if toleration["operator"] == "Gt" else -1
            is_number = number.isdigit() and str(int(number)) == number
            if toleration["key"] == taint["key"] and is_number and sign * (int(number) - int(toleration["value"])) > 0:
                return True
        elif (toleration.get("key", ""), toleration.get("value", "")) == (taint["key"], taint.get("value", "")):
            return True
    return False


def _tolerates_taints(pod: Object, node: Object) -> bool:
    taints = node["spec"].get("taints") or ()
    return all(t["effect"] == "PreferNoSchedule" or _tolerated(pod, t) for t in taints)


def _is_selected(pod: Object, node: Object) -> bool:
    wanted = pod["spec"].get("nodeSelector") or {}
    required = _affinity(pod, "nodeAffinity").get(_REQUIRED)
    return wanted.items() <= labels_of(node).items() and (
        required is None or matches_terms(required["nodeSelectorTerms"], node)
    )


def _is_selected_by_profile(pod: Object, node: Object) -> bool:
    terms = ADDED_TERMS.get(pod["spec"].get("schedulerName", ""))
    return terms is None or matches_terms(terms, node)


def _affinity(pod: Object, kind: str) -> Object:
    found: Object = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return found


def _pod_terms(pod: Object, kind: str) -> list[Object]:
    return list(_affinity(pod, kind).get(_REQUIRED) or ())


def _hard_constraints(pod: Object) -> list[Object]:
    constraints = pod["spec"].get("topologySpreadConstraints") or ()
    return [c for c in constraints if c["whenUnsatisfiable"] == "DoNotSchedule"]


def _has_features(pod: Object, node: Object) -> bool:
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    rules = [rule for c in containers for rule in c.get("restartPolicyRules") or ()]
    needed = any(rule["action"] == "RestartAllContainers" for rule in rules)
    return not needed or "RestartAllContainersOnContainerExits" in (node["status"].get("declaredFeatures") or ())


_ALONE = {
    "cordon": lambda pod, node: not node["spec"].get("unschedulable") or _tolerated(pod, _CORDON),
    "taints": _tolerates_taints,
    "node affinity": _is_selected,
    "added node affinity": _is_selected_by_profile,
    "declared features": _has_features,
}


def _ports(pod: Object) -> list[tuple[str, str, int]]:
    sidecars = [c for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy") == "Always"]
    return [
        (p.get("hostIP") or "0.0.0.0", p.get("protocol") or "TCP", p["hostPort"])
        for c in [*pod["spec"]["containers"], *sidecars]
        for p in c.get("ports") or ()
        if p.get("hostPort")
    ]


def _ports_are_free(pod: Object, there: Iterable[Object]) -> bool:
    taken = [port for other in there for port in _ports(other)]
    return not any(
        (protocol, number) == (theirs, other) and (ip == their_ip or "0.0.0.0" in (ip, their_ip))
        for ip, protocol, number in _ports(pod)
        for their_ip, theirs, other in taken
    )


def _lacking(pod: Object, node: Object, there: list[Object]) -> set[str]:
    has = allocatable(node)
    found = {"number of pods"} if len(there) + 1 > has.get("pods", 0) else set()
    used = [requests_of(other, by_status=True) for other in there]
    for resource, amount in requests_of(pod).items():
        if amount and sum(each.get(resource, 0) for each in used) + amount > has.get(resource, 0):
            found.add(resource)
    return found
