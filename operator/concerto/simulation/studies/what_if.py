"""What if: where a profile would place the cluster's pods, compared with where they are now.

A dump (`kubectl get nodes,pods,ncap -A -o yaml`) holds the nodes, the pods on them, and what the agents measured. It
does not hold the usage of single pods. So a node's measured usage beyond its base is divided evenly among its counted
pods. The pods then arrive one after another in an empty cluster of such nodes, and Concerto places them. The answer
compares placement and load under the same measurements. It cannot predict how a pod behaves when it gets more CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacity
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.profile import Profile
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.policies.raw_pods import SCHEDULER_NAME
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec

ARRIVALS_PER_SECOND = 2.0
SETTLE_SECONDS = 60.0
"""How long the replay continues after the last pod has arrived."""
_REST_SECONDS = 1.0
_DONE = "replay-clock"
_LEAST_MEMORY = 2**30


class DumpError(ValueError):
    """A dump that cannot be replayed; the message names what is missing."""


@dataclass(frozen=True)
class NodeAnswer:
    """One node, now and in the replay. CPU is a share of the node; NaN where no agent has measured."""

    name: str
    pods_now: int
    pods_then: int
    cpu_now: float
    cpu_then: float


@dataclass(frozen=True)
class Answer:
    """What would change.

    Attributes:
        nodes: each node.
        moved: pods that would be on another node.
        unplaced: pods that got no node in the time of the replay.
        total: pods replayed.
    """

    nodes: tuple[NodeAnswer, ...]
    moved: int
    unplaced: int
    total: int


_T = TypeVar("_T")


def _read(parse: Callable[[Mapping[str, Any]], _T], raw: Mapping[str, Any]) -> _T:
    try:
        return parse(raw)
    except Exception as error:
        metadata = raw.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        what = f"{raw.get('kind')} {name} of the dump"
        raise DumpError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class _Dump:
    """A dump as the replay uses it.

    Attributes:
        nodes: its nodes.
        capacities: NodeCapacities by node name.
        pods: running pods that count as units of capacity, the oldest first.
    """

    nodes: tuple[NodeView, ...]
    capacities: Mapping[str, NodeCapacity]
    pods: tuple[PodView, ...]

    @classmethod
    def from_raw(cls, dump: Mapping[str, Any]) -> Self:
        found = dump.get("items")
        items = [o for o in found if isinstance(o, dict)] if isinstance(found, list) else []
        nodes = tuple(_read(NodeView.from_raw, o) for o in items if o.get("kind") == "Node")
        if not nodes:
            raise DumpError("the dump holds no Node: make it with `kubectl get nodes,pods,ncap -A -o yaml`")
        names = {node.name for node in nodes}
        measured = [_read(NodeCapacity.from_raw, o) for o in items if o.get("kind") == "NodeCapacity"]
        capacities = {capacity.name: capacity for capacity in measured}
        pods = [_read(PodView.from_raw, o) for o in items if o.get("kind") == "Pod"]
        running = [p for p in pods if p.counted and p.node_name in names and not p.terminal]
        return cls(nodes, capacities, tuple(sorted(running, key=lambda p: (p.created, p.key))))

    def pods_on(self) -> Counter[str]:
        """Number of pods by node name."""
        return Counter(p.node_name for p in self.pods)


def replay(dump: Mapping[str, Any], profile: ProfileSettings, seed: int = 1) -> Answer:
    """Place the dump's pods again, in an empty cluster.

    Args:
        dump: a List of Nodes, Pods and NodeCapacities.
        profile: the profile to place them under.
        seed: seed of the replay.

    Raises:
        DumpError: the dump holds no node, no pod, or an object that cannot be read.
    """
    cluster = _Dump.from_raw(dump)
    if not cluster.pods:
        raise DumpError("the dump holds no pod that runs on one of its nodes and is no DaemonSet's: nothing to replay")
    world = World(_setup(cluster), Concerto(profile=profile), seed)
    recorder = world.run()
    usage = world.policy.agents.report.usage  # type: ignore[attr-defined]
    index = {node.name: i for i, node in enumerate(cluster.nodes)}
    placed = [recorder.bound_to.get(f"pod-{n}-0") for n in range(len(cluster.pods))]
    now, then = cluster.pods_on(), Counter(placed)
    return Answer(
        nodes=tuple(
            NodeAnswer(
                name=node.name,
                pods_now=now[node.name],
                pods_then=then[i],
                cpu_now=_usage(cluster.capacities.get(node.name)),
                cpu_then=float(usage[i, 0]),
            )
            for i, node in enumerate(cluster.nodes)
        ),
        moved=sum(1 for pod, node in zip(cluster.pods, placed) if node is not None and node != index[pod.node_name]),
        unplaced=sum(1 for node in placed if node is None),
        total=len(cluster.pods),
    )


def _setup(cluster: _Dump) -> Setup:
    """The run that replays a dump: one node for each node, and one job for each pod.

    Raises:
        DumpError: a node is too small for what nodes do for themselves.
    """
    for node in cluster.nodes:
        if not node.allocatable.get("cpu", 1) or node.allocatable.get("memory", _LEAST_MEMORY) < _LEAST_MEMORY:
            raise DumpError(f"Node {node.name} of the dump has no allocatable CPU, or less than 1Gi of memory")
    specs = {
        node.name: NodeSpec(
            count=1,
            cores=node.allocatable.get("cpu", 1000) / 1000,
            memory_bytes=float(node.allocatable.get("memory", _LEAST_MEMORY)),
            max_pods=int(node.allocatable.get("pods", 110)),
        )
        for node in cluster.nodes
    }
    pods_on = cluster.pods_on()
    jobs = []
    for number, pod in enumerate(cluster.pods):
        share = _share(cluster.capacities.get(pod.node_name), pods_on[pod.node_name])
        jobs.append(_job(number, pod, specs[pod.node_name], share))
    length = len(cluster.pods) / ARRIVALS_PER_SECOND + SETTLE_SECONDS
    # A pod that is bound directly and does nothing ends the replay
    clock = JobSpec(_DONE, 1, PodLoad(length, 1e-6, memory_bytes=1.0), jitter=0.0, node=0)
    return Setup(tuple(specs.values()), (*jobs, clock), plant=NodeModelSettings())


def _job(number: int, pod: PodView, spec: NodeSpec, share: tuple[float, float]) -> JobSpec:
    """A job of one pod that uses these shares of its node's CPU and memory for ever."""
    cpu, memory = share
    cores = max(cpu * spec.cores, 1e-3)
    threads = max(1, round(cores))
    duty = min(cores / threads, 0.98)
    return JobSpec(
        name=f"pod-{number}",
        count=1,
        load=PodLoad(
            wait_seconds=_REST_SECONDS * (1 - duty),
            core_seconds=_REST_SECONDS * duty * threads,
            threads=threads,
            bursts=0,
            memory_bytes=max(memory * spec.memory_bytes, 2**20),
        ),
        jitter=0.0,
        cpu_request_millicores=pod.requests.get("cpu", 0),
        memory_request_bytes=float(pod.requests.get("memory", 0)),
        arrivals=Arrivals("Burst", number / ARRIVALS_PER_SECOND),
    )


