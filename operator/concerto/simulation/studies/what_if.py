"""What if: the present cluster's pods, placed afresh under a profile, beside where they are now.

A dump (`kubectl get nodes,pods,ncap -A -o yaml`) says what nodes there are, what runs where, and what agents measured.
What a pod uses is not in it, so a node's measured usage beyond its base is shared out evenly over its counted pods. The
pods then arrive one after another in an empty cluster of such nodes, and Concerto places them. The answer is about
placement and load under the same measurements; it can't know how a pod behaves when it has more CPU than it had.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacity
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.simulation.scheduling.cluster import NodeSpec, Setup, World
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.policies.concerto import SCHEDULER_NAME, Concerto
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec

ARRIVALS_PER_SECOND = 2.0
SETTLE_SECONDS = 60.0
"""How long the replay goes on after the last pod has come."""
_REST_SECONDS = 1.0
_DONE = "replay-clock"


class DumpError(ValueError):
    """A dump that can't be replayed; the message says what is missing."""


@dataclass(frozen=True)
class NodeAnswer:
    """One node, now and as it would be. CPU is a fraction of the node; NaN where no agent has measured."""

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
        unplaced: pods for which there was no room in the time given.
        total: pods replayed.
    """

    nodes: tuple[NodeAnswer, ...]
    moved: int
    unplaced: int
    total: int


def replay(dump: dict[str, Any], profile: ProfileSettings, seed: int = 1) -> Answer:
    """Place the dump's pods afresh.

    Args:
        dump: a List of Nodes, Pods and NodeCapacities.
        profile: to place them under.
        seed: of the replay.

    Raises:
        DumpError: there are no nodes in it.
    """
    items = dump.get("items") or []
    raw_nodes = [o for o in items if o.get("kind") == "Node"]
    if not raw_nodes:
        raise DumpError("the dump holds no Node: make it with `kubectl get nodes,pods,ncap -A -o yaml`")
    nodes = [NodeView.from_raw(o) for o in raw_nodes]
    index = {node.name: i for i, node in enumerate(nodes)}
    capacities = {o["metadata"]["name"]: NodeCapacity.from_raw(o) for o in items if o.get("kind") == "NodeCapacity"}
    pods = [PodView.from_raw(o) for o in items if o.get("kind") == "Pod"]
    running = [p for p in pods if p.counted and p.node_name in index and not p.terminal]
    on_node = Counter(p.node_name for p in running)

    specs = tuple(
        NodeSpec(
            count=1,
            cores=node.allocatable.get("cpu", 1000) / 1000,
            memory_bytes=float(node.allocatable.get("memory", 2**30)),
            max_pods=int(node.allocatable.get("pods", 110)),
        )
        for node in nodes
    )
    jobs = []
    for number, pod in enumerate(sorted(running, key=lambda p: (p.created, p.key))):
        spec = specs[index[pod.node_name]]
        cpu, memory = _share(capacities.get(pod.node_name), on_node[pod.node_name])
        cores = max(cpu * spec.cores, 1e-3)
        threads = max(1, round(cores))
        duty = min(cores / threads, 0.98)
        jobs.append(
            JobSpec(
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
        )
    length = len(running) / ARRIVALS_PER_SECOND + SETTLE_SECONDS
    # A pod that is bound by hand and does nothing ends the replay
    clock = JobSpec(_DONE, 1, PodLoad(length, 1e-6, memory_bytes=1.0), jitter=0.0, node=0)
    world = World(Setup(specs, (*jobs, clock), plant=NodeModelSettings()), Concerto(profile=profile), seed)
    recorder = world.run()
    then = Counter(recorder.bound_to[f"{job.name}-0"] for job in jobs if f"{job.name}-0" in recorder.bound_to)
    report = world.policy.agents.report  # type: ignore[attr-defined]
    ordered = sorted(running, key=lambda p: (p.created, p.key))
    placed = {n: recorder.bound_to.get(f"pod-{n}-0") for n in range(len(ordered))}
    return Answer(
        nodes=tuple(
            NodeAnswer(
                name=node.name,
                pods_now=on_node[node.name],
                pods_then=then[i],
                cpu_now=_usage(capacities.get(node.name)),
                cpu_then=float(report.usage[i, 0]),
            )
            for i, node in enumerate(nodes)
        ),
        moved=sum(1 for n, pod in enumerate(ordered) if placed[n] is not None and placed[n] != index[pod.node_name]),
        unplaced=sum(1 for node in placed.values() if node is None),
        total=len(running),
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
    # The cpu entry of y is half the demand in threads per CPU (see capacity.slots.demand_per_cpu)
    return min(1.0, 2.0 * found.get("cpu", 0.025)), found.get("memory", 0.05)


def read_profile(path: str | None) -> ProfileSettings:
    """The SchedulingProfile in a YAML file, or Concerto's default.

    Raises:
        DumpError: the file holds none.
    """
    if path is None:
        return ProfileSettings(SCHEDULER_NAME)
    raw = yaml.safe_load(Path(path).read_text())
    if not isinstance(raw, dict) or raw.get("kind") != "SchedulingProfile":
        raise DumpError(f"{path}: expected a SchedulingProfile")
    spec = {**raw.get("spec", {}), "schedulerName": SCHEDULER_NAME}
    return ProfileSettings.from_raw(spec)


def read_cluster() -> dict[str, Any]:
    """The present cluster, as kubectl sees it.

    Raises:
        DumpError: kubectl is not there, or could not read it.
    """
    command = ["kubectl", "get", "nodes,pods,nodecapacities.concerto.dev", "-A", "-o", "json"]
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
        dump = yaml.safe_load(Path(args.dump).read_text()) if args.dump else read_cluster()
        answer = replay(dump if isinstance(dump, dict) else {}, read_profile(args.profile))
    except (DumpError, OSError, yaml.YAMLError) as error:
        print(f"concerto simulate: {error}", file=sys.stderr)
        return 2
    print(f"{answer.total} pods replayed: {answer.moved} would be on another node, {answer.unplaced} would find none.")
    print(f"{'node':32} {'pods now':>8} {'then':>6} {'cpu now':>8} {'then':>6}")
    for node in answer.nodes:
        print(f"{node.name:32} {node.pods_now:8d} {node.pods_then:6d} {node.cpu_now:8.2f} {node.cpu_then:6.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(answer, default=lambda o: o.__dict__, indent=1) + "\n")
    return 0
