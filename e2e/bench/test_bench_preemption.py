"""Time of the search for pods to evict in a full cluster. Measures; passes or fails nothing.

Run: ``pytest e2e/bench/test_bench_preemption.py --benchmark-columns=min,median,mean --benchmark-sort=name``
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from concerto.api.node import NodeView
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.cycle import schedule
from concerto.scheduling.preemption.preemption import Preemption
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState

pytestmark = pytest.mark.bench

NOW = 1e9
PODS_PER_NODE = 30
PROFILE = Profile.build(ProfileSettings("concerto"))


def pod(name: str, priority: int, millicores: int, node: str = "", **spec: Any) -> PodView:
    container = {"name": "c", "resources": {"requests": {"cpu": f"{millicores}m"}}}
    return PodView.from_raw(
        {
            "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": name.split("-")[0]}},
            "spec": {
                "nodeName": node,
                "schedulerName": "concerto",
                "priority": priority,
                "containers": [container],
                **spec,
            },
            "status": {},
        }
    )


def full_cluster(nodes: int) -> ClusterState:
    cluster = ClusterState()
    for index in range(nodes):
        allocatable = {"cpu": 4000, "memory": 2**33, "pods": 110}
        cluster.set_node(NodeView(f"n{index}", f"uid-{index}", {"zone": str(index % 3)}, allocatable, ()))
        for i in range(PODS_PER_NODE):
            cluster.set_pod(pod(f"low-{index}-{i}", i % 5, 130, f"n{index}"), NOW)
    return cluster


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
          "labelSelector": {"matchLabels": {"app": "asks"}}}  # fmt: skip
SPECS: dict[str, dict[str, Any]] = {"requests": {}, "topology spread": {"topologySpreadConstraints": [SPREAD]}}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_one_node(benchmark: BenchmarkFixture, spec: dict[str, Any]) -> None:
    """One of 1,000 nodes: 30 pods are taken off, and put back as far as the pod still fits."""
    cluster, asks = full_cluster(1000), pod("asks", 100, 500, **spec)

    def search() -> tuple[tuple[Preemption], dict[str, Any]]:
        return (Preemption(cluster, PROFILE, asks, NOW),), {}

    def look(search: Preemption) -> None:
        assert search.look_at_next(asks)

    benchmark.pedantic(look, setup=search, rounds=30)


@pytest.mark.parametrize("nodes", [1000, 5000])
def test_whole_search(benchmark: BenchmarkFixture, nodes: int) -> None:
    """From the failure to the node that costs least: 100 candidates of 1,000 nodes, 500 of 5,000."""
    cluster, asks = full_cluster(nodes), pod("asks", 100, 500)

    def search() -> None:
        found = Preemption(cluster, PROFILE, asks, NOW)
        while found.look_at_next(asks):
            pass
        assert found.take(asks).candidate is not None

    benchmark.pedantic(search, rounds=3)


def nominate_all(cluster: ClusterState, alike: list[PodView]) -> None:
    """Find pods to evict for alike pods in one search."""
    search = Preemption(cluster, PROFILE, alike[0], NOW)
    for asks in alike:
        while search.look_at_next(asks):
            pass
        candidate = search.take(asks).candidate
        assert candidate is not None
        cluster.nominations.nominate(asks, candidate.node)


@pytest.mark.parametrize("nodes", [1000, 5000])
def test_a_search_for_alike_pods(benchmark: BenchmarkFixture, nodes: int) -> None:
    """From the failure of 250 alike pods to a node for each of them."""
    cluster, alike = full_cluster(nodes), [pod(f"asks-{i}", 100, 500) for i in range(250)]

    def forget() -> None:
        for asks in alike:
            cluster.nominations.withdraw(asks.uid)

    benchmark.pedantic(nominate_all, (cluster, alike), setup=forget, rounds=3)


@pytest.mark.parametrize("nodes", [1000, 5000])
def test_a_cycle_while_room_is_made(benchmark: BenchmarkFixture, nodes: int) -> None:
    """250 pods are nominated, and their victims are still there: what each end of another pod costs."""
    cluster, alike = full_cluster(nodes), [pod(f"asks-{i}", 100, 500) for i in range(250)]
    nominate_all(cluster, alike)

    def cycle() -> None:
        generator = np.random.default_rng(0)
        result = schedule(cluster, alike, {"concerto": PROFILE}, now=NOW, generator=generator)
        assert len(result.unschedulable) == len(alike)

    benchmark.pedantic(cycle, rounds=5)
