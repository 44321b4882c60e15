"""The operator dies, or is stopped for longer than its Lease, at each named point: nothing is lost or bound twice.

`CONCERTO_FAILPOINT_TURNS=20` repeats every point that often (by hand, `make chaos`). By default the operator dies once
at each, and is stopped once at those after which a write would be late.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.testbed.clusters import Cluster
from e2e.testbed.failpoints import Failpoint
from e2e.testbed.processes import QUICK_LEASE, Process, operator_process
from e2e.testbed.recorder import Recorder
from e2e.testbed.requirements import require_local_plane
from e2e.testbed.system import System, busybox_job, hollow_nodes
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

TURNS = int(os.environ.get("CONCERTO_FAILPOINT_TURNS", "0"))
PODS = 6
POINTS = (
    "before-placement-record", "after-placement-record", "after-store", "before-binding", "after-binding",
    "before-discard", "after-discard",
)  # fmt: skip
ENDS = [(point, "kill") for point in POINTS]
ENDS += [(point, "stop") for point in (POINTS if TURNS else ("before-placement-record", "before-binding"))]
STOPPED_SECONDS = 5.0
"""Longer than the short Leases of these operators last."""


class Replicas:
    """Two operators, of which one leads."""

    def __init__(self, system: System, operators: list[Process]) -> None:
        self.system = system
        self.operators = operators

    def stopped(self) -> list[int]:
        """PIDs of operators that are stopped."""
        pids = [operator.pid for operator in self.operators if operator.is_running()]
        return [pid for pid in pids if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"]


@pytest.fixture(scope="module")
def replicas(concerto_cluster, failpoint: Failpoint) -> Iterator[Replicas]:
    plane = require_local_plane(concerto_cluster)
    operators = [
        operator_process(plane, plane.logs, f"operator-failpoint-{n}", QUICK_LEASE, restarts=True) for n in range(2)
    ]
    with hollow_nodes(plane, 4):
        for operator in operators:
            failpoint.add_to(operator)
            operator.start()
        try:
            for operator in operators:
                operator.wait_ready()
            names = [n["metadata"]["name"] for n in plane.get("nodes")["items"]]
            yield Replicas(System(plane, names, None, {}, operators[0], plane.logs), operators)
        finally:
            for pid in [operator.pid for operator in operators if operator.is_running()]:
                os.kill(pid, signal.SIGCONT)
            for operator in operators:
                operator.stop()


def are_bound(cluster: Cluster, namespace: str, job: str) -> bool:
    """Whether all pods of the Job that there are have a node."""
    pods = cluster.get("pods", "-n", namespace, "-l", f"job={job}")["items"]
    return all(pod["spec"].get("nodeName") for pod in pods)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("point", "action"), ENDS)
def test_nothing_is_lost_where_the_operator_ends(replicas, failpoint, namespace, say, point, action):
    cluster = replicas.system.cluster
    with Recorder(str(cluster.kubeconfig)) as recorder:
        for turn in range(TURNS or 1):
            failpoint.set(point, action)
            cluster.apply(busybox_job(f"turn-{turn}", namespace, "job", ["true"], pods=PODS, parallelism=PODS))
            eventually(f"{point} is reached", failpoint.is_reached, PATIENCE_SECONDS)
            if action == "stop":
                time.sleep(STOPPED_SECONDS)  # what the other replica does meanwhile is what is tested
                for pid in replicas.stopped():
                    os.kill(pid, signal.SIGCONT)
            eventually(
                f"the pods of turn {turn} are bound",
                lambda turn=turn: are_bound(cluster, namespace, f"turn-{turn}"),
                5 * PATIENCE_SECONDS,
            )
        left = replicas.system.wait_no_batches()
        recorder.stop()
        verdict = recorder.verify()
    say(
        f"failpoint {point}, {action}, {TURNS or 1} times: {verdict.pods_bound} pods, "
        f"{len(verdict.rebound)} bound twice, {len(verdict.late)} late writes"
    )
    assert not left, f"placement records are left behind: {left}"
    assert not verdict.rebound
    assert not verdict.late, "\n".join(verdict.late)
    assert not verdict.violations, "\n".join(verdict.violations)
    assert verdict.pods_bound >= PODS * (TURNS or 1)


def test_a_leader_that_stood_still_goes_on_where_nobody_has_taken_its_lease_over(replicas, failpoint, namespace):
    cluster = replicas.system.cluster
    failpoint.set("after-placement-record", "stop")
    cluster.apply(busybox_job("alone", namespace, "job", ["true"], pods=PODS, parallelism=PODS))
    eventually("the leader stands still", lambda: failpoint.is_reached() and replicas.stopped(), PATIENCE_SECONDS)
    leader = replicas.stopped()
    for pid in {operator.pid for operator in replicas.operators if operator.is_running()}.difference(leader):
        os.kill(pid, signal.SIGSTOP)
    standing = replicas.stopped()
    time.sleep(STOPPED_SECONDS)
    for pid in leader:
        os.kill(pid, signal.SIGCONT)
    eventually(
        "its pods are bound",
        lambda: are_bound(cluster, namespace, "alone"),
        PATIENCE_SECONDS,
    )
    for pid in standing:
        os.kill(pid, signal.SIGCONT)
    assert not replicas.system.wait_no_batches()
