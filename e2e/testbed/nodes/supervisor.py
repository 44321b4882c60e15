"""The owner of a run of real nodes: it outlives the process that asked for them just long enough to remove them.

Started by `e2e.testbed.nodes.RealNodes` in a session of its own. It reads one JSON object a line from stdin, first the
plan, then commands, and answers each with one line. End of file means that the asker is gone (killed or done):
everything is removed. After ``{"do": "detach"}`` end of file is ignored and SIGTERM ends the run. Should this process
itself be killed, the kernel kills its nodes (parent-death signal), and the next run's `cleanup_stale` removes the
rest.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.testbed.images import build_base_images
from e2e.testbed.nodes.cgroups import Machine
from e2e.testbed.nodes.cleanup import Claim, claim_any, sweep
from e2e.testbed.nodes.config import NodeSpec, Slot, inner_settings, kubeconfig_for_node, node_files
from e2e.testbed.nodes.requirements import cni_binaries
from e2e.testbed.waiting import PATIENCE_SECONDS

_INNER = Path(__file__).with_name("inner.sh")
_PR_SET_PDEATHSIG = 1
_NAMESPACES = ("--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup")


def _run(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stderr.strip()}")


def _child_of(pid: int, *, timeout: float = PATIENCE_SECONDS) -> int:
    """The PID of ``pid``'s only child, once there is one."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    raise TimeoutError(f"unshare ({pid}) made no child")


