"""Decisions per second of the pure scheduling cycle, and what events cost it. Measures; passes or fails nothing.

Run: ``pytest e2e/bench/test_bench_cycle.py --benchmark-columns=min,median,mean --benchmark-sort=name``
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.cpulist import format_cpu_list
from concerto.api.node import NodeView
from concerto.api.nodecapacity import AgentInfo, NodeCapacity, NodeCapacityStatus, Window
from concerto.api.nodecputopology import CPUPools, NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.podgroup import PodGroup
from concerto.api.schedulingprofile import DEFAULT_SCORES, ProfileSettings
from concerto.api.score_arguments import ScoreSettings
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds, to_entries
from concerto.scheduling.cycle import schedule
from concerto.scheduling.cycle_result import CycleResult
from concerto.scheduling.plugins.registry import SCORES as REGISTRY
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.queue_marks import BeyondHeads, mark_failures
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from e2e.bench.test_bench_pinning import large_node

pytestmark = pytest.mark.bench

NOW = 1000.0
PROFILES = {"concerto": Profile.build(ProfileSettings("concerto"))}
WINDOWS = tuple(Window(r, w, 0.3, 0.1, 0.3, 300) for r in ("cpu", "memory") for w in ("5m", "10m", "15m"))
SCORES = {
    "no score": (),
    "capacity alone": (ScoreSettings("Capacity"),),
    "the default": DEFAULT_SCORES,
    "every score": tuple(ScoreSettings(name) for name in REGISTRY),
}
DEFAULT_TOLERATIONS = [
    {"effect": "NoExecute", "key": f"node.kubernetes.io/{k}", "operator": "Exists", "tolerationSeconds": 300}
    for k in ("not-ready", "unreachable")
]


def raw_pod(index: int, template: int) -> dict[str, Any]:
    requests = {"cpu": f"{10 + template}m", "memory": "20Mi"}
    return {
        "metadata": {
            "namespace": "default",
            "name": f"pod-{index}",
            "uid": f"uid-{index}",
            "labels": {"job-name": f"job-{template}"},
            "creationTimestamp": "2026-03-01T12:00:00Z",
            "ownerReferences": [{"kind": "Job", "name": "job", "controller": True}],
        },
        "spec": {
            "schedulerName": "concerto",
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            "tolerations": DEFAULT_TOLERATIONS,
        },
        "status": {"phase": "Pending"},
    }


def pods(count: int, templates: int = 1) -> list[PodView]:
    return [PodView.from_raw(raw_pod(i, i % templates)) for i in range(count)]


def capacity(name: str, value: float, version: int = 1, observed: tuple[str, ...] = ()) -> NodeCapacity:
    agent = AgentInfo("0.1.0", "a", "Machine", "Inotify")
    status = NodeCapacityStatus(
        NOW + version, 1, agent, value, "Quiet", 1.0, 1.0, 0.1, 0, 0, observed, 1.0, windows=WINDOWS
    )
    return NodeCapacity(name, "uid", str(version), 1, CapacitySettings(), status)


def cluster_state(nodes: int) -> ClusterState:
    generator = np.random.default_rng(1)
    cluster = ClusterState()
    for i in range(nodes):
        labels = {"kubernetes.io/hostname": f"node-{i}", "topology.kubernetes.io/zone": f"zone-{i % 3}"}
        allocatable = {"cpu": 4000, "memory": 8 * 2**30, "pods": 110}
        cluster.set_node(NodeView(f"node-{i}", f"uid-{i}", labels, allocatable))
        cluster.set_capacity(capacity(f"node-{i}", float(generator.uniform(3, 12))), NOW)
    return cluster


def cycles(
    benchmark: BenchmarkFixture, cluster: ClusterState, waiting: list[PodView], profiles: Mapping[str, Profile]
) -> CycleResult:
    """One cycle that places all pods, five times on the same cluster; the last one's result."""

    def empty() -> None:
        for pod in waiting:
            cluster.forget(pod.uid)

    def cycle() -> CycleResult:
        generator = np.random.default_rng(0)
        return schedule(cluster, waiting, profiles, now=NOW, generator=generator, limit=len(waiting))

    result: CycleResult = benchmark.pedantic(cycle, setup=empty, rounds=5)
    assert len(result.decisions) == len(waiting)
    if benchmark.stats is not None:  # None with --benchmark-disable
        benchmark.extra_info["decisions per second"] = round(len(waiting) / benchmark.stats.stats.median)
    return result


@pytest.mark.parametrize(
    ("nodes", "count", "templates"),
    [(1000, 3000, 1), (5000, 1000, 1), (5000, 1000, 20), (5000, 1000, 1000)],
    ids=["1000 nodes 3000 pods", "5000 nodes 1000 pods", "of 20 templates", "each of its own template"],
)
def test_cycle(benchmark: BenchmarkFixture, nodes: int, count: int, templates: int) -> None:
    cluster = cluster_state(nodes)
    cycles(benchmark, cluster, pods(count, templates), PROFILES)


