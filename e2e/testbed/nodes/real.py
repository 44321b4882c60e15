"""Real nodes: kubelet, containerd and runc in namespaces of their own, on the API server of a control plane."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters.local import LocalControlPlane
from e2e.testbed.nodes.cgroups import Machine
from e2e.testbed.nodes.cleanup import cleanup_stale
from e2e.testbed.nodes.config import NodeSpec, Slot, parse_cpus, share_cpus
from e2e.testbed.nodes.requirements import real_nodes_available
from e2e.testbed.started import Started
from e2e.testbed.waiting import PATIENCE_SECONDS

# Left to the machine: the control plane, the operator, the tests.
_MACHINE_SHARE_BYTES = 4 * 1024**3


class NodeError(RuntimeError):
    """A node did not do what it was asked to."""


class RealNode:
    """One node of a `RealNodes` run.

    Attributes:
        spec: its name, CPUs and memory.
        cgroup: its cgroup, relative to the root of each hierarchy (for an agent's ``--scope cgroup``).
        address: its IP address on the bridge.
        init: PID of its first process, while it runs.
    """

    def __init__(self, run: RealNodes, spec: NodeSpec) -> None:
        self._run = run
        self.spec = spec
        self.init: int | None = None
        self._started_at = 0.0
        self.logs = run.logs / spec.name

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def cpus(self) -> list[int]:
        return parse_cpus(self.spec.cpus)

    @property
    def cgroup(self) -> str:
        return self._run.slot.cgroup(self.spec)

    @property
    def address(self) -> str:
        return self._run.slot.address(self.spec.index)

    @property
    def kubelet_flags(self) -> list[str]:
        """Where an agent that runs on the machine finds the files of the node's kubelet."""
        state = self._run.slot.node_state(self.spec)
        files = {"--kubelet-state": "varlib/kubelet/cpu_manager_state", "--kubelet-config": "kubelet.yaml"}
        return [part for flag, path in files.items() for part in (flag, str(state / path))]

    @property
    def nri_socket(self) -> Path:
        """Where the node's containerd takes plugins of NRI, if it is of version 2."""
        return self._run.slot.node_state(self.spec) / "nri" / "nri.sock"

    def restart_containerd(self) -> None:
        """Ends containerd, and has it started again; containers go on running."""
        (self._run.slot.node_state(self.spec) / "again").touch()
        self.exec("pkill", "-x", "containerd")

    def cgroup_path(self, controller: str) -> Path:
        """The node's directory of ``controller`` (``cpuacct``, ``memory``, ``unified``, ...) on the machine."""
        return self._run.machine.controller_path(self.cgroup, controller)

    def start(self) -> None:
        """Starts the node; also a failed or stopped one again, with its disk as it was unless wiped."""
        self._started_at = time.time()
        self.init = self._run.ask(do="start", node=self.name)["init"]

    def kill_init(self) -> None:
        """The node fails as if its power went: all its processes at once, without a word to the API server."""
        self._run.ask(do="kill", node=self.name)
        self.init = None

    def stop(self, *, wipe: bool = True) -> None:
        """Removes the node from the machine; with ``wipe`` its disk and its Node object, too."""
        self._run.ask(do="stop", node=self.name, wipe=wipe)
        self.init = None

    def is_alive(self) -> bool:
        """Whether its first process runs (it ends with containerd or kubelet)."""
        return self.init is not None and Path(f"/proc/{self.init}").exists()

    def is_ready(self) -> bool:
        """Whether the API server has a Ready condition that this very start has written."""
        found = self._run.control_plane.kubectl("get", "node", self.name, "-o", "json", "--ignore-not-found")
        if not found.strip():
            return False
        conditions = json.loads(found)["status"].get("conditions", [])
        ready = next((c for c in conditions if c["type"] == "Ready"), None)
        if ready is None or ready["status"] != "True":
            return False
        heartbeat = datetime.strptime(ready["lastHeartbeatTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        # Heartbeats are in whole seconds.
        return heartbeat.timestamp() >= int(self._started_at)

    def wait_ready(self, timeout: float = PATIENCE_SECONDS) -> None:
        """Returns once the node is Ready.

        Raises:
            NodeError: it ended, or was not Ready in time; the message ends with the ends of its logs.
        """
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if not self.is_alive():
                raise NodeError(f"node {self.name} ended: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise NodeError(f"node {self.name} was not Ready after {timeout:.0f} s: {self.log_tail()}")
            time.sleep(0.25)

    def log_tail(self, lines: int = 5) -> str:
        """The ends of its logs, and where they are."""
        parts = []
        for log in sorted(self.logs.glob("*.log")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"{log}:", *(f"  {line}" for line in tail)]))
        return "\n".join(parts) or f"no logs in {self.logs}"

    def inside(self, argv: Sequence[str]) -> list[str]:
        """``argv`` made to run in all of the node's namespaces (where /run is the node's, and so is containerd)."""
        if self.init is None:
            raise NodeError(f"node {self.name} does not run")
        return ["nsenter", "-t", str(self.init), "-m", "-n", "-u", "-i", "-p", "-C", "--", *argv]

    def exec(self, *argv: str, stdin: IO[bytes] | None = None) -> str:
        """Runs a program inside the node and returns what it prints.

        Raises:
            NodeError: it failed.
        """
        done = subprocess.run(self.inside(argv), stdin=stdin or subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode:
            raise NodeError(f"{' '.join(argv)} on {self.name}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode()

    def in_cgroup(self, argv: Sequence[str]) -> list[str]:
        """``argv`` made to run on the machine but in the node's cgroup, as a daemon of the node would.

        It shares the node's CPUs, counts as the node's own (non-pod) usage, and ends with the node: right for an agent.
        """
        joins = " ".join(map(str, self._run.machine.join_files(self.cgroup)))
        return ["sh", "-c", f'for f in {joins}; do echo $$ >"$f"; done; exec "$@"', "sh", *argv]

    def import_image(self, archive: Path) -> None:
        """Gives the node's containerd a docker-archive."""
        with archive.open("rb") as data:
            self.exec("ctr", "-n", "k8s.io", "images", "import", "-", stdin=data)


class RealNodes(Started):
    """A run of real nodes; a context manager that leaves nothing behind, even when its process is killed.

    Args:
        control_plane: what they join.
        names: the nodes, 1 to 8 of them.
        cpus: a Linux CPU list for each; by default the machine's CPUs are dealt out, disjoint while they last.
        memory_bytes: of each; by default an equal share of what the machine has, less 4 GiB.
        kubelet_config: more KubeletConfiguration fields for all of them.
        containerd: folder of another containerd, its shim and ctr than the machine's.
        logs: where each node's logs go, a folder each; beside the control plane's by default.

    Raises:
        NodeError: real nodes cannot run here; the message says why.
    """

    def __init__(
        self,
        control_plane: LocalControlPlane,
        names: Sequence[str] = ("n1", "n2"),
        *,
        cpus: Sequence[str] | None = None,
        memory_bytes: int | None = None,
        kubelet_config: Mapping[str, Any] | None = None,
        containerd: Path | None = None,
        logs: Path | None = None,
    ) -> None:
        available, reason = real_nodes_available(control_plane.binaries)
        if not available:
            raise NodeError(reason)
        self.control_plane = control_plane
        self.containerd = containerd
        self.logs = logs or control_plane.logs
        self.machine = Machine()
        machine_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        memory = memory_bytes or max(machine_memory - _MACHINE_SHARE_BYTES, machine_memory // 2) // len(names)
        if cpus is None:
            cpus = share_cpus(sorted(os.sched_getaffinity(0)), len(names))
        specs = [
            NodeSpec(name, index, cpus[index], memory, machine_memory, dict(kubelet_config or {}))
            for index, name in enumerate(names)
        ]
        self.nodes = {spec.name: RealNode(self, spec) for spec in specs}
        self._supervisor: subprocess.Popen[str] | None = None
        self.slot = Slot(-1)

    def __iter__(self) -> Iterator[RealNode]:
        return iter(self.nodes.values())

    def __getitem__(self, name: str) -> RealNode:
        return self.nodes[name]

    def start(self) -> None:
        """Removes what killed runs have left, then starts every node; returns before they are Ready."""
        for leftover in cleanup_stale():
            print(f"nodes: removed the {leftover} of an earlier run", file=sys.stderr)
        self.logs.mkdir(parents=True, exist_ok=True)
        control_plane = self.control_plane
        plan = {
            "nodes": [asdict(node.spec) for node in self],
            "kubelet": str(control_plane.binaries / "kubelet"),
            "kubectl": str(control_plane.kubectl_path),
            "containerd": str(self.containerd or ""),
            "client_ca": str(control_plane.ca_file),
            "admin_kubeconfig": str(control_plane.kubeconfig),
            "kubeconfigs": {
                name: str(control_plane.client_kubeconfig(name, f"system:node:{name}", "system:nodes"))
                for name in self.nodes
            },
            "logs": str(self.logs),
            "work_dir": str(control_plane.work_dir),
        }
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "e2e.testbed.nodes.supervisor"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.logs / "nodes-supervisor.log").open("w"),
            text=True,
            start_new_session=True,
        )
        try:
            self.slot = Slot(self._send(plan)["slot"])
            for node in self:
                node.start()
        except BaseException:
            self.stop()
            raise

    def _send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        supervisor = self._supervisor
        if supervisor is None or supervisor.stdin is None or supervisor.stdout is None:
            raise NodeError("the nodes are not started")
        try:
            supervisor.stdin.write(json.dumps(request) + "\n")
            supervisor.stdin.flush()
            answer = supervisor.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise NodeError(f"the nodes' supervisor ended: {self._supervisor_log()}")
        facts = json.loads(answer)
        if not facts.pop("ok"):
            raise NodeError(facts["error"])
        return facts

    def _supervisor_log(self) -> str:
        log = self.logs / "nodes-supervisor.log"
        lines = log.read_text().splitlines()
        return f"{lines[-1] if lines else 'its log is empty'} ({log})"

    def ask(self, **request: Any) -> dict[str, Any]:
        """Has the supervisor carry out one command."""
        return self._send(request)

    def wait_ready(self, timeout: float = PATIENCE_SECONDS) -> None:
        """Returns once every node is Ready; raises NodeError as `RealNode.wait_ready` does."""
        deadline = time.monotonic() + timeout
        for node in self:
            node.wait_ready(max(1.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Ends all nodes and returns once nothing of them is left.

        Raises:
            NodeError: something would not go; `cleanup_stale` tries again.
        """
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is None or supervisor.stdin is None or supervisor.stdout is None:
            return
        supervisor.stdin.close()
        failed = supervisor.wait(timeout=PATIENCE_SECONDS)
        supervisor.stdout.close()
        for node in self:
            node.init = None
        if failed:
            raise NodeError(f"the nodes were not removed: {self._supervisor_log()}")

    def detach(self) -> int:
        """Leaves the nodes running after this process; returns the PID whose SIGTERM removes them."""
        self.ask(do="detach")
        supervisor, self._supervisor = self._supervisor, None
        assert supervisor is not None
        return supervisor.pid
