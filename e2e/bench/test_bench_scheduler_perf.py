"""CPU time of the pure scheduling cycle on the workloads of scheduler_perf. Measures; passes or fails nothing.

Run: ``pytest e2e/bench/test_bench_scheduler_perf.py --benchmark-columns=min,median --benchmark-sort=name``
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.node import NodeView
from concerto.api.nodecapacity import AgentInfo, NodeCapacity, NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.cycle import schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.cluster import ClusterState
from e2e.bench.scheduler_perf import WORKLOADS, Kind, bodies
from e2e.testbed.hollow.objects import NodeShape, build_node

pytestmark = [pytest.mark.bench, pytest.mark.benchmark(timer=time.process_time)]

NOW = 1000.0
PROFILES = {"concerto": Profile.build(ProfileSettings("concerto"))}
SHAPE = NodeShape(zones=3)
THERE, WAITING = "there", "waiting"
MAX_PODS = 2000
PREEMPTING = ("PreemptionBasic",)
"""Nothing is placed before pods have been evicted (test_bench_preemption.py)."""


def hollow_cluster(nodes: int) -> ClusterState:
    """The nodes of scheduler_perf: each has room for as many pods as its kubelet takes."""
    cluster = ClusterState()
    agent = AgentInfo("0.1.0", "a", "Machine", "Inotify")
    for i in range(nodes):
        name = f"hollow-{i:04d}"
        node = build_node(name, "10.0.0.1", "hollow", SHAPE, NOW)
        node["metadata"]["uid"] = name
        cluster.set_node(NodeView.from_raw(node))
        status = NodeCapacityStatus(NOW, 1, agent, float(SHAPE.max_pods), "Quiet", 0.1, 0.1, 0.1, 0, 0, (), 1.0)
        cluster.set_capacity(NodeCapacity(name, "uid", "1", 1, CapacitySettings(), status), NOW)
    return cluster


def views(kind: Kind, prefix: str, count: int, namespace: str, nodes: list[str] | None = None) -> Iterator[PodView]:
    """Pods of a kind, waiting or dealt out to nodes."""
    names = [f"{prefix}-{i:05d}" for i in range(count)]
    other = THERE if namespace == WAITING else WAITING
    for i, raw in enumerate(bodies(kind, names, "concerto", namespace, other)):
        raw["metadata"] |= {"uid": raw["metadata"]["name"], "creationTimestamp": "2026-03-01T12:00:00Z"}
        if nodes is not None:
            raw["spec"] = {**raw["spec"], "nodeName": nodes[i % len(nodes)]}
        yield PodView.from_raw(raw)


def prepared(name: str, nodes: int) -> tuple[ClusterState, list[PodView]]:
    """A cluster with the pods that are bound, and the pods that are to be bound."""
    workload, cluster = WORKLOADS[name], hollow_cluster(nodes)
    for number, (kind, share) in enumerate(workload.bound):
        for pod in views(kind, f"b{number}", round(share * nodes), THERE, list(cluster.names)):
            cluster.set_pod(pod, NOW)
    if workload.service:
        selectors = cluster.signatures.workload_selectors
        selectors.set_service(WAITING, "all", {"color": workload.waiting.label})
    pods = min(round(workload.pods * nodes), MAX_PODS)
    return cluster, list(views(workload.waiting, "w", pods, WAITING))


def seconds_since(began: float) -> float:
    return time.thread_time() - began


def place_all(cluster: ClusterState, waiting: list[PodView]) -> int:
    """Cycles as the operator runs them, until no pod waits; returns how many were decided on."""
    queue = Queue(signatures=cluster.signatures)
    for pod in waiting:
        queue.set(pod)
    generator, decided, resume = np.random.default_rng(0), 0, False
    while len(queue):
        spent = partial(seconds_since, time.thread_time())
        heads = queue.heads(NOW, resume=resume)
        result = schedule(cluster, heads, PROFILES, now=NOW, generator=generator, resume=resume, spent=spent)
        resume = result.out_of_time
        if not result.decisions:
            break
        queue.note_turns(result.turns)
        for decision in result.decisions:
            queue.take(decision.pod.uid)
        decided += len(result.decisions)
    return decided


@cache
def plain_seconds(nodes: int) -> float:
    """What a decision on a pod without constraints takes, on as many nodes."""
    cluster, waiting = prepared("SchedulingBasic", nodes)
    began = time.process_time()
    place_all(cluster, waiting)
    return (time.process_time() - began) / len(waiting)


@pytest.mark.parametrize("nodes", [1000, 5000])
@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in PREEMPTING])
def test_workload(benchmark: BenchmarkFixture, name: str, nodes: int) -> None:
    """The pods of one workload, 2,000 at most, decided in as many cycles as that takes."""
    cluster, waiting = prepared(name, nodes)

    def forget() -> None:
        for pod in waiting:
            cluster.forget(pod.uid)

    decided = benchmark.pedantic(place_all, (cluster, waiting), setup=forget, rounds=3)
    if benchmark.stats is not None:  # None with --benchmark-disable
        seconds = benchmark.stats.stats.min / decided
        benchmark.extra_info["microseconds per decision"] = round(1e6 * seconds)
        benchmark.extra_info["of what a pod of SchedulingBasic takes"] = round(seconds / plain_seconds(nodes), 2)
