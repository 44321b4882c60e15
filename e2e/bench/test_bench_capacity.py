"""What the maths of capacity costs: an agent's sample and batch, a virtual second of a thousand nodes.

Goals: an agent's ten samples and one batch a second stay below 0.5 % of a core (60 µs a sample, 300 µs a batch).
"""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from concerto.api.capacity_settings import CapacitySettings
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.subspace import ClusterModel, Subspace

pytestmark = pytest.mark.bench

SETTINGS = CapacitySettings()
BATCH = SETTINGS.batch_samples
NODES = [1, 100, 1000]


class Fleet:
    """Nodes under a load that comes and goes, so that no branch is taken out of habit."""

    def __init__(self, n_nodes: int) -> None:
        rng = np.random.default_rng(n_nodes)
        shape = (97, n_nodes, len(SETTINGS.resources))
        self.usage = np.clip(0.5 + 0.25 * rng.standard_normal(shape), 0.0, 1.0)
        self.non_pod = np.full(shape[1:], 0.05)
        self.pipeline = NodePipeline(SETTINGS, n_nodes)
        self.cluster = Subspace(np.eye(shape[2]), np.linspace(0.6, 0.1, shape[2]), n_nodes)
        self.ticks = count(1)
        for node in range(n_nodes):
            for k in range(6):
                self.pipeline.pod_started(node, -1.5 * k)
        for _ in range(3):
            self.second()

    def sample(self) -> float:
        tick = next(self.ticks)
        y = self.usage[tick % len(self.usage)]
        self.pipeline.sample(tick / 10, y, non_pod=self.non_pod, utilisation=y)
        return tick / 10

    def second(self) -> None:
        for _ in range(BATCH):
            now = self.sample()
        self.pipeline.fold(now, self.cluster)


@pytest.mark.parametrize("nodes", NODES)
def test_sample(benchmark: BenchmarkFixture, nodes: int) -> None:
    fleet = Fleet(nodes)
    benchmark(fleet.sample)


@pytest.mark.parametrize("nodes", NODES)
def test_ten_samples_and_a_batch(benchmark: BenchmarkFixture, nodes: int) -> None:
    fleet = Fleet(nodes)
    benchmark(fleet.second)
    seconds = benchmark.stats.stats.mean
    benchmark.extra_info["share of a core at 10 Hz"] = f"{seconds:.3%}"
    benchmark.extra_info["node-seconds simulated per second"] = round(nodes / seconds)


def test_a_pod_that_starts_and_ends(benchmark: BenchmarkFixture) -> None:
    fleet = Fleet(1000)
    now = fleet.sample()

    def start_and_end() -> None:
        fleet.pipeline.pod_started(500, now)
        fleet.pipeline.pod_ended(500, now, now)

    benchmark(start_and_end)


def test_windows_of_one_node(benchmark: BenchmarkFixture) -> None:
    fleet = Fleet(1)
    now = fleet.sample()
    benchmark(lambda: fleet.pipeline.windows(now))


@pytest.mark.parametrize("nodes", [100, 5000])
def test_one_node_s_new_model_in_the_cluster_s(benchmark: BenchmarkFixture, nodes: int) -> None:
    model = ClusterModel(2)
    directions, sigma = np.eye(2), np.array([0.5, 0.1])
    for k in range(nodes):
        model.update(f"node-{k}", directions, sigma)

    def update() -> Subspace | None:
        model.update("node-7", directions, sigma)
        return model.subspace()

    benchmark(update)
