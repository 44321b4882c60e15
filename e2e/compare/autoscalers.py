"""`make compare-autoscaling`: a real HTTP service under PredictiveHPA, and its twin under HPA v2, on a real node.

Both twins get little load first, so that both autoscalers have measurements. Then each has its turn: its load rises for
longer than its pods take to start, while the other twin's load stays low. Every pod uses CPU for each request.
Writes build/compare-autoscaling.json after each round, a table and a picture.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from concerto.simulation.scheduling.evaluate import write_section
from e2e.compare.commands import exit_status, load, measured, origin, save, say
from e2e.compare.load_process import running_load
from e2e.compare.measure import PROGRESS_SECONDS
from e2e.compare.paced_load import Phase
from e2e.compare.scaled_runs import HPA, OURS, ScaledRun, draw, requests_of, table
from e2e.compare.shell_work import loop, steps_per_second
from e2e.testbed import REPOSITORY, metrics_server
from e2e.testbed.clusters import Cluster, LocalControlPlane, find_binaries
from e2e.testbed.images import BUSYBOX_IMAGE
from e2e.testbed.nodes import RealNode
from e2e.testbed.phpa_helpers import Object, apply, cpu_metric, deployment, phpa
from e2e.testbed.processes import autoscaler_process
from e2e.testbed.system import can_run_real_nodes, install, real_system

RESULTS = REPOSITORY / "build" / "compare-autoscaling.json"
PICTURE = REPOSITORY / "build" / "compare-autoscaling.png"
DOCS = REPOSITORY / "docs" / "autoscaling.md"
NAMESPACE, NODE = "compare-autoscaling", "scaled"
TWINS = {"hpa": HPA, "phpa": OURS}
_LOOK_SECONDS = 1.5
_PORT, _PATH = 8080, "/cgi-bin/work"
_WORK_SECONDS = 0.025
"""CPU time of a request: a quarter of a second at a tenth of a core."""
_LITTLE = 1.0
"""Requests per second; a pod at its target answers two."""


@dataclass(frozen=True)
class Turn:
    """The load of one turn: it rises to the peak, stays there, and falls.

    Attributes:
        warm_up: seconds of little load before the first turn: forecasts need twelve samples of 15 s.
        rise: seconds.
        hold: seconds.
        fall: seconds.
        peak: requests per second.
    """

    warm_up: float = 195.0
    rise: float = 120.0
    hold: float = 45.0
    fall: float = 15.0
    peak: float = 16.0

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.rise + self.hold + self.fall

    def phases(self, before: float) -> list[Phase]:
        """The load of a twin whose turn begins after ``before`` seconds."""
        return [
            Phase(before, _LITTLE, _LITTLE),
            Phase(self.rise, _LITTLE, self.peak),
            Phase(self.hold, self.peak, self.peak),
            Phase(self.fall, self.peak, _LITTLE),
            Phase(1.0, _LITTLE, _LITTLE),
        ]


_QUICK = Turn(warm_up=20.0, rise=30.0, hold=15.0, fall=5.0, peak=4.0)
"""Too short for pods to help much, so the peak is lower, and one pod nearly keeps up with it."""


def work(steps_per_second: float) -> str:
    """The script that answers a request, for a machine that does so many steps of its loop in a core-second."""
    steps = loop(round(_WORK_SECONDS * steps_per_second))
    return f"#!/bin/sh\n{steps}\necho Content-Type: text/plain\necho\necho done\n"


def service(name: str, startup_seconds: int, script: str) -> Object:
    """A Deployment whose pods answer requests by a script, and are Ready so many seconds after they have started."""
    command = (
        f'mkdir -p /tmp/www/cgi-bin; echo "$WORK" >/tmp/www{_PATH}; chmod +x /tmp/www{_PATH}; '
        f"exec httpd -f -p {_PORT} -h /tmp/www"
    )
    container = {
        "name": "httpd",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "env": [{"name": "WORK", "value": script}],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "100m"}},
        # A pod's address is removed from the load some time after its end, as with kube-proxy
        "lifecycle": {"preStop": {"sleep": {"seconds": 4}}},
        "readinessProbe": {
            "tcpSocket": {"port": _PORT},
            "initialDelaySeconds": startup_seconds,
            "periodSeconds": 1,
            "timeoutSeconds": 5,
        },
    }
    return deployment(
        name,
        1,
        schedulerName="default-scheduler",
        dnsPolicy="Default",
        automountServiceAccountToken=False,
        terminationGracePeriodSeconds=6,
        containers=[container],
    )


def autoscaler(name: str) -> Object:
    """The twin's autoscaler: the same spec in both, all defaults."""
    spec = phpa(name, minReplicas=1, maxReplicas=14, metrics=[cpu_metric(50)])
    del spec["spec"]["prediction"]
    if TWINS[name] == OURS:
        return spec
    return {**spec, "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}


@dataclass(frozen=True)
class Service:
    """A twin that runs, with its load.

    Attributes:
        name: of the Deployment.
        addresses: file that its load reads.
        seen: observations of it: seconds since the epoch, replicas, and those ready.
    """

    name: str
    addresses: Path
    seen: list[tuple[float, int, int]]

    @property
    def replicas(self) -> str:
        """Those of the last observation, in words."""
        _, wanted, ready = self.seen[-1]
        return f"{wanted} replicas, {ready} ready"

    def note(self, objects: Sequence[Object]) -> None:
        """Note replicas and, for the load, which pods are ready, from all Deployments and Pods of the namespace."""
        (found,) = (o for o in objects if o["kind"] == "Deployment" and o["metadata"]["name"] == self.name)
        pods = (o for o in objects if o["kind"] == "Pod" and o["metadata"]["labels"]["app"] == self.name)
        ready = sorted(p["status"]["podIP"] for p in pods if _takes_requests(p))
        self.seen.append((time.time(), found["spec"]["replicas"], len(ready)))
        if not self.addresses.exists() or self.addresses.read_text().split() != ready:
            self.addresses.write_text("\n".join(ready))


def look(cluster: Cluster, twins: Iterable[Service]) -> None:
    """Observe all twins with one command: kubectl takes CPU from the pods."""
    objects = cluster.get("deployments,pods", "-n", NAMESPACE)["items"]
    for twin in twins:
        twin.note(objects)


def _takes_requests(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def under_load(node: RealNode, twin: Service, phases: Sequence[Phase], lines: list[str]) -> Iterator[None]:
    """Send requests to a twin's pods; ``lines`` gets what paced_load prints: see `running_load`."""
    arguments = [str(twin.addresses), str(_PORT), ",".join(map(str, phases)), "--path", _PATH]
    with running_load(node, "e2e.compare.paced_load", arguments, lines):
        yield


def one_round(
    cluster: LocalControlPlane, node: RealNode, number: int, startup_seconds: int, turn: Turn, script: str
) -> list[ScaledRun]:
    """Both twins, each in its turn; a round begins with the other one than the round before."""
    order = list(TWINS) if number % 2 else list(reversed(TWINS))
    cluster.make_namespace(NAMESPACE)
    try:
        twins = {name: Service(name, cluster.work_dir / f"{name}.addresses", []) for name in order}
        apply(cluster, NAMESPACE, *(service(name, startup_seconds, script) for name in order))
        for name in order:
            cluster.wait("--for=condition=Available", f"deployment/{name}", "-n", NAMESPACE)
        look(cluster, twins.values())
        apply(cluster, NAMESPACE, *(autoscaler(name) for name in order))
        before = {name: turn.warm_up + turn.seconds * place for place, name in enumerate(order)}
        printed: dict[str, list[str]] = {name: [] for name in order}
        with ExitStack() as loads:
            began = time.time()
            for name in order:
                loads.enter_context(under_load(node, twins[name], turn.phases(before[name]), printed[name]))
            takes, said = max(before.values()) + turn.seconds, 0.0
            while (passed := time.time() - began) < takes:
                look(cluster, twins.values())
                if passed >= said + PROGRESS_SECONDS:
                    said = passed
                    replicas = ", ".join(f"{TWINS[name]} {twins[name].replicas}" for name in order)
                    say(f"    round {number}, {passed:.0f} of {takes:.0f} s: {replicas}")
                time.sleep(_LOOK_SECONDS)
        runs = []
        for name in order:
            if printed[name].pop() == "failed":
                raise RuntimeError(f"the load of {name} failed; its error is on stderr")
            begin = began + before[name]
            end = begin + turn.seconds
            seen = [(max(at - begin, 0.0), n, r) for at, n, r in _during(twins[name].seen, begin, end)]
            requests = requests_of(printed[name], begin, end)
            runs.append(ScaledRun(TWINS[name], number, startup_seconds, turn.seconds, requests, seen))
        return runs
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE)


def _during(seen: Sequence[tuple[float, int, int]], begin: float, end: float) -> list[tuple[float, int, int]]:
    """The observations between two times, and the last one before."""
    earlier = [each for each in seen if each[0] < begin]
    return earlier[-1:] + [each for each in seen if begin <= each[0] < end]


def measure(chosen: argparse.Namespace, runs: list[ScaledRun]) -> list[str]:
    """Make the rounds, adding their runs to ``runs`` and to build/compare-autoscaling.json; what went wrong."""
    control_plane = LocalControlPlane(find_binaries(say), scheduler=True)
    possible, reason = can_run_real_nodes(control_plane)
    if not possible:
        return [f"real nodes are needed: {reason}"]
    with control_plane:
        install(control_plane)
        with real_system(control_plane, say, [NODE]) as system, metrics_server.start(control_plane, say):
            assert system.real is not None, "the nodes are real"
            script = work(steps_per_second())
            process = autoscaler_process(control_plane, control_plane.logs).start()
            try:
                for number in range(1, chosen.rounds + 1):
                    turn = _QUICK if chosen.quick else Turn()
                    runs += one_round(control_plane, next(iter(system.real)), number, chosen.startup, turn, script)
                    save(RESULTS, runs)
                    for run in runs[-2:]:
                        figures = f"P95 {run.percentile(0.95):.0f} ms, success {run.success_percent:.2f} %"
                        say(f"round {number}, {run.autoscaler}: {figures}, {run.pod_minutes:.1f} pod-minutes")
            finally:
                process.stop()
    return []


def conclude(runs: Sequence[ScaledRun], docs: Path | None) -> None:
    """Print the table, draw the picture, and put the table into the docs if asked to."""
    lines = table(runs)
    print("\n".join(["", *lines]))
    draw(runs, PICTURE)
    say(str(PICTURE))
    if docs is not None:
        where = origin("make compare-autoscaling", RESULTS) + f", {runs[0].startup_seconds:g} s from start to Ready."
        write_section(docs, "real", [where, "", *lines])


def main() -> int:
    """The command line; the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m e2e.compare.autoscalers", description=(__doc__ or ""))
    parser.add_argument("--rounds", type=int, default=1, help="each takes 10 minutes")
    parser.add_argument("--startup", type=int, default=30, help="seconds from a pod's start to Ready")
    parser.add_argument("--quick", action="store_true", help="turns of a minute, to see whether all of it works")
    parser.add_argument("--report", action="store_true", help="measure nothing: the table of the last runs")
    parser.add_argument("--docs", nargs="?", type=Path, const=DOCS, help="put the table into docs/autoscaling.md")
    chosen = parser.parse_args()
    runs = load(RESULTS, ScaledRun) if chosen.report else []
    wrong = [] if chosen.report else measured(lambda: measure(chosen, runs))
    if runs:
        conclude(runs, chosen.docs)
    return exit_status(wrong, has_runs=bool(runs))


if __name__ == "__main__":
    sys.exit(main())
