"""A whole Concerto to look at and to break: cluster, nodes, agents, operator. Used by the demo and by the tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster, ClusterError, LocalControlPlane
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNode, RealNodes, real_nodes_available
from e2e.testbed.processes import Process, agent_process, operator_process
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

OVERLAY = REPOSITORY / "manifests" / "overlays" / "local"
SAMPLES = REPOSITORY / "manifests" / "samples"

Say = Callable[[str], None]


@dataclass
class System:
    """What is running.

    Attributes:
        cluster: the API server.
        node_names: the nodes that pods can run on.
        real: the real nodes, if they are real.
        agents: by node.
        operator: the operator, where it is a process.
        logs: folder of the components' logs.
        overlay: what was applied.
    """

    cluster: Cluster
    node_names: list[str]
    real: RealNodes | None
    agents: dict[str, Process]
    operator: Process | None
    logs: Path
    overlay: Path = OVERLAY

    def wait_measured(self) -> None:
        """Return once every node's agent has published a capacity that is Ready.

        Raises:
            AssertionError: one did not in time; with what is known of it.
        """

        def missing() -> list[str]:
            return [n for n in self.node_names if not _is_ready(self.cluster, n)]

        def describe() -> str:
            logs = [self.agents[n].child.log_tail(5) for n in missing() if n in self.agents]  # type: ignore[union-attr]
            return "\n".join([f"the capacity of {', '.join(missing())} is Ready", *logs])

        eventually(describe, lambda: not missing())

    def batches(self) -> list[str]:
        """Names of the in-flight PodReservations."""
        found = self.cluster.get("pres", "-n", "concerto-system", "-l", "concerto.dev/in-flight")
        return [item["metadata"]["name"] for item in found["items"]]

    def wait_no_batches(self) -> list[str]:
        """Wait until no in-flight reservation is left; returns those that are."""
        with contextlib.suppress(AssertionError):
            eventually("no reservation is left", lambda: not self.batches())
        return self.batches()

    def diff(self) -> str:
        """`kubectl diff -k` of what was applied: empty if no other writer has changed it."""
        return self.cluster.kubectl("diff", "-k", str(self.overlay), check=False)


def _is_ready(cluster: Cluster, node: str) -> bool:
    text = cluster.kubectl("get", "ncap", node, "-o", "json", "--ignore-not-found")
    conditions = (json.loads(text).get("status") or {}).get("conditions") or () if text.strip() else ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def install(cluster: Cluster) -> None:
    """Apply manifests/overlays/local: kinds, rights, policies and the default profile."""
    # A kind and an object of that kind do not go into one apply: the first pass leaves such objects out
    cluster.kubectl("apply", "-k", str(REPOSITORY / "crds"))
    cluster.wait("--for=condition=Established", "crd", "--all")
    cluster.kubectl("apply", "-k", str(OVERLAY))


def busybox_job(
    name: str, namespace: str, label: str, command: Sequence[str], *, pods: int, parallelism: int
) -> dict[str, Any]:
    """A Job of ours to place: pods without requests, labelled ``label: name``, that end with their command."""
    container = {"name": "c", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": list(command)}
    spec = {
        "schedulerName": "concerto",
        "restartPolicy": "Never",
        "dnsPolicy": "Default",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "completions": pods,
            "parallelism": parallelism,
            "backoffLimit": 1000,
            "template": {"metadata": {"labels": {label: name}}, "spec": spec},
        },
    }


def agent_on(system_cluster: Cluster, node: RealNode, logs: Path, extra: Sequence[str] = ()) -> Process:
    """The agent of a real node: in the node's cgroup, measuring just that (nodes share this machine).

    Args:
        system_cluster: where.
        node: which it measures.
        logs: folder of its log.
        extra: further arguments.
    """
    scope = ["--scope", "cgroup", "--cgroup", node.cgroup]
    return agent_process(
        system_cluster,
        logs,
        node.name,
        [*scope, "--memory-capacity", str(node.spec.memory_bytes), *node.kubelet_flags, *extra],
        wrap=node.in_cgroup,
        serves_metrics=True,
    )


@contextlib.contextmanager
def real_system(
    cluster: LocalControlPlane,
    say: Say,
    names: Sequence[str] = ("n1", "n2"),
    *,
    operator_flags: Sequence[str] = (),
    operator_restarts: bool = False,
    outlives_us: bool = False,
) -> Iterator[System]:
    """Real nodes with their agents, and an operator; the caller has installed Concerto.

    Args:
        cluster: where.
        say: called with what is done.
        names: of the nodes.
        operator_flags: further ones.
        operator_restarts: see `Process`.
        outlives_us: agents and operator go on when this process ends without leaving the context.

    Raises:
        NodeError: real nodes cannot run here.
    """
    with contextlib.ExitStack() as stack:
        say(f"nodes: {', '.join(names)}: kubelet, containerd and runc in namespaces (10 s)")
        nodes = stack.enter_context(RealNodes(cluster, names))
        nodes.wait_ready()
        image = build_image(cluster.work_dir / "busybox.tar", BUSYBOX_IMAGE)
        for node in nodes:
            node.import_image(image)
        operator = operator_process(cluster, cluster.logs, extra=operator_flags, restarts=operator_restarts)
        agents = {node.name: agent_on(cluster, node, cluster.logs) for node in nodes}
        system = System(cluster, list(names), nodes, agents, operator, cluster.logs)
        for process in (operator, *agents.values()):
            process.start(outlives_us=outlives_us)
            stack.callback(process.stop)
        say("agents and operator: started, each with its own service account token (5 s to the first capacity)")
        operator.wait_ready()
        system.wait_measured()
        try:
            yield system
        except GeneratorExit:  # the context was not left, but forgotten
            if outlives_us:
                stack.pop_all()
            raise


@contextlib.contextmanager
def hollow_nodes(cluster: Cluster, count: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Simulated nodes, played by a process of their own; returns once they are there."""
    command = [
        sys.executable,
        "-m",
        "e2e.testbed.hollow",
        "--nodes",
        str(count),
        "--kubeconfig",
        str(cluster.kubeconfig),
    ]
    command.append(f"--with-parent={os.getpid()}")
    with (cluster.work_dir / "hollow.log").open("a") as log:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise ClusterError(f"the simulated nodes did not come up: {cluster.work_dir / 'hollow.log'}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def hollow_system(
    cluster: Cluster,
    say: Say,
    count: int,
    *arguments: str,
    operator_flags: Sequence[str] = (),
    operator_restarts: bool = False,
) -> Iterator[System]:
    """Simulated nodes, whose measurements come from the process that plays them, and an operator."""
    say(f"nodes: {count} simulated ones")
    with hollow_nodes(cluster, count, *arguments), contextlib.ExitStack() as stack:
        logs = getattr(cluster, "logs", cluster.work_dir)
        operator = operator_process(cluster, logs, extra=operator_flags, restarts=operator_restarts).start()
        stack.callback(operator.stop)
        nodes = [n["metadata"]["name"] for n in cluster.get("nodes")["items"]]
        system = System(cluster, nodes, None, {}, operator, logs)
        operator.wait_ready()
        yield system


def can_run_real_nodes(cluster: Cluster) -> tuple[bool, str]:
    """Whether real nodes can join this cluster, and if not, why."""
    if not isinstance(cluster, LocalControlPlane):
        return False, f"{cluster.origin} has nodes of its own"
    return real_nodes_available(cluster.binaries)
