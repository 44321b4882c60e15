"""Operator and agents as child processes with their own service account tokens, never as an administrator."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concerto.controllers.runtime.loop_watchdog import MAX_HELD_SECONDS
from e2e.testbed.clusters import Cluster, ClusterError
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.clusters.process import Child
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

NAMESPACE = "concerto-system"
Wrap = Callable[[Sequence[str]], Sequence[str]]


def concerto_command(*arguments: str) -> list[str]:
    """The `concerto` of this very interpreter."""
    return [sys.executable, "-m", "concerto.cli.main", *arguments]


@dataclass(slots=True)  # an attribute that it does not have is an error, wherever a test sets it
class Process:
    """One of our components as a process that can be killed and started again.

    Attributes:
        name: for messages and its log.
        command: what to run.
        log: its output, over all its starts.
        health: address of its health endpoint, if it has one.
        restarts: it is started again when it ends by itself, as a kubelet would: an operator that loses its Lease, for
            instance, as happens to short Leases on a busy machine.
    """

    name: str
    command: Sequence[str]
    log: Path
    health: str | None = None
    restarts: bool = False
    child: Child | None = field(default=None, repr=False)
    _changing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def start(self, *, outlives_us: bool = False) -> Process:
        """Start it (again); unless ``outlives_us`` it ends with this process."""
        self.child = Child(self.name, self.command, self.log, outlives_us=outlives_us)
        if self.restarts:
            threading.Thread(target=self._keep, args=(self.child,), daemon=True).start()
        return self

    def _keep(self, child: Child) -> None:
        child.process.wait()
        time.sleep(1)  # what can't begin at all is not to keep the machine busy
        with self._changing:
            if self.child is child and not child.stopped_by_us:
                self.start()

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        with self._changing:
            if self.child is not None:
                self.child.kill()

    def stop(self) -> None:
        """SIGTERM, and wait for its end, which may take a busy agent a while: it undoes what it did."""
        with self._changing:
            if self.child is not None:
                self.child.stop(PATIENCE_SECONDS)

    def is_running(self) -> bool:
        """Whether it runs."""
        return self.child is not None and self.child.is_running()

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.child is not None, f"{self.name} was not started"
        return self.child.pid

    def get(self, path: str, timeout_seconds: float = 10.0) -> str:
        """What its HTTP endpoint answers.

        Raises:
            OSError: nothing, or an error.
        """
        with urllib.request.urlopen(f"http://{self.health}{path}", timeout=timeout_seconds) as answer:
            return str(answer.read().decode())

    def max_loop_held_seconds(self) -> float:
        """The longest time that a callback has held the operator's event loop, as its watchdog has measured."""
        name = "concerto_event_loop_max_held_seconds "
        return next(float(line[len(name) :]) for line in self.get("/metrics").splitlines() if line.startswith(name))

    def wait_ready(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Return once /readyz says yes.

        Args:
            seconds: how long that may take.

        Raises:
            ClusterError: it ended; with the end of its log.
            AssertionError: it did not become ready; with its last answer.
        """
        answer = ""

        def ready() -> bool:
            nonlocal answer
            if not self.is_running() and not self.restarts:
                assert self.child is not None
                raise ClusterError(f"{self.name} ended; {self.log}:\n{self.child.log_tail()}")
            try:
                self.get("/readyz")
                return True
            except urllib.error.HTTPError as error:
                answer = error.read().decode()
            except OSError as error:
                answer = str(error)
            return False

        eventually(lambda: f"{self.name} is ready: {answer}; see {self.log}", ready, seconds)


@contextlib.contextmanager
def running_operator(process: Process) -> Iterator[Process]:
    """The operator runs until the context is left; no callback of it may have held up everything else by then."""
    process.start()
    try:
        process.wait_ready()
        yield process
        if process.restarts:
            process.wait_ready()  # on a busy machine it may have lost a short Lease just now, and begun anew
        assert process.max_loop_held_seconds() < MAX_HELD_SECONDS, "a callback held up everything else"
    finally:
        process.stop()


# Shorter than in production: who is killed has a successor soon
QUICK_LEASE = (
    "--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms",
)  # fmt: skip


def operator_process(
    cluster: Cluster, logs: Path, name: str = "operator", extra: Sequence[str] = (), *, restarts: bool = False
) -> Process:
    """An operator that schedules and pins, with the rights of its service account; not started.

    Args:
        cluster: where.
        logs: folder of its log.
        name: for messages and its log.
        extra: further arguments.
        restarts: see `Process`.
    """
    controllers = ("--controllers=scheduling", "--controllers=pinning")
    process = _operator(cluster, logs, "concerto-operator", name, [*controllers, *extra])
    process.restarts = restarts
    return process


def autoscaler_process(cluster: Cluster, logs: Path, extra: Sequence[str] = ()) -> Process:
    """An autoscaler with the rights of its service account; not started."""
    flags = ("--controllers=autoscaling", "--autoscaling-ask-agents")
    return _operator(cluster, logs, "concerto-autoscaler", "autoscaler", [*flags, *extra])


def _operator(cluster: Cluster, logs: Path, account: str, name: str, extra: Sequence[str]) -> Process:
    kubeconfig = cluster.token_kubeconfig(NAMESPACE, account)
    health = f"127.0.0.1:{free_ports(1)[0]}"
    flags = ["--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--bind", health]
    return Process(name, concerto_command("operator", *flags, *extra), logs / f"{name}.log", health)


def agent_process(
    cluster: Cluster,
    logs: Path,
    node: str,
    extra: Sequence[str] = (),
    wrap: Wrap = lambda command: command,
    *,
    serves_metrics: bool = False,
) -> Process:
    """An agent whose token is bound to its Node object; not started.

    Args:
        cluster: where.
        logs: folder of its log.
        node: the node it measures, whose Node object exists.
        extra: further arguments.
        wrap: makes the command run elsewhere (in the node's cgroup, say).
        serves_metrics: whether it serves /metrics and the like, at the process's ``health``.
    """
    kubeconfig = cluster.token_kubeconfig(NAMESPACE, "concerto-agent", bound_node=node)
    # It runs on this machine, wherever its node has its network
    flags = ["--kubeconfig", str(kubeconfig), "--node-name", node, "--pod-metrics-bind", "127.0.0.1:0"]
    health = f"127.0.0.1:{free_ports(1)[0]}" if serves_metrics else None
    flags += ["--metrics-bind", health] if health else []
    command = concerto_command("agent", *flags, *extra)
    return Process(f"agent-{node}", wrap(command), logs / f"agent-{node}.log", health)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def yielding(pid: int) -> Iterator[None]:
    """Meanwhile a process gets a tenth of the CPU time that others want, too.

    The kernel weighs sessions before the processes in them (autogroup): where it does, the process has to be the first
    of its session, as `hollow_nodes` is.
    """
    group = Path(f"/proc/{pid}/autogroup")

    def set_nice(nice: int) -> None:
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        with contextlib.suppress(FileNotFoundError):
            group.write_text(str(nice))

    set_nice(10)
    try:
        yield
    finally:
        set_nice(0)


def rss_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
