"""An independent recorder: its own watches through pykube-ng, none of Concerto's code.

It writes down every version of every pod, NodeCapacity and in-flight PodReservation, in the order of their resource
versions (one etcd, so revisions of different kinds can be compared), and afterwards recomputes for each assignment
whether the node could take it, from the NodeCapacity version that the assignment names: by units, or by what pods of
that kind cost where the assignment says so (`recorder_by_kind`).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pykube
import requests

from e2e.testbed.recorder_by_kind import Costs, Node, RecordedCost, judge, kind_of
from e2e.testbed.recorder_leaders import late_pod_writes
from e2e.testbed.recorder_lists import list_all
from e2e.testbed.waiting import PATIENCE_SECONDS

PATHS = {
    "pods": ("v1", "pods"),
    "nodes": ("v1", "nodes"),
    "nodecapacities": ("concerto.dev/v1alpha1", "nodecapacities"),
    "podreservations": ("concerto.dev/v1alpha1", "podreservations"),
}
IN_FLIGHT = "concerto.dev/in-flight"
TOLERANCE = 1e-6


def _revision(obj: dict[str, Any]) -> int:
    return int(obj["metadata"]["resourceVersion"])


def _ended(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


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
    """

    name: str
    counts: bool
    kind: str = ""
    node: str | None = None
    bound: int | None = None
    bound_at: int | None = None
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


class Recorder:
    """Watches from a background thread per kind; `stop()` before `verify()`."""

    def __init__(self, kubeconfig: str) -> None:
        self._config = pykube.KubeConfig.from_file(kubeconfig)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._events: list[tuple[int, str, str, dict[str, Any]]] = []
        self._threads: list[threading.Thread] = []
        self.gaps: list[str] = []

    def start(self) -> Recorder:
        """Begin to watch; returns once every kind has been listed."""
        ready = [threading.Event() for _ in PATHS]
        for kind, event in zip(PATHS, ready):
            thread = threading.Thread(target=self._watch, args=(kind, event), daemon=True, name=f"recorder-{kind}")
            thread.start()
            self._threads.append(thread)
        for event in ready:
            if not event.wait(PATIENCE_SECONDS):
                raise TimeoutError(f"the recorder could not list its kinds within {PATIENCE_SECONDS:.0f} s")
        return self

    def stop(self) -> None:
        """Stop watching; what is recorded stays."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=10)

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self, kind: str, ready: threading.Event) -> None:
        api = pykube.HTTPClient(self._config, timeout=60)
        version, resource = PATHS[kind]
        since: str | None = None
        while not self._stop.is_set():
            try:
                if since is None:
                    items, since = list_all(api, version, resource)
                    self._relisted(kind, items, since)
                    ready.set()
                for event in self._stream(api, version, resource, since):
                    obj = event["object"]
                    if event["type"] == "ERROR":
                        # Events between here and the relist are lost to us; the verdict must say so.
                        self.gaps.append(f"{kind}: {obj.get('message')}")
                        since = None
                        break
                    since = obj["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._note(event["type"], kind, obj)
            except (requests.RequestException, json.JSONDecodeError, pykube.exceptions.HTTPError):
                self._stop.wait(0.2)  # the API server is away: go on from the last revision seen

    def _stream(self, api: Any, version: str, resource: str, since: str) -> Iterator[dict[str, Any]]:
        params = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": since, "timeoutSeconds": 5}
        with contextlib.closing(api.get(version=version, url=resource, params=params, stream=True)) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if self._stop.is_set():
                    return
                if line:
                    yield json.loads(line)

    def _relisted(self, kind: str, items: list[dict[str, Any]], revision: str) -> None:
        """What a list shows; what it no longer shows has gone by now, at the latest."""
        present = {item["metadata"]["uid"] for item in items}
        with self._lock:
            last = {obj["metadata"]["uid"]: (change, obj) for _, k, change, obj in self._events if k == kind}
        for uid, (change, obj) in last.items():
            if uid not in present and change != "DELETED":
                gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": revision}}
                self._note("DELETED", kind, gone)
        for item in items:
            self._note("LISTED", kind, item)

    def _note(self, change: str, kind: str, obj: dict[str, Any]) -> None:
        with self._lock:
            self._events.append((_revision(obj), kind, change, obj))

    def latest(self, kind: str) -> list[dict[str, Any]]:
        """The newest version seen of each object of a kind that has not been deleted."""
        with self._lock:
            events = sorted((e for e in self._events if e[1] == kind), key=lambda e: e[0])
        found = {obj["metadata"]["uid"]: (change, obj) for _, _, change, obj in events}
        return [obj for change, obj in found.values() if change != "DELETED"]

    def writers(self) -> set[str]:
        """The instances of the operator that have written placement records so far."""
        with self._lock:
            records = [obj["metadata"] for _, kind, _, obj in self._events if kind == "podreservations"]
        return {_writer(m["name"]) for m in records if IN_FLIGHT in m.get("labels", {})}

    def verify(self) -> Verdict:
        """Recompute every assignment; see the module's docstring."""
        with self._lock:
            events = sorted(self._events, key=lambda e: e[0])
        pods: dict[str, PodHistory] = {}
        capacities: dict[tuple[str, str], dict[str, Any]] = {}
        nodes: dict[str, dict[str, Any]] = {}
        batches: dict[str, list[Assignment]] = {}
        for revision, kind, change, obj in events:
            if kind == "pods":
                self._note_pod(pods, revision, change, obj)
            elif kind == "nodes":
                nodes[obj["metadata"]["name"]] = obj
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
        late = late_writes({} if self.gaps else pods, assignments) + late_pod_writes([] if self.gaps else events)
        return self._judge(pods, nodes, capacities, assignments, late)

    @staticmethod
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

    @staticmethod
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
    return _writer(assignment.batch)


def _writer(record: str) -> str:
    """The instance that wrote a placement record, from its name: cycle-INSTANCE-NUMBER."""
    return record.split("-")[1]


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
    pods afresh. Those that it had bound are found bound.
    """
    if earlier.batch.rpartition("-")[0] != at.batch.rpartition("-")[0]:
        return False
    pod = pods.get(earlier.uid)
    if pod is not None and pod.ended is not None and pod.ended < at.created:
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
        created=_revision(batch),
        cost=RecordedCost.from_raw(raw["cost"]) if "cost" in raw else None,
    )
