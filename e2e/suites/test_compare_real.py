"""What is compared on real nodes, as small as can be: both schedulers, a server beside a Job, an overloaded node."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.compare.beside_server import BesideServer, served
from e2e.compare.latency import ALONE
from e2e.compare.measure import Bench
from e2e.compare.observation import PodTimes, times_of_pods
from e2e.compare.workloads import CONCERTO, Part, Workload
from e2e.testbed.agent_helpers import pod_spec
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.processes import concerto_command
from e2e.testbed.recorder import Recorder
from e2e.testbed.requirements import require_binaries, require_kubelet
from e2e.testbed.system import install, real_system
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode

SMALL = Workload("burst", "two kinds", [Part("compare-short", 0.0, 0.02, 0.5), Part("compare-waits", 1.0, 0.0, 0.5)])
PODS = 6


@pytest.fixture(scope="module")
def bench(say: Callable[[str], None]) -> Iterator[Bench]:
    binaries = require_binaries(say)
    require_kubelet(binaries)
    with LocalControlPlane(binaries, scheduler=True) as plane:
        install(plane)
        with real_system(plane, say, ["compare-1", "compare-2"]) as system:
            yield Bench(system, say, settle_seconds=0.0)


@pytest.mark.parametrize("scheduler", [CONCERTO, "200m", CONCERTO])
def test_a_run_is_measured_whole_and_leaves_nothing_behind(bench: Bench, scheduler: str) -> None:
    run = bench.run(SMALL, PODS, scheduler, 1)
    assert run.job_seconds is not None, str(run)
    assert len(run.pod_seconds) == PODS
    # PodScheduled and the end of a container are written in whole seconds; half of the pods sleep for one
    assert max(run.pod_seconds) >= 1
    assert 1 <= run.max_on_node <= PODS
    assert run.core_seconds_per_pod > 0
    assert run.wrong == []
    cluster = bench.system.cluster
    assert cluster.get("pods", "-n", "default")["items"] == []
    assert cluster.get("jobs", "-n", "default")["items"] == []
    assert bench.system.batches() == []


def test_a_server_is_asked_alone_and_beside_a_job(bench: Bench) -> None:
    assert bench.system.real is not None
    with served(bench.system.cluster, next(iter(bench.system.real)), "100m") as server:
        made = BesideServer(bench, server, SMALL, 2, alone_seconds=1.0)
        for scheduler in (ALONE, CONCERTO):
            run, wrong = made.run(scheduler, 1)
            assert wrong == []
            # 40 requests a second are sent, however long an answer takes, on a machine that may be busy
            assert len(run.milliseconds) >= 10
            assert 0.0 < run.percentile(0.5) <= run.percentile(0.99)


def top_node(bench: Bench, node: str, *arguments: str) -> str:
    """What `concerto top node` prints of the node, with the traces of its agent and of the operator."""
    agent, operator = bench.system.agents[node], bench.system.operator
    assert operator is not None
    where = ["--agent", f"http://{agent.health}", "--operator", f"http://{operator.health}"]
    cluster = ["--kubeconfig", str(bench.system.cluster.kubeconfig)]
    command = concerto_command("top", "node", node, *cluster, "--trace", *where, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_trace_of_a_node_has_its_pods_and_what_they_take(bench: Bench, tmp_path: Path) -> None:
    """After the runs above: pods have come and gone on both nodes."""
    picture = tmp_path / "trace.png"
    printed = top_node(bench, "compare-1", "--every", "1s", "--plot", str(picture))
    by_agent, by_operator = printed.split("BY KIND, by the operator\n")
    head, *rows = [
        line.split() for line in by_agent.split("PODS AS UNITS, by the node's agent\n")[1].splitlines() if line
    ]
    assert head == ["AT", "PODS", "WINDOW", "DEMAND", "CPU", "TOKENS", "CAPACITY", "PUBLISHED", "SHARE"]
    assert max(float(row[1]) for row in rows) >= 1, "pods were counted"
    assert all(float(row[2]) > 0 for row in rows)
    rows = [line.split() for line in by_operator.splitlines()[1:] if line and line != str(picture)]
    assert max(float(row[1]) for row in rows) >= 1, "pods were placed"
    assert max(float(row[2]) for row in rows) > 0, "CPU was committed to them"
    assert picture.stat().st_size > 0


BY_HAND, WAITING, WINDOW = 20, 4, 2
"""Pods put on the node; pods like them that wait for it; pods of about a core each that a node of one CPU runs."""


def overload_pod(index: int, node: str) -> dict[str, object]:
    """The first pods are bound to the node by hand; the others are for Concerto, and fit no other node."""
    command = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
    spec = {"restartPolicy": "Never", **pod_spec(command)}
    spec |= (
        {"nodeName": node}
        if index < BY_HAND
        else {"schedulerName": "concerto", "nodeSelector": {"kubernetes.io/hostname": node}}
    )
    metadata = {"name": f"overload-{index}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def succeeded(recorder: Recorder) -> list[PodTimes]:
    """Times of the pods of `overload_pod` that have succeeded."""
    return times_of_pods(p for p in recorder.latest("pods") if p["metadata"]["name"].startswith("overload-"))


def live_at(pods: list[PodTimes], at: float) -> int:
    """Pods that are on the node, and whose container has not ended."""
    return sum(pod.scheduled <= at < pod.ended for pod in pods)


def test_a_node_that_20_pods_were_put_on_by_hand_drains_to_its_window_within_two_pod_lives(bench: Bench) -> None:
    cluster, node = bench.system.cluster, "compare-2"
    with Recorder(str(cluster.kubeconfig)) as recorder:
        cluster.apply(*(overload_pod(index, node) for index in range(BY_HAND + WAITING)))
        eventually("all pods have succeeded", lambda: len(succeeded(recorder)) == BY_HAND + WAITING)
        by_name = {p["metadata"]["name"]: p for p in recorder.latest("pods")}
    by_hand = times_of_pods(by_name[f"overload-{index}"] for index in range(BY_HAND))
    placed = times_of_pods(by_name[f"overload-{index}"] for index in range(BY_HAND, BY_HAND + WAITING))
    cluster.kubectl("delete", "pods", "-n", "default", "--all")
    assert recorder.verify().violations == []
    pods = [*by_hand, *placed]
    began = max(pod.scheduled for pod in by_hand)
    assert live_at(pods, began) >= BY_HAND, "it was overloaded"
    life = sum(pod.ended - pod.scheduled for pod in by_hand) / BY_HAND
    drained = min(pod.ended for pod in pods if live_at(pods, pod.ended) <= WINDOW)
    assert drained - began <= 2 * life
    for pod in placed:
        # Times are whole seconds: what ended in the same second may have ended before
        live = [other for other in pods if other.scheduled < pod.scheduled < other.ended]
        assert len(live) <= WINDOW, "no end was replaced while there were too many"
