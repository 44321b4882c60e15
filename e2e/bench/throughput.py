"""Pods bound per second, and what that costs, beside the real kube-scheduler on the same cluster in the same run.

A backlog of pods is there before a scheduler is started; the clock runs from its start to the last pod bound. Nodes are
API objects that say once that they are idle; nobody runs the pods.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from concerto.api.timestamps import parse_timestamp
from concerto.kube import ClusterConfig, Session
from concerto.kube.resources import NAMESPACES, POD_RESERVATIONS, PODS
from e2e.bench.profile import Profiler
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.processes import NAMESPACE, cpu_seconds, operator_process, rss_mib
from e2e.testbed.recorder import Recorder
from e2e.testbed.system import hollow_nodes

Say = Callable[[str], None]
_CREATIONS_IN_FLIGHT = 16


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
        left_behind: in-flight reservations once nodes had been given time to count the pods (0 where there are none).
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


# Of simulated nodes' pods: seed 000's pi-2000, about 2 s of waiting and 4.1 core-seconds of work in one thread
PI_2000 = {"hollow.concerto.dev/wait-seconds": "2", "hollow.concerto.dev/core-seconds": "4.1"}


def pod(namespace: str, name: str, scheduler: str) -> dict[str, Any]:
    """A pod without requests that any node will do for."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": "bench"}, "annotations": PI_2000},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none.invalid/none"}],
        },
    }


async def create_pods(session: Session, namespace: str, scheduler: str, count: int) -> None:
    """Create them as fast as the API server takes them."""
    slots = asyncio.Semaphore(_CREATIONS_IN_FLIGHT)

    async def create(index: int) -> None:
        async with slots:
            await session.create(PODS.path(namespace), pod(namespace, f"p-{index:05d}", scheduler))

    await asyncio.gather(*(create(i) for i in range(count)))


async def any_unbound(session: Session, namespace: str) -> bool:
    """Whether a pod is left that is not bound; cheap for the API server."""
    params = {"fieldSelector": "spec.nodeName=", "limit": "1", "resourceVersion": "0"}
    return bool((await session.get(PODS.path(namespace), params=params))["items"])


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


