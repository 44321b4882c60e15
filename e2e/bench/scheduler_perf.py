"""The workloads of kube-scheduler's own benchmark, scheduler_perf: pods bound per second by both schedulers.

A workload has pods that are bound already, and pods that are to be bound. Their numbers grow with the nodes. As in
scheduler_perf, the scheduler's own start does not count: it has bound some pods when it is stopped (SIGSTOP). Then the
pods are created, and the clock runs from SIGCONT to the last pod bound. scheduler_perf creates pods that no node can
take all the while; here they are created with the others.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from concerto.kube import ClusterConfig, Session
from concerto.kube.resources import SERVICES
from e2e.bench import perf_results
from e2e.bench.pods import create_all, make_namespace, remove
from e2e.bench.throughput import Candidate, Say, bind_all, candidates
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.processes import Process, cpu_seconds, operator_process
from e2e.testbed.system import hollow_nodes

GOAL = 1.5
_HOSTNAME, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_ZONES = 3
# Watches and garbage of the creation settle
_SETTLE_SECONDS = 3.0
_FIRST_PODS = 10
# A process that is stopped renews no Lease
_LONG_LEASE = ("--leader-elect-lease-duration=10m", "--leader-elect-renew-deadline=9m")
_PRIORITY_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "bench-high"},
    "value": 10,
}


@dataclass(frozen=True)
class Kind:
    """Pods of one kind.

    Attributes:
        label: value of their label ``color``; empty: they have no labels.
        spec: fields of their specs beside containers.
        cpu: what their container requests.
    """

    label: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    cpu: str = "100m"


@dataclass(frozen=True)
class Workload:
    """What is there, and what is to be bound.

    Attributes:
        waiting: the kind of the pods that are to be bound.
        pods: how many of them for each node.
        bound: kinds of pods that are bound already, with how many of each for each node.
        hopeless: how many pods wait that no node can take, and that are looked at first.
        service: a Service selects the pods that are to be bound.
    """

    waiting: Kind
    pods: float = 1.0
    bound: Sequence[tuple[Kind, float]] = ()
    hopeless: int = 0
    service: bool = False


def _affinity(name: str, label: str, key: str, *, preferred: bool = False) -> Kind:
    """Pods with one term that selects their own kind in its namespaces, which `bodies` fills in."""
    term: dict[str, Any] = {"labelSelector": {"matchLabels": {"color": label}}, "topologyKey": key}
    if preferred:
        terms = {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term, "weight": 1}]}
    else:
        terms = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return Kind(label, {"affinity": {name: terms}})


def _spread(when: str) -> Kind:
    constraint = {
        "maxSkew": 5,
        "topologyKey": _ZONE,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"color": "blue"}},
    }
    return Kind("blue", {"topologySpreadConstraints": [constraint]})


_PLAIN = Kind()
_ANTI_AFFINITY = _affinity("podAntiAffinity", "green", _HOSTNAME)
_AFFINITY = _affinity("podAffinity", "blue", _ZONE)
_PREFERRED = _affinity("podAffinity", "red", _HOSTNAME, preferred=True)
_PREFERRED_ANTI = _affinity("podAntiAffinity", "yellow", _HOSTNAME, preferred=True)
_IN_ZONES = {"matchExpressions": [{"key": _ZONE, "operator": "In", "values": ["zone-0", "zone-1"]}]}
_NODE_AFFINITY = Kind(
    spec={
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_IN_ZONES]}}
        }
    }
)
_HIGH = Kind(spec={"priorityClassName": "bench-high"}, cpu="3")
_HOPELESS = Kind(spec={"priorityClassName": "bench-high"}, cpu="9")

WORKLOADS: dict[str, Workload] = {
    "SchedulingBasic": Workload(_PLAIN, 3, [(_PLAIN, 0.2)]),
    "SchedulingPodAntiAffinity": Workload(_ANTI_AFFINITY, 0.7, [(_ANTI_AFFINITY, 0.2)]),
    "SchedulingPodMatchingAntiAffinity": Workload(Kind("green"), 0.7, [(_ANTI_AFFINITY, 0.2)]),
    "SchedulingPodAffinity": Workload(_AFFINITY, 1, [(_AFFINITY, 1)]),
    "SchedulingPreferredPodAffinity": Workload(_PREFERRED, 1, [(_PREFERRED, 1)]),
    "SchedulingPreferredPodAntiAffinity": Workload(_PREFERRED_ANTI, 1, [(_PREFERRED_ANTI, 1)]),
    "SchedulingNodeAffinity": Workload(_NODE_AFFINITY, 2, [(_NODE_AFFINITY, 1)]),
    "MixedSchedulingBasePod": Workload(
        _PLAIN, 1, [(each, 0.4) for each in (_PLAIN, _AFFINITY, _ANTI_AFFINITY, _PREFERRED, _PREFERRED_ANTI)]
    ),
    "TopologySpreading": Workload(_spread("DoNotSchedule"), 1, [(_PLAIN, 1)]),
    "PreferredTopologySpreading": Workload(_spread("ScheduleAnyway"), 1, [(_PLAIN, 1)]),
    "DefaultTopologySpreading": Workload(Kind("blue"), 1, [(_PLAIN, 1)], service=True),
    "PreemptionBasic": Workload(_HIGH, 0.5, [(Kind(cpu="900m"), 4)]),
    "Unschedulable": Workload(_PLAIN, 1, [(_PLAIN, 0.02)], hopeless=100),
}


def bodies(
    kind: Kind, names: Sequence[str], scheduler: str, namespace: str, other_namespace: str
) -> Iterator[dict[str, Any]]:
    """Pods of a kind.

    Args:
        kind: what they are like.
        names: theirs.
        scheduler: what they name in ``schedulerName``.
        namespace: theirs.
        other_namespace: where their terms of affinity select pods, too.
    """
    resources = {"cpu": kind.cpu, "memory": "50Mi"}
    spec = {
        "schedulerName": scheduler,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none.invalid/none", "resources": {"requests": resources}}],
        **_in_namespaces(kind.spec, (namespace, other_namespace)),
    }
    labels = {"color": kind.label} if kind.label else {}
    for name in names:
        metadata = {"namespace": namespace, "name": name, "labels": labels}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _in_namespaces(spec: Mapping[str, Any], namespaces: Sequence[str]) -> dict[str, Any]:
    """The same fields, every term of affinity with these namespaces."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {key: filled(each) for key, each in value.items()}
        is_term = "topologyKey" in value and "maxSkew" not in value
        return {**found, "namespaces": sorted(namespaces)} if is_term else found

    return {key: filled(value) for key, value in spec.items()}


