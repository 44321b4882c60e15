"""What the agent costs a node: CPU, memory and writes of a real process over a minute at 10 Hz.

Goals (docs and `make bench` print the figures beside them): 1 % of a core, 60 MiB, 0.04 writes/s on an idle node.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.clusters import Cluster
from e2e.clusters.local import free_ports
from e2e.processes import Process, agent_process, cpu_seconds, rss_mib

pytestmark = pytest.mark.bench

SETTLE_SECONDS = 10
SECONDS = 60


@pytest.fixture
def agent(concerto_cluster: Cluster, tmp_path: Path) -> Iterator[Process]:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    concerto_cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    health = f"127.0.0.1:{free_ports(1)[0]}"
    process = agent_process(concerto_cluster, tmp_path, name, extra=["--metrics-bind", health])
    process.health = health
    process.start()
    yield process
    process.kill()
    concerto_cluster.kubectl("delete", "node", name, "--wait=false")


def counters(agent: Process) -> dict[str, float]:
    """Sums of the agent's series by name."""
    sums: dict[str, float] = {}
    for line in agent.get("/metrics").splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def test_an_agent_over_a_minute(agent: Process, say: Callable[[str], None]):
    time.sleep(SETTLE_SECONDS)
    before, used, began = counters(agent), cpu_seconds(agent.pid), time.monotonic()
    time.sleep(SECONDS)
    seconds = time.monotonic() - began
    percent = (cpu_seconds(agent.pid) - used) / seconds * 100
    grown = {name: value - before.get(name, 0.0) for name, value in counters(agent).items()}
    say(
        f"agent, {seconds:.0f} s: CPU {percent:.2f} % of a core (goal 1), RSS {rss_mib(agent.pid):.1f} MiB (goal 60), "
        f"{grown['concerto_agent_samples_total'] / seconds:.2f} samples/s, "
        f"{grown['concerto_agent_missed_samples_total']:.0f} missed, "
        f"{grown.get('concerto_agent_publications_total', 0) / seconds:.3f} writes/s (goal 0.04 idle; "
        "this machine's other load is measured, too)"
    )