class Supervisor:
    """Carries out commands on the nodes of one slot."""

    def __init__(self, claim: Claim, machine: Machine, plan: Mapping[str, Any]) -> None:
        self.claim = claim
        self.slot: Slot = claim.slot
        self.machine = machine
        self.plan = plan
        self.specs = {raw["name"]: NodeSpec(**raw) for raw in plan["nodes"]}
        self.logs = Path(plan["logs"])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.inits: dict[str, int] = {}
        self.libc = ctypes.CDLL(None)
        self.asker = os.getppid()
        self.detached = False

    def prepare(self) -> None:
        """What all nodes of the run share: images and the bridge."""
        self.slot.state.mkdir(parents=True)
        self.images = build_base_images(self.slot.state / "images")
        _run("ip", "link", "add", self.slot.bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.slot.gateway}/24", "dev", self.slot.bridge)
        _run("ip", "link", "set", self.slot.bridge, "up")
        self._record()

    def _record(self) -> None:
        self.claim.record(
            asker=self.asker,
            detached=self.detached,
            work_dir=self.plan["work_dir"],
            nodes={
                name: {"init": pid, "cgroup": self.slot.cgroup(self.specs[name])} for name, pid in self.inits.items()
            },
        )

    def start(self, spec: NodeSpec) -> dict[str, Any]:
        """Brings a node up as far as its first process and its link; kubelet follows by itself."""
        if spec.name in self.processes:
            self.stop(spec, wipe=False)
        state, logs, cgroup = self.slot.node_state(spec), self.logs / spec.name, self.slot.cgroup(spec)
        logs.mkdir(parents=True, exist_ok=True)
        kubeconfig, api_port = kubeconfig_for_node(
            Path(self.plan["kubeconfigs"][spec.name]).read_text(), self.slot.gateway
        )
        files = node_files(
            self.slot,
            spec,
            kubeconfig=kubeconfig,
            client_ca=Path(self.plan["client_ca"]),
            cni_binaries=cni_binaries(),
        )
        files["settings"] = inner_settings(
            self.slot,
            spec,
            kubelet=Path(self.plan["kubelet"]),
            api_port=api_port,
            images=self.images,
            logs=logs,
            hierarchies=self.machine.hierarchies,
            v2_only=self.machine.v2_only,
            containerd=self.plan["containerd"],
        )
        for name, text in files.items():
            (state / name).parent.mkdir(parents=True, exist_ok=True)
            (state / name).write_text(text)
        self.machine.create(cgroup, spec.cpus)
        joins = self.machine.join_files(cgroup)

        def enter() -> None:  # in the child, before unshare: its cgroups become the root of the cgroup namespace
            self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for path in joins:
                path.write_text("0")

        with (logs / "init.log").open("wb") as log:
            process = subprocess.Popen(
                ["unshare", *_NAMESPACES, "--fork", "--kill-child", "bash", _INNER, state / "settings"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=enter,
            )
        self.processes[spec.name] = process
        init = _child_of(process.pid)
        self.inits[spec.name] = init
        self.machine.delegate(cgroup, [process.pid, init])
        _run("ip", "link", "add", self.slot.link(spec), "type", "veth", "peer", "name", "eth0", "netns", str(init))
        _run("ip", "link", "set", self.slot.link(spec), "master", self.slot.bridge, "up")
        _run("ip", "route", "replace", self.slot.pod_cidr(spec.index), "via", self.slot.address(spec.index))
        self._record()
        return {"init": init, "logs": str(logs)}

    def kill(self, spec: NodeSpec) -> dict[str, Any]:
        """Takes the node's power away: every process in it is gone, its Node object and its disk stay."""
        self.machine.kill(self.slot.cgroup(spec))
        self.processes[spec.name].wait(timeout=PATIENCE_SECONDS)
        return {}

    def stop(self, spec: NodeSpec, *, wipe: bool) -> dict[str, Any]:
        """Removes the node; with ``wipe`` its disk and its Node object as well."""
        self.machine.remove(self.slot.cgroup(spec))
        process = self.processes.pop(spec.name, None)
        if process is not None:
            process.wait(timeout=PATIENCE_SECONDS)
        self.inits.pop(spec.name, None)
        subprocess.run(["ip", "link", "del", self.slot.link(spec)], capture_output=True, check=False)
        if wipe:
            shutil.rmtree(self.slot.node_state(spec), ignore_errors=True)
            self._delete_node_objects([spec.name])
        self._record()
        return {}

    def _delete_node_objects(self, names: list[str]) -> None:
        """Best effort: the API server may be gone already."""
        if not names:
            return
        kubectl = [self.plan["kubectl"], "--kubeconfig", self.plan["admin_kubeconfig"], "--request-timeout=30s"]
        subprocess.run(
            [*kubectl, "delete", "node", "--ignore-not-found", "--wait=false", *names],
            capture_output=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def remove_all(self) -> None:
        """Ends every node at once, then their objects."""
        names = list(self.processes)
        sweep(self.slot, self.machine)
        for process in self.processes.values():
            process.wait(timeout=PATIENCE_SECONDS)
        self._delete_node_objects(names)

    def detach(self) -> None:
        """From now on the nodes stay when the asker goes."""
        self.detached = True
        self._record()

    def command(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Does what one line asks for."""
        spec = self.specs.get(request.get("node", ""))
        match request["do"], spec:
            case "start", NodeSpec():
                return self.start(spec)
            case "kill", NodeSpec():
                return self.kill(spec)
            case "stop", NodeSpec():
                return self.stop(spec, wipe=request["wipe"])
        raise ValueError(f"no such command: {request}")


def _answer(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _serve(supervisor: Supervisor) -> None:
    """Answers commands until the asker is gone, or until SIGTERM once detached."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "detach":
            supervisor.detach()
            _answer(ok=True)
            signal.pause()
        try:
            _answer(ok=True, **supervisor.command(request))
        except Exception as error:  # the asker decides what to do; the nodes stay until it is gone
            _answer(ok=False, error=f"{type(error).__name__}: {error}")


def main() -> None:
    """Holds a slot for as long as the asker lives."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    plan = json.loads(sys.stdin.readline())
    machine = Machine()
    with claim_any(machine) as claim:
        supervisor = Supervisor(claim, machine, plan)
        try:
            supervisor.prepare()
            _answer(ok=True, slot=claim.slot.number, pid=os.getpid())
            _serve(supervisor)
        finally:
            # A second signal must not stop the removal halfway.
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            supervisor.remove_all()


if __name__ == "__main__":
    main()