@dataclass(frozen=True)
class Result:
    """One scheduler on one workload.

    Attributes:
        pods: how many were bound.
        seconds: until the last of them was.
        pods_per_second: over that time.
        cpu_ms_per_pod: CPU time of the scheduler's process in that time.
    """

    pods: int
    seconds: float
    pods_per_second: float
    cpu_ms_per_pod: float

    def __str__(self) -> str:
        return f"{self.pods_per_second:6.0f} pods/s ({self.seconds:.2f} s), {self.cpu_ms_per_pod:.2f} ms CPU/pod"


class Run:
    """One scheduler on one workload.

    Args:
        name: of the workload.
        candidate: the scheduler.
        nodes: names of the nodes.
    """

    def __init__(self, name: str, candidate: Candidate, nodes: Sequence[str]) -> None:
        self._workload = WORKLOADS[name]
        self._candidate = candidate
        self._nodes = nodes
        begun = f"{name.lower()}-{candidate.name}"
        self._there, self._waiting, self._beside = f"{begun}-there", f"{begun}-waiting", f"{begun}-beside"

    async def measure(self, control_plane: LocalControlPlane) -> Result:
        """Create the pods, have them bound, and remove them.

        Raises:
            TimeoutError: pods are left unbound.
        """
        candidate, pods = self._candidate, round(self._workload.pods * len(self._nodes))
        async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
            await self._prepare(session)
            pid = candidate.start()
            try:
                await bind_all(session, self._beside, pid, candidate.name)
                os.kill(pid, signal.SIGSTOP)
                try:
                    await self._create_waiting(session, pods)
                    await asyncio.sleep(_SETTLE_SECONDS)
                finally:
                    began, cpu = time.monotonic(), cpu_seconds(pid)
                    os.kill(pid, signal.SIGCONT)
                await bind_all(session, self._waiting, pid, candidate.name)
                seconds, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
            finally:
                candidate.stop()
                for namespace in (self._waiting, self._beside, self._there):
                    await remove(session, namespace)
        return Result(pods, seconds, pods / seconds, 1000 * cpu / pods)

    async def _prepare(self, session: Session) -> None:
        """Namespaces, pods that are bound, and pods that show that the scheduler runs once they are bound."""
        workload, scheduler = self._workload, self._candidate.scheduler_name
        for namespace in (self._there, self._waiting, self._beside):
            await make_namespace(session, namespace)
        if workload.service:
            spec = {"selector": {"color": workload.waiting.label}, "ports": [{"port": 80}]}
            metadata = {"namespace": self._waiting, "name": "all"}
            body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
            await session.create(SERVICES.path(self._waiting), body)
        for number, (kind, share) in enumerate(workload.bound):
            count = round(share * len(self._nodes))
            pods = bodies(kind, [f"b{number}-{i:05d}" for i in range(count)], scheduler, self._there, self._waiting)
            await create_all(session, _bound(pods, self._nodes))
        first = bodies(_PLAIN, [f"first-{i}" for i in range(_FIRST_PODS)], scheduler, self._beside, self._there)
        await create_all(session, first)

    async def _create_waiting(self, session: Session, pods: int) -> None:
        scheduler = self._candidate.scheduler_name
        names = [f"hopeless-{i:05d}" for i in range(self._workload.hopeless)]
        await create_all(session, bodies(_HOPELESS, names, scheduler, self._beside, self._there))
        names = [f"w-{i:05d}" for i in range(pods)]
        await create_all(session, bodies(self._workload.waiting, names, scheduler, self._waiting, self._there))


