"""What the agent costs a node: CPU, memory and writes of a real process over a minute at 10 Hz.

Goals (docs and `make bench` print the figures beside them): 1 % of a core, 60 MiB, 0.04 writes/s on an idle node.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from concerto_agent.cgroups import Hierarchies
from e2e.testbed.agent_helpers import status
from e2e.testbed.clusters import Cluster
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.processes import Process, agent_process, cpu_seconds, rss_mib
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.bench

SETTLE_SECONDS = 10
SECONDS = 60
IDLE_SECONDS = 120  # four heartbeats


@pytest.fixture
def node(concerto_cluster: Cluster) -> Iterator[str]:
    """Name of a new node."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    concerto_cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield name
    concerto_cluster.kubectl("delete", "node", name, "--wait=false")


@pytest.fixture
def start(concerto_cluster: Cluster, node: str, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts the agent of the node, with its metrics."""
    health = f"127.0.0.1:{free_ports(1)[0]}"
    started: list[Process] = []

    def start_one(*extra: str) -> Process:
        process = agent_process(concerto_cluster, tmp_path, node, extra=["--metrics-bind", health, *extra])
        process.health = health
        started.append(process)
        return process.start()

    yield start_one
    for process in started:
        process.kill()


@pytest.fixture
def idle_cgroup() -> Iterator[str]:
    """A cgroup in which nothing runs, whatever else the machine does."""
    name = f"concerto-bench-{uuid.uuid4().hex[:8]}"
    roots = {root for root in dataclasses.astuple(Hierarchies.detect(Path("/sys"))) if isinstance(root, Path)}
    made = []
    try:
        for root in roots:
            (root / name / "kubepods").mkdir(parents=True)
            made.append(root / name)
    except OSError as error:
        pytest.skip(f"no cgroup of its own for an idle node: {error}")
    yield name
    for path in made:
        for folder, _, _ in os.walk(path, topdown=False):
            Path(folder).rmdir()


def counters(agent: Process) -> dict[str, float]:
    """Sums of the agent's series by name."""
    sums: dict[str, float] = {}
    for line in agent.get("/metrics").splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def measure(agent: Process, seconds: float) -> str:
    """What the agent costs in so many seconds."""
    time.sleep(SETTLE_SECONDS)
    before, used, began = counters(agent), cpu_seconds(agent.pid), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    percent = (cpu_seconds(agent.pid) - used) / took * 100
    grown = {name: value - before.get(name, 0.0) for name, value in counters(agent).items()}
    return (
        f"{took:.0f} s: CPU {percent:.2f} % of a core (goal 1), RSS {rss_mib(agent.pid):.1f} MiB (goal 60), "
        f"{grown['concerto_agent_samples_total'] / took:.2f} samples/s, "
        f"{grown['concerto_agent_missed_samples_total']:.0f} missed, "
        f"{grown.get('concerto_agent_publications_total', 0) / took:.3f} writes/s"
    )


def test_an_agent_over_a_minute(start: Callable[..., Process], say: Callable[[str], None]):
    say(f"agent, this machine with all that runs on it, {measure(start(), SECONDS)}")


def test_an_agent_of_an_idle_node(start: Callable[..., Process], idle_cgroup: str, say: Callable[[str], None]):
    agent = start("--scope", "cgroup", "--cgroup", idle_cgroup)
    say(f"agent, an idle node, {measure(agent, IDLE_SECONDS)} (goal 0.04)")


@pytest.mark.parametrize(("pods_there", "kinds"), [(100, 10), (250, 100)])
def test_an_agent_of_many_pods(
    pods_there: int,
    kinds: int,
    concerto_cluster: Cluster,
    namespace: str,
    node: str,
    start: Callable[..., Process],
    idle_cgroup: str,
    say: Callable[[str], None],
):
    """Each pod has cgroups of its own, for its sandbox and a container; they are read once a second."""
    kept = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "nodeName": node,
    }
    pods: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": f"p-{i}"},
            "spec": {**kept, "containers": [{"name": "c", "image": f"none.invalid/{i % kinds}"}]},
        }
        for i in range(pods_there)
    ]
    concerto_cluster.apply(*pods)
    uids = [pod["metadata"]["uid"] for pod in concerto_cluster.get("pods", "-n", namespace)["items"]]
    hierarchies = {root for root in dataclasses.astuple(Hierarchies.detect(Path("/sys"))) if isinstance(root, Path)}
    for root, uid, container in itertools.product(hierarchies, uids, "ab"):
        (root / idle_cgroup / "kubepods" / "besteffort" / f"pod{uid}" / (container * 64)).mkdir(parents=True)
    agent = start("--scope", "cgroup", "--cgroup", idle_cgroup)
    eventually("all pods are counted", lambda: status(concerto_cluster, node).get("podCount") == pods_there)
    say(f"agent, {pods_there} pods of {kinds} kinds, {measure(agent, SECONDS)}")
