"""Both schedulers at work: pods run to their end, arrive at a steady rate, or nothing happens at all."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from concerto.api.timestamps import parse_timestamp
from concerto.kube import ClusterConfig, Session
from concerto.kube.resources import PODS
from e2e.bench.bound import bound_times
from e2e.bench.pods import create_pods, make_namespace, pod, remove, wait_for_phase
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.processes import cpu_seconds, operator_process, rss_mib
from e2e.testbed.recorder import Recorder
from e2e.testbed.system import hollow_nodes

Say = Callable[[str], None]
# what each is called, and the schedulerName of its pods
SCHEDULERS = {"kube-scheduler": "default-scheduler", "concerto": "concerto"}


@contextmanager
def _running(control_plane: LocalControlPlane, name: str) -> Iterator[int]:
    """One of the two schedulers, ready and alone; gives its PID."""
    if name == "concerto":
        operator = operator_process(control_plane, control_plane.logs, "operator-running").start()
        try:
            operator.wait_ready()
            yield operator.pid
        finally:
            operator.stop()
        return
    control_plane.start_scheduler()
    try:
        yield control_plane.children["kube-scheduler"].pid
    finally:
        control_plane.stop_scheduler()


def run_through(control_plane: LocalControlPlane, nodes: int, pods: int, say: Say) -> dict[str, Any]:
    """The same pods placed and run to their end by both, on simulated nodes that measure themselves.

    Every pod must succeed; of Concerto's placements an independent recorder recomputes each.
    """
    say(f"{pods} pods run through on {nodes} simulated, measured nodes of 4 cores (pi-2000; 2-3 min)")
    figures: dict[str, Any] = {}
    with hollow_nodes(control_plane, nodes):
        for name, scheduler_name in SCHEDULERS.items():
            with _running(control_plane, name) as pid, Recorder(str(control_plane.kubeconfig)) as recorder:
                time.sleep(8)  # capacities are published and known
                cpu_before = cpu_seconds(pid)
                took, completions = asyncio.run(_run_through(control_plane, f"through-{name}", scheduler_name, pods))
                cpu, rss = cpu_seconds(pid) - cpu_before, rss_mib(pid)
            figures[name] = {
                "pods_succeeded": len(completions),
                "jct_s": took,
                "pct_mean_s": statistics.fmean(completions),
                "pct_std_s": statistics.pstdev(completions),
                "cpu_ms_per_pod": 1000 * cpu / pods,
                "rss_mib": rss,
            }
            said = (
                f"  {name:<15} all {len(completions)} succeeded in {took:.1f} s, pod completion "
                f"{figures[name]['pct_mean_s']:.1f} ± {figures[name]['pct_std_s']:.1f} s, "
                f"{1000 * cpu / pods:.2f} ms CPU/pod, {rss:.0f} MiB"
            )
            if name == "concerto":
                verdict = recorder.verify()
                figures[name]["not_allowed"] = len(verdict.violations)
                said += (
                    f"; {verdict.assignments} assignments, {len(verdict.violations)} beyond what the node could take"
                )
            say(said)
    return figures


async def _run_through(
    control_plane: LocalControlPlane, namespace: str, scheduler: str, pods: int
) -> tuple[float, list[float]]:
    """Seconds until the last pod has succeeded, and each pod's from its start to its end (whole seconds)."""
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        await make_namespace(session, namespace)
        began = time.monotonic()
        await create_pods(session, namespace, scheduler, pods)
        await wait_for_phase(session, PODS.path(namespace), "Succeeded", 400, pause_seconds=0.2)
        took = time.monotonic() - began
        listed = await session.list(PODS.path(namespace))
        ends = [p["status"]["containerStatuses"][0]["state"]["terminated"] for p in listed["items"]]
        await remove(session, namespace)
    return took, [parse_timestamp(e["finishedAt"]) - parse_timestamp(e["startedAt"]) for e in ends]


def steady(control_plane: LocalControlPlane, nodes: int, seconds: float, say: Say) -> dict[str, Any]:
    """What an idle cluster of publishing nodes costs the operator and the API server."""
    say(f"{nodes} publishing nodes with nothing to do, {seconds:.0f} s")
    with hollow_nodes(control_plane, nodes):
        operator = operator_process(control_plane, control_plane.logs, "operator-steady").start()
        try:
            operator.wait_ready()
            time.sleep(30)  # the nodes warm up
            cpu, writes, began = cpu_seconds(operator.pid), telemetry_writes(control_plane), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            figures = {
                "operator_cpu_percent": 100 * (cpu_seconds(operator.pid) - cpu) / took,
                "operator_rss_mib": rss_mib(operator.pid),
                "capacity_and_subspace_writes_per_second": (telemetry_writes(control_plane) - writes) / took,
            }
        finally:
            operator.stop()
    say(
        f"  operator {figures['operator_cpu_percent']:.1f} % of a core, {figures['operator_rss_mib']:.0f} MiB; "
        f"{figures['capacity_and_subspace_writes_per_second']:.1f} status writes/s of all agents and the operator"
    )
    return figures