def _bound(pods: Iterator[dict[str, Any]], nodes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The same pods, dealt out to the nodes one after the other."""
    for index, pod in enumerate(pods):
        yield {**pod, "spec": {**pod["spec"], "nodeName": nodes[index % len(nodes)]}}


def compare(control_plane: LocalControlPlane, nodes: int, names: Sequence[str], say: Say) -> dict[str, Any]:
    """Both schedulers on each workload, one after the other, on the same nodes; each row is stored once it is there.

    Args:
        control_plane: where.
        nodes: how many, dealt out to three zones.
        names: of `WORKLOADS`; all of them if empty.
        say: called with what is done.

    Returns:
        What is stored for so many nodes: also rows of earlier runs.
    """
    chosen = names or list(WORKLOADS)
    say(f"scheduler_perf: {len(chosen)} workloads on {nodes} nodes (API objects), each by both schedulers (1 min each)")
    control_plane.apply(_PRIORITY_CLASS)
    figures = perf_results.load()
    rows = figures.setdefault(str(nodes), {})
    with hollow_nodes(control_plane, nodes, "--api-only", "--zones", str(_ZONES)):
        there = [node["metadata"]["name"] for node in control_plane.get("nodes")["items"]]
        operator = operator_process(control_plane, control_plane.logs, f"operator-perf-{nodes}", _LONG_LEASE)
        for number, name in enumerate(chosen, 1):
            say(f"  {number}/{len(chosen)} {name}")
            try:
                rows[name] = _row(control_plane, operator, there, name, say)
            except TimeoutError as error:
                rows[name] = {"error": str(error)}
                say(f"  => {name}: {error}")
            perf_results.keep(figures)
    for line in perf_results.table({str(nodes): rows}):
        say(line)
    return rows


def _row(
    control_plane: LocalControlPlane, operator: Process, nodes: Sequence[str], name: str, say: Say
) -> dict[str, Any]:
    results = []
    for each in candidates(control_plane, operator):
        results.append(asyncio.run(Run(name, each, nodes).measure(control_plane)))
        say(f"    {each.name:<15} {results[-1]}")
    kube, ours = results
    ratio = ours.pods_per_second / kube.pods_per_second
    say(f"  => {name}: {ratio:.2f} x kube-scheduler's pods/s (goal: >= {GOAL:.2f})")
    return {"kube": asdict(kube), "concerto": asdict(ours), "ratio": ratio}