def kind_pods(count: int, kinds: int) -> list[PodView]:
    """Pods without requests, of so many Jobs."""
    raws = [raw_pod(i, 0) for i in range(count)]
    for i, raw in enumerate(raws):
        raw["metadata"]["ownerReferences"][0]["name"] = f"job-{i % kinds}"
        raw["spec"]["containers"][0] |= {"image": f"image-{i % kinds}", "resources": {}}
    return [PodView.from_raw(raw) for raw in raws]


@pytest.mark.parametrize("known", [False, True], ids=["pods as units", "by kind"])
@pytest.mark.parametrize("kinds", [1, 20, 2000], ids=["1 kind", "20 kinds", "2000 kinds"])
def test_kinds(benchmark: BenchmarkFixture, kinds: int, known: bool) -> None:
    """2,000 pods on 5,000 nodes, of which something is known by kind or nothing."""
    cluster, waiting = cluster_state(5000), kind_pods(2000, kinds)
    if known:
        node = NodeKinds()
        for i, pod in enumerate(waiting[:kinds]):
            work = 1.0 + i % 7
            node.pod_ended(pod.kind, PodMeasurement(work, 4.0 * work, 4.0 * work, 2e7, True), NOW)
        cluster.kinds.set_table(node.table((), NOW))
    cycles(benchmark, cluster, waiting, PROFILES)


def test_a_table_of_kinds_arrives(benchmark: BenchmarkFixture) -> None:
    """What a changed table costs the operator: 5,000 nodes run 20,000 pods of 2,000 kinds."""
    cluster, running = cluster_state(5000), kind_pods(20_000, 2000)
    for i, pod in enumerate(running):
        cluster.set_pod(dataclasses.replace(pod, node_name=f"node-{i % 5000}"), NOW)
    tables = []
    for scale in (1.0, 1.2):
        node = NodeKinds()
        for pod in running[:2000]:
            node.pod_ended(pod.kind, PodMeasurement(scale, 4.0, 4.0, 2e7, True), NOW)
        tables.append(node.table((), NOW))
    turns = itertools.cycle(tables)
    benchmark.pedantic(lambda: cluster.kinds.set_table(next(turns)), rounds=10)
    benchmark.extra_info["KiB of a table"] = round(len(json.dumps(to_entries(tables[0]))) / 1024)