async def measure(
    control_plane: LocalControlPlane,
    nodes: int,
    pods: int,
    name: str,
    scheduler_name: str,
    start: Callable[[], int],
    stop: Callable[[], None],
    say: Say,
) -> Throughput:
    """One scheduler on a fresh backlog.

    Args:
        control_plane: where; its nodes are there.
        nodes: how many.
        pods: how many.
        name: for the result.
        scheduler_name: what the pods ask for.
        start: starts the scheduler and returns its PID.
        stop: stops it.
        say: told what is done.
    """
    namespace = f"bench-{name}-{nodes}"
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        await session.create(
            NAMESPACES.path(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
        await create_pods(session, namespace, scheduler_name, pods)
        await asyncio.sleep(3)  # watches and garbage of the creation settle
        began = time.monotonic()
        pid = start()
        first, first_cpu = None, 0.0
        try:
            while await any_unbound(session, namespace):
                if first is None and await any_bound(session, namespace):
                    first, first_cpu = time.monotonic() - began, cpu_seconds(pid)
                if time.monotonic() - began > 300:
                    raise TimeoutError(f"{name}: pods are left unbound after 300 s")
                await asyncio.sleep(0.05)
            bound, bound_cpu = time.monotonic(), cpu_seconds(pid)
            written = -1
            while written < pods and time.monotonic() - bound < 60:
                written = await scheduled_events(session, namespace)
                await asyncio.sleep(0.2)
            trail = time.monotonic() - bound
            cpu, rss = cpu_seconds(pid), rss_mib(pid)
            if written < pods:
                say(f"  {name}: only {written} of {pods} Scheduled events")
            left = 0
            if name == "concerto":
                listed = await session.list(POD_RESERVATIONS.path(NAMESPACE))
                left = len(listed["items"])
        finally:
            stop()
        seconds = bound - began
        await remove(session, namespace)
    result = Throughput(
        name, nodes, pods, seconds, first or seconds, pods / seconds,
        1000 * cpu / pods, 1000 * first_cpu / pods, 1000 * (cpu - bound_cpu) / pods, rss, trail, left,
    )  # fmt: skip
    say(
        f"  {name:<15} {result.pods_per_second:6.0f} pods/s "
        f"({seconds:.1f} s, first after {result.first_seconds:.1f} s), "
        f"{result.cpu_ms_per_pod:.2f} ms CPU/pod ({result.start_cpu_ms_per_pod:.2f} before the first, "
        f"{result.trail_cpu_ms_per_pod:.2f} after the last), {rss:.0f} MiB, events {trail:.1f} s behind"
    )
    return result


async def remove(session: Session, namespace: str) -> None:
    """Delete the pods and events, and wait until they are gone: the next scheduler finds the same cluster."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    for path in (PODS.path(namespace), f"/api/v1/namespaces/{namespace}/events"):
        await session.request("DELETE", path, body=body, timeout_seconds=120, attempts=3)
    while (await session.get(PODS.path(namespace), params={"limit": "1"}))["items"]:
        await asyncio.sleep(0.5)
    await session.delete(NAMESPACES.path(name=namespace))


def compare(control_plane: LocalControlPlane, nodes: int, pods: int, say: Say) -> dict[str, Any]:
    """Both schedulers, one after the other, on the same nodes."""
    say(f"{pods} pods over {nodes} nodes (API objects), kube-scheduler and Concerto one after the other (2-4 min)")
    with hollow_nodes(control_plane, nodes, "--api-only"):
        operator = operator_process(control_plane, control_plane.logs, f"operator-{nodes}")

        def start_kube() -> int:
            control_plane.start_scheduler()
            return control_plane.children["kube-scheduler"].pid

        def start_concerto() -> int:
            operator.start()
            return operator.pid

        kube = asyncio.run(
            measure(
                control_plane, nodes, pods, "kube-scheduler", "default-scheduler", start_kube,
                control_plane.stop_scheduler, say,
            )
        )  # fmt: skip
        ours = asyncio.run(
            measure(control_plane, nodes, pods, "concerto", "concerto", start_concerto, operator.stop, say)
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

            asyncio.run(
                measure(control_plane, nodes, pods, "concerto-profiled", "concerto", start_profiled, stop_profiled, say)
            )
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


def run_through(control_plane: LocalControlPlane, nodes: int, pods: int, say: Say) -> dict[str, Any]:
    """The same pods placed and run to their end by both, on simulated nodes that measure themselves.

    Every pod must succeed; of Concerto's placements an independent recorder recomputes each.
    """
    say(f"{pods} pods run through on {nodes} simulated, measured nodes of 4 cores (pi-2000; 2-3 min)")
    figures: dict[str, Any] = {}
    with hollow_nodes(control_plane, nodes):
        for name, scheduler_name in (("kube-scheduler", "default-scheduler"), ("concerto", "concerto")):
            operator = operator_process(control_plane, control_plane.logs, "operator-through")
            if name == "concerto":
                operator.start()
                operator.wait_ready()
            else:
                control_plane.start_scheduler()
            time.sleep(8)  # capacities are published and known
            recorder = Recorder(str(control_plane.kubeconfig)).start()
            pid = operator.pid if name == "concerto" else control_plane.children["kube-scheduler"].pid
            cpu_before = cpu_seconds(pid)
            try:
                took, completions = asyncio.run(_run_through(control_plane, f"through-{name}", scheduler_name, pods))
                cpu, rss = cpu_seconds(pid) - cpu_before, rss_mib(pid)
            finally:
                recorder.stop()
                operator.stop() if name == "concerto" else control_plane.stop_scheduler()
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
                said += f"; {verdict.assignments} assignments, {len(verdict.violations)} not allowed"
            say(said)
    return figures


async def _run_through(
    control_plane: LocalControlPlane, namespace: str, scheduler: str, pods: int
) -> tuple[float, list[float]]:
    """Seconds until the last pod has succeeded, and each pod's from its start to its end (whole seconds)."""
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await session.create(NAMESPACES.path(), body)
        began = time.monotonic()
        await create_pods(session, namespace, scheduler, pods)
        params = {"fieldSelector": "status.phase!=Succeeded", "limit": "1", "resourceVersion": "0"}
        while (await session.get(PODS.path(namespace), params=params))["items"]:
            if time.monotonic() - began > 400:
                raise TimeoutError("pods are left that have not succeeded after 400 s")
            await asyncio.sleep(0.2)
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
            cpu, writes, began = cpu_seconds(operator.pid), _writes(control_plane), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            figures = {
                "operator_cpu_percent": 100 * (cpu_seconds(operator.pid) - cpu) / took,
                "operator_rss_mib": rss_mib(operator.pid),
                "capacity_and_subspace_writes_per_second": (_writes(control_plane) - writes) / took,
            }
        finally:
            operator.stop()
    say(
        f"  operator {figures['operator_cpu_percent']:.1f} % of a core, {figures['operator_rss_mib']:.0f} MiB; "
        f"{figures['capacity_and_subspace_writes_per_second']:.1f} status writes/s of all agents and the operator"
    )
    return figures


def _writes(control_plane: LocalControlPlane) -> float:
    """Writes of our telemetry kinds that the API server has counted."""
    counted = re.compile(r'apiserver_request_total\{.*resource="(nodecapacities|subspacesnapshots)".*verb="PATCH"')
    lines = control_plane.kubectl("get", "--raw", "/metrics").splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if counted.match(line))


def arrivals(control_plane: LocalControlPlane, nodes: int, per_second: float, pods: int, say: Say) -> dict[str, Any]:
    """Creation-to-bound time at a steady rate of arrivals, for both."""
    say(f"{pods} pods at {per_second:.0f}/s over {nodes} nodes: creation to bound")
    figures: dict[str, Any] = {}
    with hollow_nodes(control_plane, nodes, "--api-only"):
        for name, scheduler_name in (("kube-scheduler", "default-scheduler"), ("concerto", "concerto")):
            operator = operator_process(control_plane, control_plane.logs, "operator-arrivals")
            if name == "concerto":
                operator.start()
                operator.wait_ready()
            else:
                control_plane.start_scheduler()
            time.sleep(3)
            try:
                times = asyncio.run(_arrive(control_plane, f"arrive-{name}", scheduler_name, per_second, pods))
            finally:
                operator.stop() if name == "concerto" else control_plane.stop_scheduler()
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
    bound: dict[str, float] = {}
    async with await Session.open(ClusterConfig.from_kubeconfig(control_plane.kubeconfig)) as session:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await session.create(NAMESPACES.path(), body)
        listed = await session.get(PODS.path(namespace))

        async def follow() -> None:
            params = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
            async with session.stream(PODS.path(namespace), params=params, inactivity_seconds=60) as batches:
                async for lines in batches:
                    for line in lines:
                        found = json.loads(line)["object"]
                        if found.get("spec", {}).get("nodeName"):
                            bound.setdefault(found["metadata"]["name"], time.monotonic())

        async def create(name: str) -> None:
            await session.create(PODS.path(namespace), pod(namespace, name, scheduler))
            created[name] = time.monotonic()

        watch = asyncio.create_task(follow())
        tasks = []
        for index in range(pods):
            tasks.append(asyncio.create_task(create(f"a-{index:05d}")))
            await asyncio.sleep(1.0 / per_second)
        await asyncio.gather(*tasks)
        deadline = time.monotonic() + 60
        while len(bound) < pods and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await remove(session, namespace)
    # A pod may be seen bound before the answer to its creation has come back
    return [max(0.0, bound[name] - at) for name, at in created.items() if name in bound]