def _usage(capacity: NodeCapacity | None) -> float:
    status = capacity.status if capacity is not None else None
    return next((r.usage for r in status.resources if r.name == "cpu"), float("nan")) if status else float("nan")


def _share(capacity: NodeCapacity | None, pods: int) -> tuple[float, float]:
    """CPU and memory of one pod as fractions of its node: measured usage beyond the base, shared evenly."""
    status = capacity.status if capacity is not None else None
    if status is None or pods == 0:
        return 0.05, 0.05
    found = {
        r.name: max(0.0, r.usage - (r.non_pod if r.non_pod is not None else r.base)) / pods for r in status.resources
    }
    # The cpu entry of y is half the demand in threads per CPU (see capacity.cpu_demand.from_pressure)
    return min(1.0, 2.0 * found.get("cpu", 0.025)), found.get("memory", 0.05)


def read_profile(path: str | None) -> ProfileSettings:
    """The SchedulingProfile in a YAML file, or Concerto's default.

    Raises:
        DumpError: the file holds no SchedulingProfile, or one that cannot be used.
    """
    if path is None:
        return ProfileSettings(SCHEDULER_NAME)
    raw = yaml.safe_load(Path(path).read_text())
    if not isinstance(raw, dict) or raw.get("kind") != "SchedulingProfile":
        raise DumpError(f"{path}: expected a SchedulingProfile")
    try:
        settings = ProfileSettings.from_raw({**(raw.get("spec") or {}), "schedulerName": SCHEDULER_NAME})
        Profile.build(settings)
    except Exception as error:
        raise DumpError(f"{path}: the profile cannot be used: {type(error).__name__}: {error}") from error
    return settings


def read_dump(path: Path) -> Any:
    """What kubectl printed as JSON or YAML.

    Raises:
        OSError, ValueError, yaml.YAMLError: it cannot be read, or is neither.
    """
    text = path.read_text()
    # YAML takes a hundred times as long, in Python alone a thousand times
    return json.loads(text) if text.startswith("{") else yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_cluster(kubeconfig: str | None = None, context: str | None = None) -> dict[str, Any]:
    """The present cluster, as kubectl sees it.

    Args:
        kubeconfig: a file instead of kubectl's own.
        context: a context instead of the current one.

    Raises:
        DumpError: kubectl is not installed, or could not read the cluster.
    """
    command = ["kubectl", "get", "nodes,pods,nodecapacities.concerto.dev", "-A", "-o", "json"]
    command += [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    command += [f"--context={context}"] if context else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise DumpError("kubectl is not on PATH; make a dump elsewhere and pass it with --dump") from None
    except subprocess.CalledProcessError as error:
        raise DumpError(f"{' '.join(command)}: {error.stderr.strip()}") from None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(args: argparse.Namespace) -> int:
    """The command `concerto simulate --from-cluster` or `--dump FILE`."""
    try:
        dump = read_dump(Path(args.dump)) if args.dump else read_cluster(args.kubeconfig, args.context)
        answer = replay(dump if isinstance(dump, dict) else {}, read_profile(args.profile))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        print(f"concerto simulate: {error}", file=sys.stderr)
        return 2
    if args.json == "-":
        print(json.dumps(_document(answer), indent=1, allow_nan=False))
        return 0
    print(
        f"{answer.total} pods replayed: {answer.moved} would be on another node, {answer.unplaced} would find no node."
    )
    print(f"{'node':32} {'pods now':>8} {'then':>6} {'cpu now':>8} {'then':>6}")
    for node in answer.nodes:
        print(f"{node.name:32} {node.pods_now:8d} {node.pods_then:6d} {node.cpu_now:8.2f} {node.cpu_then:6.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(_document(answer), indent=1, allow_nan=False) + "\n")
    return 0


def _document(answer: Answer) -> dict[str, Any]:
    """The answer as JSON has it, which knows no NaN: null, where no agent has measured."""
    nodes = [{k: None if v != v else v for k, v in vars(node).items()} for node in answer.nodes]
    return {**vars(answer), "nodes": nodes}