_TERM = {"labelSelector": {"matchLabels": {"job-name": "job-0"}}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CONSTRAINTS = {
    "anti-affinity by node": {
        "affinity": {"podAntiAffinity": {_REQUIRED: [{"topologyKey": "kubernetes.io/hostname", **_TERM}]}}
    },
    "affinity by zone": {
        "affinity": {"podAffinity": {_REQUIRED: [{"topologyKey": "topology.kubernetes.io/zone", **_TERM}]}}
    },
    "spread over zones": {
        "topologySpreadConstraints": [
            {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **_TERM}
        ]
    },
}


@pytest.mark.parametrize("spec", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_constraints_on_other_pods(benchmark: BenchmarkFixture, spec: dict[str, Any]) -> None:
    """500 alike pods with one constraint on each other, on 5,000 nodes."""
    waiting = []
    for i in range(500):
        raw = raw_pod(i, 0)
        raw["spec"] |= spec
        waiting.append(PodView.from_raw(raw))
    cycles(benchmark, cluster_state(5000), waiting, PROFILES)


def test_unique_labels_beside_one_anti_affinity(benchmark: BenchmarkFixture) -> None:
    """1,500 pods, each with a label of its own as Spark's executors, on 5,000 nodes with one required anti-affinity."""
    cluster = cluster_state(5000)
    refusing = raw_pod(1_000_000, 0)
    refusing["spec"] |= CONSTRAINTS["anti-affinity by node"] | {"nodeName": "node-0"}
    cluster.set_pod(PodView.from_raw(refusing), NOW)
    waiting = []
    for i in range(1500):
        raw = raw_pod(i, 1)
        raw["metadata"]["labels"] |= {"spark-exec-id": str(i), "spark-app-name": "job"}
        waiting.append(PodView.from_raw(raw))
    cycles(benchmark, cluster, waiting, PROFILES)


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_scores(benchmark: BenchmarkFixture, scores: tuple[ScoreSettings, ...]) -> None:
    """250 pods of 20 templates on 5,000 nodes, on which 20,000 pods have just begun."""
    cluster = cluster_state(5000)
    for i in range(20_000):
        raw = raw_pod(1_000_000 + i, i % 20)
        raw["spec"]["nodeName"] = f"node-{i % 5000}"
        cluster.set_pod(PodView.from_raw(raw), NOW)
    for i in range(5000):
        cluster.set_capacity(capacity(f"node-{i}", 50.0, version=2), NOW)
    profiles = {"concerto": Profile.build(ProfileSettings("concerto", scores=scores))}
    cycles(benchmark, cluster, pods(250, 20), profiles)


@pytest.mark.parametrize("taken", [False, True], ids=["empty", "each node taken differently"])
def test_pods_with_cpus_of_their_own(benchmark: BenchmarkFixture, taken: bool) -> None:
    """250 pinned pods of 5 kinds on 1,000 nodes of 2 sockets and 256 CPUs; nodes that are alike are looked at once."""
    cluster = cluster_state(1000)
    topology = large_node()
    generator = np.random.default_rng(2)
    for i in range(1000):
        node = NodeView(f"node-{i}", f"uid-{i}", {}, {"cpu": 256_000, "memory": 2**40, "pods": 250})
        cluster.set_node(node)
        cluster.set_capacity(capacity(f"node-{i}", 200.0, version=2), NOW)
        cluster.set_topology(NodeCPUTopology(f"node-{i}", topology, CPUPools(reserved=frozenset({0, 128}))))
        if taken:
            cpus = format_cpu_list(int(c) for c in generator.choice(128, size=32, replace=False))
            cluster.set_cpu_binding({
                "metadata": {"namespace": "default", "name": f"other-{i}"},
                "spec": {"exclusivenessLevel": "CPU"},
                "status": {"nodeName": f"node-{i}", "cpus": cpus},
            })  # fmt: skip
    waiting = []
    for i in range(250):
        raw = raw_pod(i, 0)
        kind = ("cpu-bound", "memory-bound", "io-bound", "best-effort", "cpu-bound")[i % 5]
        raw["metadata"]["labels"]["concerto.dev/workload-type"] = kind
        raw["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(2 + 2 * (i % 5))
        waiting.append(PodView.from_raw(raw))
    scores = (ScoreSettings("Capacity"), ScoreSettings("WorkloadAware"))
    profiles = {"concerto": Profile.build(ProfileSettings("concerto", scores=scores))}
    result = cycles(benchmark, cluster, waiting, profiles)
    assert all(d.assignment.pin is not None for d in result.decisions)


def test_a_backlog_that_waits_for_capacity(benchmark: BenchmarkFixture) -> None:
    """One cycle when 10,000 like pods wait and one node gets room for one: what each status costs a busy operator."""
    cluster = cluster_state(1000)
    for i in range(1000):
        cluster.set_capacity(capacity(f"node-{i}", 0.0, version=2), NOW)
    queue = Queue(signatures=cluster.signatures)
    for pod in pods(10_000):
        queue.set(pod)
    versions = iter(range(3, 10_000_000))
    running: list[str] = []

    def one_status() -> None:
        change = cluster.set_capacity(capacity("node-7", 1.0, version=next(versions), observed=tuple(running)), NOW)
        assert change
        queue.requeue(change)
        result = schedule(cluster, queue.heads(NOW), PROFILES, now=NOW, generator=np.random.default_rng(0))
        (decision,) = result.decisions
        queue.remove(decision.pod.uid)
        # It runs, its agent has seen it, and the node is full
        running.append(decision.pod.uid)
        seen = capacity("node-7", 0.0, version=next(versions), observed=tuple(running))
        cluster.set_capacity(seen, NOW)
        for failure in result.unschedulable:
            queue.mark_all([(failure.pod.uid, Change.CAPACITY, False)], NOW)

    benchmark.pedantic(one_status, rounds=100)


@pytest.mark.parametrize(("gangs", "of_each"), [(1, 500), (1, 100_000), (300, 300)])
def test_gangs_that_are_not_ready(benchmark: BenchmarkFixture, gangs: int, of_each: int) -> None:
    """One cycle after an event about each of so many PodGroups, whose pods differ, and of which one pod lacks each."""
    cluster, index = cluster_state(200), itertools.count()
    queue = Queue(signatures=cluster.signatures)
    for gang in (f"gang-{number}" for number in range(gangs)):
        cluster.pod_groups.set_group(PodGroup("default", gang, gang, 1, of_each + 1))
        for number in range(of_each):
            raw = raw_pod(next(index), number)
            raw["spec"]["schedulingGroup"] = {"podGroupName": gang}
            pod = PodView.from_raw(raw)
            cluster.set_pod(pod, NOW)
            queue.set(pod)
    beyond = BeyondHeads(queue)

    def cycle() -> None:
        for gang in range(gangs):
            queue.requeue_pod_group(("default", f"gang-{gang}"))
        result = schedule(cluster, queue.heads(NOW), PROFILES, now=NOW, generator=np.random.default_rng(0))
        mark_failures(queue, result, NOW)
        beyond.add(result)
        assert result.gangs
        list(beyond.take(5000))

    benchmark.pedantic(cycle, rounds=10)


def test_reading_a_pod(benchmark: BenchmarkFixture) -> None:
    raws = [raw_pod(i, 0) for i in range(1000)]
    views = benchmark(lambda: [PodView.from_raw(raw) for raw in raws])
    assert len(views) == 1000


def test_following_pods(benchmark: BenchmarkFixture) -> None:
    """1,000 pods that are bound and end: what the watch costs the cluster."""
    bound = []
    for i in range(1000):
        raw = raw_pod(i, 0)
        raw["spec"]["nodeName"] = f"node-{i}"
        bound.append(PodView.from_raw(raw))

    def follow(cluster: ClusterState) -> None:
        for pod in bound:
            cluster.set_pod(pod, NOW)
        for pod in bound:
            cluster.remove_pod(pod.uid)

    benchmark.pedantic(follow, setup=lambda: ((cluster_state(1000),), {}), rounds=5)
