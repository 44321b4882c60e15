"""Pods bound per second, and what that costs, beside the real kube-scheduler on the same cluster in the same run.

A backlog of pods is there before a scheduler is started; the clock runs from its start to the last pod bound. Nodes are
API objects whose status is written once, as idle; the pods never start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from concerto.kube import ClusterConfig, Session
from concerto.kube.resources import POD_RESERVATIONS, PODS
from e2e.bench.pods import create_pods, make_namespace, remove
from e2e.bench.profile import Profiler
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.processes import NAMESPACE, Process, cpu_seconds, operator_process, rss_mib
from e2e.testbed.system import hollow_nodes

Say = Callable[[str], None]
# kube-scheduler takes minutes for PreemptionBasic on 5,000 nodes
_MAX_SECONDS = 900.0


@dataclass(frozen=True)
class Throughput:
    """One scheduler on one backlog.

    Attributes:
        scheduler: whose figures these are.
        nodes: how many there were.
        pods: how many were bound.
        seconds: from the scheduler's start to the last pod bound.
        first_seconds: from its start to the first pod bound (start-up, reading the cluster).
        pods_per_second: over all of ``seconds``.
        cpu_ms_per_pod: CPU time of the scheduler's process until all events were out, start-up included.
        start_cpu_ms_per_pod: of that, until the first pod was bound: start-up, reading the cluster.
        trail_cpu_ms_per_pod: of that, after the last pod was bound: events.
        rss_mib: resident memory at the end.
        events_trail_seconds: from the last binding to the last Scheduled event.
        left_behind: in-flight reservations once nodes had been given time to count the pods (0 without any).
    """

    scheduler: str
    nodes: int
    pods: int
    seconds: float
    first_seconds: float
    pods_per_second: float
    cpu_ms_per_pod: float
    start_cpu_ms_per_pod: float
    trail_cpu_ms_per_pod: float
    rss_mib: float
    events_trail_seconds: float
    left_behind: int = 0

    def __str__(self) -> str:
        return (
            f"{self.scheduler:<15} {self.pods_per_second:6.0f} pods/s "
            f"({self.seconds:.1f} s, first after {self.first_seconds:.1f} s), "
            f"{self.cpu_ms_per_pod:.2f} ms CPU/pod ({self.start_cpu_ms_per_pod:.2f} before the first, "
            f"{self.trail_cpu_ms_per_pod:.2f} after the last), {self.rss_mib:.0f} MiB, "
            f"events {self.events_trail_seconds:.1f} s behind"
        )


async def unbound(session: Session, namespace: str) -> list[str]:
    """Names of the pods that are not bound. The API server sends all of them whole: ask seldom."""
    params = {"fieldSelector": "spec.nodeName=", "resourceVersion": "0"}
    return [pod["metadata"]["name"] for pod in (await session.get(PODS.path(namespace), params=params))["items"]]


async def is_bound(session: Session, namespace: str, name: str) -> bool:
    """Whether one pod is bound; cheap for the API server."""
    pod = await session.get(PODS.path(namespace, name), params={"resourceVersion": "0"})
    return bool(pod["spec"].get("nodeName"))


async def any_bound(session: Session, namespace: str) -> bool:
    """Whether one pod is bound."""
    params = {"fieldSelector": "spec.nodeName!=", "limit": "1", "resourceVersion": "0"}
    return bool((await session.get(PODS.path(namespace), params=params))["items"])


async def scheduled_events(session: Session, namespace: str) -> int:
    """Scheduled events written so far."""
    path = f"/api/v1/namespaces/{namespace}/events"
    params = {"fieldSelector": "reason=Scheduled", "limit": "1"}
    answer = await session.get(path, params=params)
    found = len(answer["items"])
    remaining = answer["metadata"].get("remainingItemCount")
    if found and answer["metadata"].get("continue") and remaining is None:
        whole = await session.list(path, field_selector="reason=Scheduled")
        return len(whole["items"])
    return found + (remaining or 0)


@dataclass(frozen=True)
class Candidate:
    """A scheduler to measure.

    Attributes:
        name: for the result.
        scheduler_name: what the pods ask for.
        start: starts it and returns its PID.
        stop: stops it.
    """

    name: str
    scheduler_name: str
    start: Callable[[], int]
    stop: Callable[[], None]


async def measure(
    control_plane: LocalControlPlane, nodes: int, pods: int, candidate: Candidate, say: Say
) -> Throughput:
    """One scheduler on a fresh backlog, on the nodes that are there."""
    name = candidate.name
    namespace = f"bench-{name}-{nodes}"
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        await make_namespace(session, namespace)
        await create_pods(session, namespace, candidate.scheduler_name, pods)
        await asyncio.sleep(3)  # watches and garbage of the creation settle
        began = time.monotonic()
        pid = candidate.start()
        try:
            first, first_cpu = await bind_all(session, namespace, pid, name)
            bound, bound_cpu = time.monotonic(), cpu_seconds(pid)
            written = -1
            while written < pods and time.monotonic() - bound < 60:
                written = await scheduled_events(session, namespace)
                await asyncio.sleep(0.2)
            trail = time.monotonic() - bound
            cpu, rss = cpu_seconds(pid), rss_mib(pid)
            if written < pods:
                say(f"  {name}: only {written} of {pods} Scheduled events after 60 s")
            left = 0
            if candidate.scheduler_name == "concerto":
                listed = await session.list(POD_RESERVATIONS.path(NAMESPACE))
                left = len(listed["items"])
        finally:
            candidate.stop()
        seconds = bound - began
        await remove(session, namespace)
    result = Throughput(
        name, nodes, pods, seconds, first, pods / seconds,
        1000 * cpu / pods, 1000 * first_cpu / pods, 1000 * (cpu - bound_cpu) / pods, rss, trail, left,
    )  # fmt: skip
    say(f"  {result}")
    return result


async def bind_all(session: Session, namespace: str, pid: int, name: str) -> tuple[float, float]:
    """Wait until every pod is bound; returns the seconds, and the process's CPU seconds, until the first was.

    Raises:
        TimeoutError: pods are left unbound.
    """
    began = time.monotonic()
    first, first_cpu = None, 0.0
    left = await unbound(session, namespace)
    while left:
        if first is None and await any_bound(session, namespace):
            first, first_cpu = time.monotonic() - began, cpu_seconds(pid)
        if time.monotonic() - began > _MAX_SECONDS:
            raise TimeoutError(f"{name}: pods are left unbound after {_MAX_SECONDS:.0f} s")
        await asyncio.sleep(0.05)
        # A list of thousands of pods every 50 ms would take the CPUs from what is measured
        if await is_bound(session, namespace, left[-1]):
            left = await unbound(session, namespace)
    return first or time.monotonic() - began, first_cpu


def candidates(control_plane: LocalControlPlane, operator: Process) -> tuple[Candidate, Candidate]:
    """Both schedulers, kube-scheduler first."""

    def start_kube() -> int:
        control_plane.start_scheduler()
        return control_plane.children["kube-scheduler"].pid

    def start_concerto() -> int:
        operator.start()
        return operator.pid

    return (
        Candidate("kube-scheduler", "default-scheduler", start_kube, control_plane.stop_scheduler),
        Candidate("concerto", "concerto", start_concerto, operator.stop),
    )


def compare(control_plane: LocalControlPlane, nodes: int, pods: int, say: Say) -> dict[str, Any]:
    """Both schedulers, one after the other, on the same nodes."""
    say(f"{pods} pods over {nodes} nodes (API objects), kube-scheduler and Concerto one after the other (2-4 min)")
    with hollow_nodes(control_plane, nodes, "--api-only"):
        operator = operator_process(control_plane, control_plane.logs, f"operator-{nodes}")
        kube, ours = (
            asyncio.run(measure(control_plane, nodes, pods, each, say)) for each in candidates(control_plane, operator)
        )
        where: dict[str, float] = {}
        short = ours.pods_per_second < 1.5 * kube.pods_per_second or ours.cpu_ms_per_pod > 0.5 * kube.cpu_ms_per_pod
        if short and nodes >= 1000:
            profiler: list[Profiler] = []

            def start_profiled() -> int:
                operator.start()
                profiler.append(Profiler(operator.pid, control_plane.work_dir / "py-spy.txt"))
                return operator.pid

            def stop_profiled() -> None:
                where.update(profiler[0].stop())
                operator.stop()

            profiled = Candidate("concerto-profiled", "concerto", start_profiled, stop_profiled)
            asyncio.run(measure(control_plane, nodes, pods, profiled, say))
    ratio = ours.pods_per_second / kube.pods_per_second
    cpu = ours.cpu_ms_per_pod / kube.cpu_ms_per_pod
    say(f"  => {ratio:.2f} x kube-scheduler's pods/s at {cpu:.2f} x its CPU per pod (goal: >= 1.50 at <= 0.50)")
    figures = {"kube": asdict(kube), "concerto": asdict(ours), "throughput_ratio": ratio, "cpu_ratio": cpu}
    if where:
        say("  where the operator's time goes (a second run, with py-spy): ")
        for name, share in where.items():
            say(f"    {100 * share:4.0f} %  {name}")
        figures["operator_time"] = where
    return figures
