"""`make compare-server`: how long a real HTTP server takes to answer, alone and beside Jobs of both schedulers.

The server is on one of two real nodes, and gets requests at a steady rate. Jobs come one after the other, in
alternation: placed by Concerto (pods without requests), and by the real kube-scheduler at CPU requests. Writes
build/compare-server.json after each run, and a table.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concerto.simulation.scheduling.evaluate import write_section
from e2e.compare.commands import exit_status, load, measured, origin, save, say
from e2e.compare.latency import ALONE, ServerRun, answers_between, goal, table
from e2e.compare.load_process import running_load
from e2e.compare.measure import Bench
from e2e.compare.workloads import CONCERTO, WORKLOADS, Workload
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster, LocalControlPlane, find_binaries
from e2e.testbed.images import BUSYBOX_IMAGE
from e2e.testbed.nodes import RealNode
from e2e.testbed.system import can_run_real_nodes, install, real_system

RESULTS = REPOSITORY / "build" / "compare-server.json"
DOCS = REPOSITORY / "docs" / "evaluation.md"
NAMESPACE = "compare-server"
_NAME, _PORT = "server", 8080


def server_pod(node: str, request: str) -> dict[str, Any]:
    """A pod with busybox' HTTP server, bound to the node by hand; ``request`` is its CPU request, or empty."""
    command = f"mkdir -p /tmp/www; echo hello >/tmp/www/index.html; exec httpd -f -p {_PORT} -h /tmp/www"
    container: dict[str, Any] = {
        "name": "httpd",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
    }
    if request:
        container["resources"] = {"requests": {"cpu": request}}
    spec = {
        "nodeName": node,
        "dnsPolicy": "Default",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _NAME, "namespace": NAMESPACE}, "spec": spec}


@dataclass(frozen=True)
class Server:
    """A server that runs.

    Attributes:
        node: where.
        address: of its pod.
        request: CPU request of its pod; empty: none.
    """

    node: RealNode
    address: str
    request: str

    @contextmanager
    def under_load(self, lines: list[str], per_second: float = 40.0) -> Iterator[None]:
        """Send requests at a steady rate; ``lines`` gets what http_load prints: see `running_load`."""
        arguments = [self.address, str(_PORT), "--per-second", str(per_second)]
        with running_load(self.node, "e2e.compare.http_load", arguments, lines):
            yield


@contextmanager
def served(cluster: Cluster, node: RealNode, request: str) -> Iterator[Server]:
    """A server on the node; it is removed at the end."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    try:
        cluster.apply(server_pod(node.name, request))
        cluster.wait("--for=condition=Ready", f"pod/{_NAME}", "-n", NAMESPACE)
        address = cluster.get("pod", "-n", NAMESPACE, _NAME)["status"]["podIP"]
        yield Server(node, address, request)
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE)


@dataclass(frozen=True)
class BesideServer:
    """Makes runs beside a server.

    Attributes:
        bench: makes the Jobs' runs.
        server: gets the requests.
        workload: of the Jobs.
        pods: of each Job.
        alone_seconds: how long the server gets requests without a Job.
    """

    bench: Bench
    server: Server
    workload: Workload
    pods: int
    alone_seconds: float = 30.0

    def run(self, scheduler: str, number: int) -> tuple[ServerRun, Sequence[str]]:
        """Send the server requests, alone or beside a Job; also what went wrong in the Job's run."""
        lines: list[str] = []
        job_seconds, wrong, pods = None, list[str](), 0
        with self.server.under_load(lines):
            began = time.time()
            if scheduler == ALONE:
                time.sleep(self.alone_seconds)
                end = began + self.alone_seconds
            else:
                run = self.bench.run(self.workload, self.pods, scheduler, number)
                job_seconds, pods = run.job_seconds, self.pods
                wrong += [*run.wrong, *([] if job_seconds is not None else [str(run)])]
                end = began + (job_seconds or 0.0)
        failed = lines.pop() == "failed"
        found = answers_between(lines, began, end)
        if failed:
            wrong.append("the server did not answer a request")
        return ServerRun(scheduler, number, self.server.request, pods, job_seconds, found, failed), wrong


def order(requests: Sequence[str], number: int) -> list[str]:
    """What is run in a round: each begins with another, so that none has the same neighbour's aftermath each time."""
    all_of_them = [ALONE, CONCERTO, *requests]
    turn = (number - 1) % len(all_of_them)
    return all_of_them[turn:] + all_of_them[:turn]


def measure(chosen: argparse.Namespace, runs: list[ServerRun]) -> list[str]:
    """Make the runs, adding each to ``runs`` and to build/compare-server.json; returns what went wrong."""
    wrong: list[str] = []
    control_plane = LocalControlPlane(find_binaries(say), scheduler=True)
    possible, reason = can_run_real_nodes(control_plane)
    if not possible:
        return [f"real nodes are needed: {reason}"]
    with control_plane:
        install(control_plane)
        with real_system(control_plane, say) as system:
            assert system.real is not None, "the nodes are real"
            node = next(iter(system.real))
            with served(system.cluster, node, chosen.server_request) as server:
                made = BesideServer(Bench(system, say), server, WORKLOADS[chosen.workload], chosen.pods)
                for number in range(1, chosen.rounds + 1):
                    for scheduler in order([r for r in chosen.requests.split(",") if r], number):
                        run, problems = made.run(scheduler, number)
                        say(f"round {number}, {scheduler}: {run}")
                        runs.append(run)
                        save(RESULTS, runs)
                        wrong += [f"round {number}, {scheduler}: {problem}" for problem in problems]
    return wrong


def conclude(runs: Sequence[ServerRun], docs: Path | None) -> None:
    """Print the table and the goal, and put both into the docs if asked to."""
    lines = table(runs)
    sentence, holds = goal(runs)
    print("\n".join(["", *lines, "", f"{'holds ' if holds else 'MISSED'} {sentence}"]))
    if docs is not None:
        request = runs[0].server_request or "none"
        where = origin("make compare-server", RESULTS) + f". CPU request of the server: {request}."
        write_section(docs, "server", [where, "", *lines, "", f"- {sentence}{'' if holds else ': **missed**'}"])


def main() -> int:
    """The command line; the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m e2e.compare.beside_server", description=(__doc__ or ""))
    parser.add_argument("--workload", default="waiting", choices=WORKLOADS)
    parser.add_argument("--pods", type=int, default=20, help="of each Job")
    parser.add_argument("--requests", default="200m,300m", help="CPU requests for kube-scheduler, comma-separated")
    parser.add_argument("--server-request", default="100m", help="CPU request of the server's pod; empty: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="measure nothing: the table of build/compare-server.json")
    parser.add_argument("--docs", nargs="?", type=Path, const=DOCS, help="put the table into docs/evaluation.md")
    chosen = parser.parse_args()
    runs = load(RESULTS, ServerRun) if chosen.report else []
    wrong = [] if chosen.report else measured(lambda: measure(chosen, runs))
    if {ALONE, CONCERTO} <= {run.scheduler for run in runs}:
        conclude(runs, chosen.docs)
    return exit_status(wrong, has_runs=bool(runs))


if __name__ == "__main__":
    sys.exit(main())
