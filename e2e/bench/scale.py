"""The operator in a large cluster: how soon it decides, what it holds in memory, and what events and pods cost it.

The pods of the cluster are there, bound and running, before the operator starts. Nodes are simulated, and their agents
publish as real ones do. CPU is that of each process: API server, etcd, nodes and operator share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concerto.kube import ClusterConfig, NotFound, OutcomeUnknown, Session
from concerto.kube.resources import LEASES, PODS, REPLICA_SETS
from e2e.bench import scale_pods
from e2e.bench.bound import BoundTimes, bound_times
from e2e.bench.cores import cores_used, in_words
from e2e.bench.pods import wait_for_phase
from e2e.bench.profile import Profiler
from e2e.bench.running import telemetry_writes
from e2e.testbed.clusters import LocalControlPlane, find_binaries
from e2e.testbed.clusters.process import ends_with_us
from e2e.testbed.hollow.settings import CONTROLLER_MANAGER_FLAGS
from e2e.testbed.processes import Process, cpu_seconds, operator_process, rss_mib, yielding
from e2e.testbed.recorder import Recorder
from e2e.testbed.system import REPOSITORY, hollow_nodes, install

Say = Callable[[str], None]

_APISERVER_FLAGS = (
    "--max-requests-inflight=3000",
    "--max-mutating-requests-inflight=1000",
    "--event-ttl=10m",
    "--etcd-compaction-interval=2m",
)
# Without garbage collection and ReplicaSets: owners of pods are names here, and nothing makes or removes pods by itself
_CONTROLLERS = "--controllers=node-lifecycle-controller,serviceaccount-controller,namespace-controller"
_LOADERS = 2
_SETTLE_SECONDS = 20.0


@dataclass(frozen=True)
class Size:
    """What is measured on.

    Attributes:
        nodes: publishing nodes.
        pods: pods that run on them when the operator starts.
        placed: pods that wait when the operator starts.
        flaps: writes to the status of pods, for the intake of events.
        per_second: pods that are created a second.
        arrivals: how many of them in all.
        churn: pods that come, are placed and go.
        seconds: of a cluster in which nothing happens.
    """

    nodes: int
    pods: int
    placed: int
    flaps: int
    per_second: float
    arrivals: int
    churn: int
    seconds: float

    @classmethod
    def of(cls, nodes: int, pods: int) -> Size:
        """The rest in proportion: at 5,000 nodes and 150,000 pods, 10,000 are placed and 100,000 come and go."""
        return cls(nodes, pods, 2 * nodes, min(10_000, pods), 100.0, min(3000, 10 * nodes), 2 * pods // 3, 60.0)


@dataclass
class Run:
    """One run on one control plane.

    Attributes:
        plane: the control plane.
        session: an administrator's.
        size: what is measured on.
        say: takes lines of progress.
        nodes: PID of the process that plays the nodes.
        leader: the operator that leads.
        standby: the other one.
        figures: what was measured so far.
        profiles: whether the leader's time is sampled, which takes CPU itself.
    """

    plane: LocalControlPlane
    session: Session
    size: Size
    say: Say
    nodes: int
    leader: Process
    standby: Process
    figures: dict[str, Any]
    profiles: bool

    @contextlib.contextmanager
    def profiled(self, what: str) -> Iterator[None]:
        """Samples what the leader spends its time on, if that is asked for."""
        if not self.profiles:
            yield
            return
        profiler = Profiler(self.leader.pid, self.plane.work_dir / f"py-spy-{what}.txt")
        try:
            yield
        finally:
            shares = profiler.stop()
            self.figures[f"time_{what}"] = shares
            self.say(f"  where the leader's time goes ({what}):")
            for name, share in shares.items():
                self.say(f"    {100 * share:4.0f} %  {name}")

    def note(self, **figures: float) -> None:
        """Keep figures."""
        self.figures |= figures


def measure(size: Size, say: Say, figures: dict[str, Any], *, profiles: bool = False) -> None:
    """All figures of one size, on a control plane of its own.

    Args:
        size: what is measured on.
        say: takes lines of progress.
        figures: each is put there once it is measured, so that those before an error are not lost.
        profiles: whether to sample what the leader spends its time on.
    """
    flags = (*CONTROLLER_MANAGER_FLAGS, _CONTROLLERS)
    binaries = find_binaries(say)
    with LocalControlPlane(binaries, apiserver_flags=_APISERVER_FLAGS, controller_manager_flags=flags) as plane:
        install(plane)
        for number in range(scale_pods.TEAMS):
            plane.make_namespace(scale_pods.team(number))
        say(f"{size.nodes} simulated nodes whose agents publish what pods cost by kind")
        with hollow_nodes(plane, size.nodes, "--kinds", "--keep", "--cores", "8", "--memory", "32Gi") as nodes:
            _load(plane, size, say)
            asyncio.run(_measure(plane, size, say, figures, nodes=nodes.pid, profiles=profiles))


def _load(plane: LocalControlPlane, size: Size, say: Say) -> None:
    """Create the pods that run already; their nodes' kubelets write that they do."""
    say(f"{size.pods} pods that are bound to them, by {_LOADERS} connections of {scale_pods.IN_FLIGHT} requests")
    asyncio.run(_make_lease_and_owners(plane.kubeconfig))
    began = time.monotonic()
    by_many(plane.kubeconfig, "create", size.nodes, size.pods, say)
    say(f"  created at {size.pods / (time.monotonic() - began):.0f}/s; waiting for the nodes to run them")
    asyncio.run(_all_running(plane.kubeconfig, say))


