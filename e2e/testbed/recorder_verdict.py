"""What the independent recorder makes of the versions that it has seen: pure, and none of Concerto's code.

For each assignment it recomputes whether the node could take it, from the NodeCapacity version that the assignment
names: by units, or by what pods of that kind cost where the assignment says so (`recorder_by_kind`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from e2e.testbed.recorder_by_kind import Costs, Node, RecordedCost, judge, kind_of
from e2e.testbed.recorder_leaders import Event, late_pod_writes

IN_FLIGHT = "concerto.dev/in-flight"
TOLERANCE = 1e-6


def revision_of(obj: dict[str, Any]) -> int:
    """An object's resourceVersion as a number: one etcd, so those of different kinds can be compared."""
    return int(obj["metadata"]["resourceVersion"])


def _ended(pod: dict[str, Any]) -> bool:
    """Whether it computes nothing any more: kubelet reports the end of containers a second before the pod's."""
    status, spec = pod.get("status", {}), pod.get("spec", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return True
    groups = ("containerStatuses", "initContainerStatuses")
    ends = {c["name"]: c.get("state", {}).get("terminated") for group in groups for c in status.get(group) or ()}
    sidecars = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    if not ends or not all(ends.get(c["name"]) for c in (*spec.get("containers", ()), *sidecars)):
        return False
    policy = spec.get("restartPolicy", "Always")
    if "deletionTimestamp" in pod["metadata"]:
        return True
    return not any(_starts_again(c, policy, ends[c["name"]]) for c in spec.get("containers", ()))


def _starts_again(container: dict[str, Any], policy: str, end: dict[str, Any]) -> bool:
    policy = container.get("restartPolicy", policy)
    if container.get("restartPolicyRules") or policy not in ("Never", "OnFailure"):
        return True
    return policy == "OnFailure" and end.get("exitCode") != 0


def _counts(pod: dict[str, Any]) -> bool:
    """Static and DaemonSet pods are part of the node's baseline, not units."""
    meta = pod["metadata"]
    owners = {o["kind"] for o in meta.get("ownerReferences", ())}
    return "kubernetes.io/config.mirror" not in meta.get("annotations", {}) and not owners & {"DaemonSet", "Node"}


@dataclass
class Assignment:
    """One recorded decision, with the revisions at which its batch appeared and went."""

    uid: str
    name: str
    node: str
    capacity_version: str
    basis: str
    available: float
    batch: str
    index: int
    created: int
    cost: RecordedCost | None = None
    deleted: int | None = None


@dataclass
class PodHistory:
    """What happened to one pod (by UID), as revisions.

    Attributes:
        bound: the first at which it was seen with a node.
        bound_at: the same where a watch showed the binding itself; None where a list showed what came of it later.
        unbindable: from which on the API server refused to bind it, since its namespace was being deleted.
    """

    name: str
    counts: bool
    kind: str = ""
    node: str | None = None
    bound: int | None = None
    bound_at: int | None = None
    unbindable: int | None = None
    ended: int | None = None
    nodes_seen: set[str] = field(default_factory=set)


@dataclass
class Verdict:
    """What the recorder found.

    Attributes:
        assignments: how many there were.
        by_capacity: of these, decided by measured capacity.
        by_kind: of these, with a cost of the pod's kind.
        pods_bound: by any scheduler.
        violations: assignments that the node had no capacity for.
        rebound: pods that were seen on two nodes.
        late: what a leader wrote after the first placement record of its successor.
        max_in_flight: by node.
    """

    assignments: int
    by_capacity: int
    by_kind: int
    pods_bound: int
    violations: list[str]
    rebound: list[str]
    late: list[str]
    max_in_flight: dict[str, int]


def verdict_of(events: Iterable[Event], has_gaps: bool) -> Verdict:
    """Recompute every assignment; see the module's docstring.

    Args:
        events: of pods, nodes, namespaces, NodeCapacities and placement records, in any order.
        has_gaps: whether some may be missing.
    """
    events = sorted(events, key=lambda e: e[0])
    pods: dict[str, PodHistory] = {}
    capacities: dict[tuple[str, str], dict[str, Any]] = {}
    nodes: dict[str, dict[str, Any]] = {}
    batches: dict[str, list[Assignment]] = {}
    for revision, kind, change, obj in events:
        if kind == "pods":
            _note_pod(pods, revision, change, obj)
        elif kind == "nodes":
            nodes[obj["metadata"]["name"]] = obj
        elif kind == "namespaces":
            _note_namespace(pods.values(), revision, obj)
        elif kind == "nodecapacities":
            capacities[obj["metadata"]["name"], obj["metadata"]["resourceVersion"]] = obj.get("status") or {}
        elif IN_FLIGHT in obj["metadata"].get("labels", {}):
            uid = obj["metadata"]["uid"]
            if uid not in batches:
                batches[uid] = [_assignment(obj, i, a) for i, a in enumerate(obj["spec"]["assignments"])]
            if change == "DELETED":
                for assignment in batches[uid]:
                    assignment.deleted = revision
    assignments = [a for batch in batches.values() for a in batch]
    # In a gap a record may have come and gone
    late = late_writes({} if has_gaps else pods, assignments) + late_pod_writes([] if has_gaps else events)
    return _judge(pods, nodes, capacities, assignments, late)


def _note_pod(pods: dict[str, PodHistory], revision: int, change: str, obj: dict[str, Any]) -> None:
    meta = obj["metadata"]
    name = f"{meta['namespace']}/{meta['name']}"
    pod = pods.setdefault(meta["uid"], PodHistory(name, _counts(obj), kind_of(obj)))
    node = obj.get("spec", {}).get("nodeName")
    if node:
        pod.nodes_seen.add(node)
        pod.node = node
        if pod.bound is None:
            pod.bound, pod.bound_at = revision, None if change == "LISTED" else revision
    if (change == "DELETED" or _ended(obj)) and pod.ended is None:
        pod.ended = revision


def _judge(
    pods: dict[str, PodHistory],
    nodes: dict[str, dict[str, Any]],
    capacities: dict[tuple[str, str], dict[str, Any]],
    assignments: list[Assignment],
    late: list[str],
) -> Verdict:
    violations: list[str] = []
    in_flight_peak: dict[str, int] = defaultdict(int)
    assignments.sort(key=lambda a: (a.created, a.index))
    on_node: dict[str, list[Assignment]] = defaultdict(list)
    ours = {a.uid for a in assignments}
    costs = _costs(assignments, pods)
    pods_of: dict[str | None, list[tuple[str, PodHistory]]] = defaultdict(list)
    for uid, pod in pods.items():
        pods_of[pod.node].append((uid, pod))
    for order, a in enumerate(assignments):
        status = capacities.get((a.node, a.capacity_version))
        if a.basis == "Capacity" and status is None:
            violations.append(f"{a.name}: no NodeCapacity {a.node} at version {a.capacity_version} was ever seen")
        elif a.basis == "Capacity" and status is not None:
            observed = set(status.get("observedPodUIDs") or ())
            claimed = {u for u, p in pods_of[a.node] if _holds(p, a) and p.counts}
            claimed |= {e.uid for e in on_node[a.node] if _still_assigned(e, a, pods)}
            in_flight = claimed - observed - {a.uid}
            credited = {u for u in observed if u in pods and (pods[u].ended or a.created + 1) <= a.created}
            available = float(status.get("capacity") or 0) - len(in_flight) + len(credited)
            in_flight_peak[a.node] = max(in_flight_peak[a.node], len(in_flight))
            if a.cost is not None:
                there = [costs.surely(pods[u].kind, order) for u in claimed - {a.uid} if u in pods]
                wrong = judge(a.cost, Node.from_raw(nodes[a.node], status), there)
                if wrong is not None:
                    violations.append(f"{a.name} -> {a.node} in {a.batch}[{a.index}]: {wrong}")
                on_node[a.node].append(a)
                continue
            # A pod that another scheduler has bound since may not have been seen yet when this was decided
            available += sum(u not in ours and (pods[u].bound or 0) > int(a.capacity_version) for u in in_flight)
            if available < 1 - TOLERANCE:
                violations.append(
                    f"{a.name} -> {a.node} in {a.batch}[{a.index}]: capacity {status.get('capacity')} at version "
                    f"{a.capacity_version} - {len(in_flight)} in flight + {len(credited)} credited = {available}, "
                    f"recorded {a.available}; in flight: {_seen_of(in_flight, pods)}"
                )
            elif a.available > available + TOLERANCE:
                violations.append(f"{a.name} -> {a.node}: recorded {a.available} available, recomputed {available}")
        on_node[a.node].append(a)
    return Verdict(
        assignments=len(assignments),
        by_capacity=sum(a.basis == "Capacity" for a in assignments),
        by_kind=sum(a.cost is not None for a in assignments),
        pods_bound=sum(p.bound is not None for p in pods.values()),
        violations=violations,
        late=late,
        rebound=[p.name for p in pods.values() if len(p.nodes_seen) > 1],
        max_in_flight=dict(in_flight_peak),
    )


def _seen_of(uids: set[str], pods: dict[str, PodHistory]) -> str:
    found = ((uid, pods.get(uid)) for uid in sorted(uids))
    return "; ".join(uid if pod is None else f"{pod.name} bound {pod.bound} ended {pod.ended}" for uid, pod in found)


def _costs(assignments: list[Assignment], pods: dict[str, PodHistory]) -> Costs:
    costs = Costs()
    for order, a in enumerate(assignments):
        if a.cost is not None and a.uid in pods:
            costs.add(pods[a.uid].kind, order, a.cost)
    return costs


def late_writes(pods: dict[str, PodHistory], assignments: list[Assignment]) -> list[str]:
    """Placement records and bindings of a leader that came after the first record of its successor.

    Args:
        pods: by UID; their bindings are judged where a watch has shown them.
        assignments: of all leaders, whose records bear the instance that wrote them in their names.
    """
    first: dict[str, int] = {}
    for a in sorted(assignments, key=lambda a: a.created):
        first.setdefault(_leader(a), a.created)

    def leader_at(revision: int) -> str | None:
        """Whose first record was the last to come by then."""
        return max((i for i in first if first[i] <= revision), key=lambda i: first[i], default=None)

    late = [
        f"{a.batch} came after the first record of {now}"
        for a in assignments
        if (now := leader_at(a.created)) != _leader(a)
    ]
    of_pod: dict[str, list[Assignment]] = defaultdict(list)
    for a in assignments:
        of_pod[a.uid].append(a)
    for uid, decided in of_pod.items():
        pod = pods.get(uid)
        if pod is None or pod.bound_at is None:
            continue
        now = leader_at(pod.bound_at)
        # Whom its successor places anew has a record of the successor's by then
        if not any(_leader(a) == now and a.node == pod.node and a.created < pod.bound_at for a in decided):
            late.append(
                f"{pod.name} was bound to {pod.node} after the first record of {now}, which had not placed it there"
            )
    return late


def _leader(assignment: Assignment) -> str:
    return writer_of(assignment.batch)


def writer_of(record: str) -> str:
    """The instance that wrote a placement record, from its name: cycle-INSTANCE-NUMBER."""
    return record.split("-")[1]


def _note_namespace(pods: Iterable[PodHistory], revision: int, namespace: dict[str, Any]) -> None:
    if "deletionTimestamp" not in namespace["metadata"]:
        return
    for pod in pods:
        if pod.name.startswith(f"{namespace['metadata']['name']}/") and pod.unbindable is None:
            pod.unbindable = revision


def _holds(pod: PodHistory, at: Assignment) -> bool:
    """Whether the pod was bound to the assignment's node, and not ended, when the assignment was written."""
    return (
        pod.node == at.node
        and pod.bound is not None
        and pod.bound < at.created
        and (pod.ended is None or pod.ended > at.created)
    )


def _still_assigned(earlier: Assignment, at: Assignment, pods: dict[str, PodHistory]) -> bool:
    """Whether an earlier assignment to the same node still took its unit when `at` was written.

    What another process (an operator that was killed) had assigned and not bound is void: its successor decides those
    pods afresh. Those that it had bound are found bound. A pod that was never bound takes nothing once its namespace is
    being deleted: the binding was refused, which the scheduler learns before the pod goes.
    """
    if earlier.batch.rpartition("-")[0] != at.batch.rpartition("-")[0]:
        return False
    pod = pods.get(earlier.uid)
    if pod is not None:
        if pod.ended is not None and pod.ended < at.created:
            return False
        if pod.bound is None and pod.unbindable is not None and pod.unbindable < at.created:
            return False
    return earlier.deleted is None or earlier.deleted > at.created


def _assignment(batch: dict[str, Any], index: int, raw: dict[str, Any]) -> Assignment:
    return Assignment(
        uid=raw["uid"],
        name=f"{raw['namespace']}/{raw['name']}",
        node=raw["node"],
        capacity_version=raw.get("nodeCapacityResourceVersion", ""),
        basis=raw["basis"],
        available=float(raw["available"]),
        batch=batch["metadata"]["name"],
        index=index,
        created=revision_of(batch),
        cost=RecordedCost.from_raw(raw["cost"]) if "cost" in raw else None,
    )