# A pod that waits for 5 s and computes for 4, for ever: three of them keep a node of four cores at a third on average,
# and its load is never the same for long
_SERVICE = {"wait-seconds": "5", "core-seconds": "4", "bursts": "0"}
_PODS_A_NODE = 3
_BUDGET = 0.2


def busy(
    control_plane: LocalControlPlane, nodes: int, seconds: float, say: Say, *, by_kind: bool = True
) -> dict[str, Any]:
    """What agents of busy nodes write: every node runs services whose load comes and goes."""
    how = "by kind" if by_kind else "by units"
    say(f"{nodes} busy nodes with {_PODS_A_NODE} pods each, placement {how}, {seconds:.0f} s")
    with hollow_nodes(control_plane, nodes, "--kinds"):
        flags = [] if by_kind else ["--no-costs-by-kind"]
        operator = operator_process(control_plane, control_plane.logs, "operator-busy", flags).start()
        try:
            operator.wait_ready()
            namespace = f"busy-{nodes}-{how.replace(' ', '-')}"
            created = asyncio.run(_run_services(control_plane, namespace, nodes))
            time.sleep(60)  # what the pods' kind takes is known everywhere
            cpu, writes, began = cpu_seconds(operator.pid), telemetry_writes(control_plane), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            written = (telemetry_writes(control_plane) - writes) / took
            figures = {
                "pods": created,
                "operator_cpu_percent": 100 * (cpu_seconds(operator.pid) - cpu) / took,
                "operator_rss_mib": rss_mib(operator.pid),
                "capacity_and_subspace_writes_per_second": written,
                "writes_per_second_and_node": written / nodes,
            }
            asyncio.run(_remove(control_plane, namespace))
        finally:
            operator.stop()
    say(
        f"  {written:.0f} status and snapshot writes/s in all, {figures['writes_per_second_and_node']:.3f} a node "
        f"(budget {_BUDGET}); operator {figures['operator_cpu_percent']:.1f} % of a core, "
        f"{figures['operator_rss_mib']:.0f} MiB"
    )
    return figures


async def _run_services(control_plane: LocalControlPlane, namespace: str, nodes: int) -> int:
    """Create the services' pods, bound to their nodes from the start; returns how many run."""
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        await make_namespace(session, namespace)
        at_a_time = asyncio.Semaphore(16)

        async def create(name: str, node: str) -> None:
            made = pod(namespace, name, "default-scheduler")
            made["metadata"]["annotations"] = {f"hollow.concerto.dev/{key}": value for key, value in _SERVICE.items()}
            made["spec"]["nodeName"] = node
            async with at_a_time:
                await session.create(PODS.path(namespace), made)

        names = [(f"s-{index:05d}", f"hollow-{index % nodes:04d}") for index in range(nodes * _PODS_A_NODE)]
        await asyncio.gather(*(create(*each) for each in names))
        await wait_for_phase(session, PODS.path(namespace), "Running", 400, pause_seconds=0.5)
        return len(names)


async def _remove(control_plane: LocalControlPlane, namespace: str) -> None:
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        await remove(session, namespace)


def telemetry_writes(control_plane: LocalControlPlane) -> float:
    """Writes of our telemetry kinds that the API server has counted."""
    counted = re.compile(r'apiserver_request_total\{.*resource="(nodecapacities|subspacesnapshots)".*verb="PATCH"')
    lines = control_plane.kubectl("get", "--raw", "/metrics").splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if counted.match(line))


def arrivals(control_plane: LocalControlPlane, nodes: int, per_second: float, pods: int, say: Say) -> dict[str, Any]:
    """Creation-to-bound time at a steady rate of arrivals, for both."""
    say(f"{pods} pods at {per_second:.0f}/s over {nodes} nodes: creation to bound")
    figures: dict[str, Any] = {}
    with hollow_nodes(control_plane, nodes, "--api-only"):
        for name, scheduler_name in SCHEDULERS.items():
            with _running(control_plane, name):
                time.sleep(3)
                times = asyncio.run(_arrive(control_plane, f"arrive-{name}", scheduler_name, per_second, pods))
            ordered = sorted(times)
            p50, p99 = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
            figures[name] = {"p50_ms": 1000 * p50, "p99_ms": 1000 * p99}
            say(f"  {name:<15} median {1000 * p50:.0f} ms, 99th percentile {1000 * p99:.0f} ms")
    return figures


async def _arrive(
    control_plane: LocalControlPlane, namespace: str, scheduler: str, per_second: float, pods: int
) -> list[float]:
    """Seconds from the answer to each creation until a watch shows the pod bound."""
    created: dict[str, float] = {}
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        await make_namespace(session, namespace)

        async def create(name: str) -> None:
            await session.create(PODS.path(namespace), pod(namespace, name, scheduler))
            created[name] = time.monotonic()

        async with bound_times(session, namespace) as bound:
            tasks = []
            for index in range(pods):
                tasks.append(asyncio.create_task(create(f"a-{index:05d}")))
                await asyncio.sleep(1.0 / per_second)
            await asyncio.gather(*tasks)
            await bound.wait(set(created), 60)
        await remove(session, namespace)
    # A pod may be seen bound before the answer to its creation has come back
    return [max(0.0, bound.at[name] - at) for name, at in created.items() if name in bound.at]