async def _make_lease_and_owners(kubeconfig: Path) -> None:
    async with await Session.open(ClusterConfig.from_kubeconfig(kubeconfig)) as session:
        # As where an operator has led before. Without its Lease, the policies that fence have the API server ask itself
        # for it at each write of a pod's status
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "concerto-operator"}}
        await session.create(LEASES.path("concerto-system"), lease)
        bodies = [scale_pods.replica_set(number) for number in range(scale_pods.SERVICES)]
        paths = (REPLICA_SETS.path(body["metadata"]["namespace"]) for body in bodies)
        await scale_pods.at_a_time(8, (session.create(path, body) for path, body in zip(paths, bodies)))


async def _all_running(kubeconfig: Path, say: Say) -> None:
    async with await Session.open(ClusterConfig.from_kubeconfig(kubeconfig)) as session:
        began = time.monotonic()
        await wait_for_phase(session, PODS.path(), "Running", 3600, pause_seconds=2)
        say(f"  all of them run, {time.monotonic() - began:.0f} s later")


def by_many(kubeconfig: Path, what: str, nodes: int, count: int, say: Say) -> None:
    """Have `scale_pods` do something to so many of the existing pods, in processes of its own."""
    command = [sys.executable, "-m", "e2e.bench.scale_pods", what, f"--kubeconfig={kubeconfig}", f"--nodes={nodes}"]
    command += [f"--step={_LOADERS}", f"--count={count // _LOADERS}"]
    running = [
        subprocess.Popen(ends_with_us(*command, f"--first={first}"), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        for first in range(_LOADERS)
    ]
    said = 0
    for process in running:
        assert process.stdout is not None
        for _ in process.stdout:
            said += 1
            if said % 10 == 0:
                say(f"  {what}: about {1000 * said * (_LOADERS if process is running[0] else 1)} of {count}")
    if failed := [process.args for process in running if process.wait()]:
        raise RuntimeError(f"{failed[0]} failed")


async def _measure(
    plane: LocalControlPlane, size: Size, say: Say, figures: dict[str, Any], *, nodes: int, profiles: bool
) -> None:
    leader, standby = (operator_process(plane, plane.logs, name) for name in ("leader", "standby"))
    async with await Session.open(ClusterConfig.from_kubeconfig(plane.kubeconfig)) as session:
        run = Run(plane, session, size, say, nodes, leader, standby, figures, profiles)
        try:
            await _start_and_place(run)
            await _start_standby(run)
            await _steady(run)
            await _intake(run)
            await _arrive(run)
            await _churn(run)
            await _judge(run)
        finally:
            standby.stop()
            leader.stop()


async def _make_waiting(run: Run, namespace: str, count: int) -> set[str]:
    bodies = [scale_pods.job_pod(namespace, number) for number in range(count)]
    path = PODS.path(namespace)
    made = (run.session.create(path, body, timeout_seconds=60) for body in bodies)
    await scale_pods.at_a_time(scale_pods.IN_FLIGHT, made)
    return {body["metadata"]["name"] for body in bodies}


async def _start_and_place(run: Run) -> None:
    """From the start of the process to the first and to the last of the pods that wait."""
    size, say = run.size, run.say
    run.plane.make_namespace("backlog")
    names = await _make_waiting(run, "backlog", size.placed)
    say(f"the operator starts, with {size.placed} pods to place")
    async with bound_times(run.session, "backlog") as bound:
        began = time.monotonic()
        run.leader.start()
        # Kubelets and agents are on other machines: they don't take CPU time from an operator that starts
        with yielding(run.nodes), run.profiled("start"):
            while not bound.at and time.monotonic() - began < 600:
                await asyncio.sleep(0.1)
                if not run.leader.is_running():
                    raise RuntimeError(f"the operator ended: {run.leader.log}")
            cpu, rss = cpu_seconds(run.leader.pid), rss_mib(run.leader.pid)
        with run.profiled("placing"):
            left = await bound.wait(names, 1200)
        placed_cpu = cpu_seconds(run.leader.pid) - cpu
        first, last = min(bound.at.values()) - began, max(bound.at.values()) - began
    if left:
        raise TimeoutError(f"{len(left)} of {size.placed} pods are left unbound, {next(iter(left))} for example")
    run.note(
        first_decision_s=first,
        first_decision_cpu_s=cpu,
        first_decision_rss_mib=rss,
        placing_s=last - first,
        placing_cpu_ms_per_pod=1000 * placed_cpu / size.placed,
    )
    say(
        f"  first pod bound after {first:.1f} s ({cpu:.1f} s of CPU, {rss:.0f} MiB); the other {size.placed - 1} "
        f"within {last - first:.1f} s more, {1000 * placed_cpu / size.placed:.2f} ms of CPU a pod"
    )


async def _start_standby(run: Run) -> None:
    run.standby.start()
    await asyncio.to_thread(run.standby.wait_ready, 600.0)
    await asyncio.sleep(_SETTLE_SECONDS)
    _note_memory(run, "started")


def _note_memory(run: Run, when: str) -> None:
    for name, process in (("leader", run.leader), ("standby", run.standby)):
        run.note(**{f"{name}_rss_mib_{when}": rss_mib(process.pid), f"{name}_peak_mib_{when}": peak_mib(process.pid)})
        run.note(**{f"{name}_max_held_s_{when}": process.max_loop_held_seconds()})
    run.say(
        f"  {when}: leader {run.figures[f'leader_rss_mib_{when}']:.0f} MiB "
        f"(at most {run.figures[f'leader_peak_mib_{when}']:.0f}), "
        f"loop held for at most {1000 * run.figures[f'leader_max_held_s_{when}']:.0f} ms; "
        f"standby {run.figures[f'standby_rss_mib_{when}']:.0f} MiB, "
        f"{1000 * run.figures[f'standby_max_held_s_{when}']:.0f} ms"
    )


async def _steady(run: Run) -> None:
    """Nothing happens but what agents publish."""
    run.say(f"nothing to do for {run.size.seconds:.0f} s")
    writes, began = telemetry_writes(run.plane), time.monotonic()
    before = cpu_seconds(run.leader.pid), cpu_seconds(run.standby.pid)
    with run.profiled("steady"):
        await asyncio.sleep(run.size.seconds)
    took = time.monotonic() - began
    leader, standby = (cpu_seconds(p.pid) - b for p, b in zip((run.leader, run.standby), before))
    run.note(
        steady_cpu_cores=leader / took,
        standby_steady_cpu_cores=standby / took,
        telemetry_writes_per_s=(telemetry_writes(run.plane) - writes) / took,
    )
    run.say(
        f"  leader {leader / took:.3f} cores, standby {standby / took:.3f}; "
        f"{run.figures['telemetry_writes_per_s']:.0f} writes/s of the agents"
    )


async def _intake(run: Run) -> None:
    """Many pods change: how many changes the replica that decides nothing takes in while it uses a second of CPU."""
    size, began, before = run.size, time.monotonic(), cpu_seconds(run.standby.pid)
    run.say(f"{size.flaps} pods become unready")
    with run.profiled("intake"):
        await asyncio.to_thread(by_many, run.plane.kubeconfig, "flap", size.nodes, size.flaps, run.say)
        took = time.monotonic() - began
        await asyncio.sleep(5)
    # What it uses for other things counts, too: it is not the same at all times, and may be the greater part
    cpu = cpu_seconds(run.standby.pid) - before
    run.note(events_per_s=size.flaps / took, events_per_cpu_s=size.flaps / cpu)
    run.say(f"  {size.flaps / took:.0f} events/s came; {run.figures['events_per_cpu_s']:.0f} for each second of CPU")


async def _arrive(run: Run) -> None:
    """From the answer to a pod's creation until a watch shows it bound."""
    size = run.size
    run.say(f"{size.arrivals} pods at {size.per_second:.0f}/s")
    run.plane.make_namespace("arrivals")
    path, created = PODS.path("arrivals"), {}
    bodies = [scale_pods.job_pod("arrivals", number) for number in range(size.arrivals)]

    async def create(body: dict[str, Any]) -> None:
        with contextlib.suppress(OutcomeUnknown):  # it is not measured
            await run.session.create(path, body, timeout_seconds=60)
            created[body["metadata"]["name"]] = time.monotonic()

    with cores_used(run.plane.children, nodes=run.nodes, leader=run.leader.pid, standby=run.standby.pid) as cores:
        async with bound_times(run.session, "arrivals") as bound:
            began, tasks = time.monotonic(), []
            for index, body in enumerate(bodies):
                tasks.append(asyncio.create_task(create(body)))
                await asyncio.sleep(max(0.0, began + index / size.per_second - time.monotonic()))
            await asyncio.gather(*tasks)
            rate = size.arrivals / (time.monotonic() - began)
            left = await bound.wait(set(created), 120)
    # A pod may be seen bound before the answer to its creation has come back
    times = sorted(max(0.0, bound.at[name] - at) for name, at in created.items() if name in bound.at)
    p50, p99 = (times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
    run.note(arrivals_per_s=rate, p50_ms=1000 * p50, p99_ms=1000 * p99, arrivals_left=len(left))
    run.say(
        f"  {rate:.0f}/s came; median {1000 * p50:.0f} ms, 99th percentile {1000 * p99:.0f} ms; {len(left)} unbound"
    )
    run.say(f"  cores in use meanwhile: {in_words(cores)}")


async def _judge(run: Run) -> None:
    """An independent recorder, which takes CPU of its own, recomputes each placement of some more pods."""
    count = min(1000, run.size.placed)
    run.say(f"{count} more pods, each placement recomputed by an independent recorder")
    run.plane.make_namespace("judged")
    recorder = Recorder(str(run.plane.kubeconfig))
    await asyncio.to_thread(recorder.start)
    try:
        async with bound_times(run.session, "judged") as bound:
            left = await bound.wait(await _make_waiting(run, "judged", count), 300)
        await asyncio.sleep(2)
    finally:
        await asyncio.to_thread(recorder.stop)
    verdict = await asyncio.to_thread(recorder.verify)
    wrong = [*verdict.violations, *verdict.rebound, *verdict.late]
    run.note(judged=verdict.assignments, judged_by_kind=verdict.by_kind, not_allowed=len(wrong), judged_left=len(left))
    run.say(f"  {verdict.assignments} assignments, {verdict.by_kind} by kind; {len(wrong)} not allowed {wrong[:3]}")


async def _churn(run: Run) -> None:
    """Pods come, are placed, and go; what both replicas hold before and after."""
    size, say = run.size, run.say
    await asyncio.sleep(_SETTLE_SECONDS)
    _note_memory(run, "before")
    say(f"{size.churn} pods come, are placed and go")
    run.plane.make_namespace("churn")
    path, began, cpu, gone = PODS.path("churn"), time.monotonic(), cpu_seconds(run.leader.pid), 0
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}

    async def come_and_go(bound: BoundTimes, number: int) -> None:
        nonlocal gone
        made = scale_pods.job_pod("churn", number)
        name = made["metadata"]["name"]
        with contextlib.suppress(OutcomeUnknown):  # if it is there, it will be bound
            await run.session.create(path, made, timeout_seconds=60)
        await bound.wait_one(name, 300)
        with contextlib.suppress(NotFound):  # deleted by an attempt whose answer was lost
            await run.session.request("DELETE", PODS.path("churn", name), body=body, timeout_seconds=60)
        gone += 1
        if gone % max(1000, size.churn // 20) == 0:
            say(f"  {gone} are gone, {gone / (time.monotonic() - began):.0f}/s")

    async with bound_times(run.session, "churn") as bound:
        await scale_pods.at_a_time(100, (come_and_go(bound, number) for number in range(size.churn)))
    took, cpu = time.monotonic() - began, cpu_seconds(run.leader.pid) - cpu
    run.note(churn_per_s=size.churn / took, churn_cpu_ms_per_pod=1000 * cpu / size.churn)
    await asyncio.sleep(3 * _SETTLE_SECONDS)
    _note_memory(run, "after")
    for name in ("leader", "standby"):
        growth = run.figures[f"{name}_rss_mib_after"] / run.figures[f"{name}_rss_mib_before"] - 1
        run.note(**{f"{name}_growth": growth})
        say(f"  {name}: {100 * growth:+.1f} % of memory after {size.churn} pods came and went")


def peak_mib(pid: int) -> float:
    """The most memory that a process has had resident, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
