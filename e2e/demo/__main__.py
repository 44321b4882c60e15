"""`make demo`: the main job on real parts, from nothing to a Job of 60 pods placed by measured capacity.

KEEP=1 leaves everything running and says how to reach and how to end it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pykube
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from e2e.demo.job import burn_here
from e2e.demo.trace import Trace, note
from e2e.testbed.clusters import Cluster, LocalControlPlane, find_binaries
from e2e.testbed.clusters.local import stop_left
from e2e.testbed.clusters.process import stop_pid
from e2e.testbed.pod_cpu import PodCpu
from e2e.testbed.recorder import Recorder
from e2e.testbed.system import REPOSITORY, System, can_run_real_nodes, hollow_system, install, real_system

KEEP = bool(os.environ.get("KEEP"))
STATE = Path(tempfile.gettempdir()) / "concerto-demo.json"
JOB_TIMEOUT_SECONDS = 1800
console = Console()
_began = time.monotonic()


def say(text: str, style: str = "") -> None:
    """A line with the time since the start; brackets in it are shown as they are."""
    at = time.monotonic() - _began
    console.print(f"[dim]{at:6.1f} s[/] ", Text(text, style), highlight=False, soft_wrap=True)


class View:
    """What the table shows, read through pykube-ng."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = pykube.HTTPClient(pykube.KubeConfig.from_file(str(cluster.kubeconfig)), timeout=60)

    def _list(self, version: str, resource: str, **params: str) -> list[dict[str, Any]]:
        response = self._api.get(version=version, url=resource, params=params)
        response.raise_for_status()
        items: list[dict[str, Any]] = response.json()["items"]
        return items

    def look(self) -> tuple[list[list[str]], Counter[str]]:
        """Rows of the table, and the pods of the Job by phase."""
        pods = self._list("v1", "namespaces/default/pods", labelSelector="app=burn")
        capacities = {c["metadata"]["name"]: c for c in self._list("concerto.dev/v1alpha1", "nodecapacities")}
        by_node: dict[str, list[dict[str, Any]]] = {}
        for pod in pods:
            by_node.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        rows = []
        for name in sorted(capacities):
            status = capacities[name].get("status") or {}
            counted = set(status.get("observedPodUIDs") or ())
            here = by_node.get(name, [])
            live = [p for p in here if p["status"].get("phase") in ("Pending", "Running")]
            usage = {r["name"]: r["usage"] for r in status.get("resources") or ()}
            cpu = usage.get("cpu")
            rows.append(
                [
                    name,
                    room(status),
                    str(sum(p["metadata"]["uid"] not in counted for p in live)),
                    str(sum(p["status"].get("phase") == "Running" for p in live)),
                    str(sum(p["status"].get("phase") == "Succeeded" for p in here)),
                    "?" if cpu is None else f"{'█' * round(cpu * 10):<10} {100 * cpu:3.0f} %",
                ]
            )
        return rows, Counter(p["status"].get("phase", "?") if p["spec"].get("nodeName") else "Waiting" for p in pods)


def room(status: dict[str, Any]) -> str:
    """Pods that a node can take by its status, and how many it runs too many."""
    if "capacity" not in status:
        return "?"
    over = float(status.get("excessPods") or 0)
    return f"{status['freePods']:.1f}" + (f" ({over:.1f} too many)" if over >= 0.05 else "")


def table(rows: list[list[str]], phases: Counter[str], seconds: float) -> Table:
    """The live table."""
    counts = ", ".join(f"{n} {phase.lower()}" for phase, n in sorted(phases.items()))
    shown = Table(title=f"Job burn, {seconds:.0f} s: {counts or 'no pods yet'}", title_justify="left")
    for column in ("node", "can take (pods)", "reserved, not counted yet", "running", "succeeded"):
        shown.add_column(column, justify="left" if column == "node" else "right")
    shown.add_column("CPU, pressure", no_wrap=True)
    for row in rows[:20]:
        shown.add_row(*row)
    return shown


def line(rows: list[list[str]], phases: Counter[str]) -> str:
    """The table in a line, for where there is no terminal."""
    nodes = [
        f"{name}: runs {runs}, can take {take} more, CPU {cpu[-5:].strip()}" for name, take, _, runs, _, cpu in rows[:4]
    ]
    counts = ", ".join(f"{phases[p]} {p.lower()}" for p in ("Waiting", "Pending", "Running", "Succeeded") if phases[p])
    return " | ".join([counts, *nodes])


def watch_job(system: System) -> tuple[float, Trace]:
    """Show the Job until it is complete; returns how long that took, in seconds, and what was seen.

    Raises:
        TimeoutError: it is not complete in time.
    """
    view = View(system.cluster)
    began = time.monotonic()
    last_line = 0.0
    trace = Trace()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with ExitStack() as stack:
        if live is not None:
            stack.enter_context(live)
        while True:
            rows, phases = view.look()
            seconds = time.monotonic() - began
            trace.add(seconds, {row[0]: int(row[3]) for row in rows})
            if live is not None:
                live.update(table(rows, phases, seconds), refresh=True)
            elif seconds - last_line >= 5:
                last_line = seconds
                say(line(rows, phases))
            if phases["Succeeded"] >= 60:
                break
            if seconds > JOB_TIMEOUT_SECONDS:
                raise TimeoutError(f"the Job is not complete after {JOB_TIMEOUT_SECONDS} s: {dict(phases)}")
            time.sleep(1)
    if live is None:
        console.print(table(rows, phases, seconds))
    system.cluster.wait("--for=condition=complete", "job/burn")
    return time.monotonic() - began, trace


def show(system: System) -> None:
    """What a user would type now."""

    def typed(*arguments: str, last: int | None = None) -> None:
        console.print(Text(f"\n$ kubectl {' '.join(arguments)}", "bold"))
        lines = system.cluster.kubectl(*arguments).splitlines()
        print("\n".join(lines if last is None else lines[-last:]), flush=True)

    pod = system.cluster.get("pods", "-l", "app=burn")["items"][0]["metadata"]["name"]
    typed("get", "ncap,sub,pres", "-A")
    typed("describe", "ncap", system.node_names[0])
    typed("describe", "pod", pod)


def judge(system: System, recorder: Recorder) -> list[str]:
    """What must hold after the Job; returns what does not."""
    wrong = []
    left = system.wait_no_batches()
    if left:
        wrong.append(f"reservations are left behind: {', '.join(left)}")
    recorder.stop()
    verdict = recorder.verify()
    say(
        f"independent recorder: {verdict.assignments} assignments, {verdict.by_capacity} by measured capacity, "
        f"{len(verdict.violations)} beyond what the node could take; at most in flight at once: "
        + ", ".join(f"{most} on {node}" for node, most in sorted(verdict.max_in_flight.items()))
    )
    wrong += verdict.violations + [f"{name} was bound twice" for name in verdict.rebound] + recorder.gaps
    if difference := system.diff():
        changed = [line[:200] for line in difference.splitlines() if line.startswith(("diff", "+", "-"))]
        wrong.append("\n".join(["applied objects were changed by another writer:", *changed[:40]]))
    else:
        say(f"kubectl diff -k {system.overlay.relative_to(REPOSITORY)}: empty")
    return wrong


def demo() -> int:
    """Run it; the exit status."""
    if STATE.exists():
        console.print(f"a demo is still running ({STATE}): `make demo-down` ends it")
        return 1
    with ExitStack() as stack:
        job = burn_here()  # measured before anything else runs
        work_dir = Path(tempfile.mkdtemp(prefix="concerto-cluster-")) if KEEP else None
        control_plane = LocalControlPlane(find_binaries(say), work_dir=work_dir, outlives_us=KEEP)
        say("control plane: etcd, kube-apiserver, kube-controller-manager (5 s)")
        stack.enter_context(control_plane)
        say("manifests/overlays/local: kinds, rights, policies, the profile `concerto` (5 s)")
        install(control_plane)
        possible, reason = can_run_real_nodes(control_plane)
        if possible:
            system = stack.enter_context(real_system(control_plane, say, outlives_us=KEEP))
        else:
            say(f"simulated nodes instead of real ones: {reason}", "yellow")
            system = stack.enter_context(hollow_system(control_plane, say, 2))
        recorder = stack.enter_context(Recorder(str(control_plane.kubeconfig)))
        say("manifests/samples: a Job of 60 CPU-burning pods without requests (about 1-3 min)")
        pod_cpu = PodCpu(list(system.real)) if system.real else None
        before = pod_cpu.seconds() if pod_cpu else 0.0
        control_plane.apply(job)
        took, trace = watch_job(system)
        if pod_cpu is not None:
            note(trace, pod_cpu.seconds() - before, 60, took)
        show(system)
        console.print()
        say(f"the Job of 60 pods took {took:.0f} s")
        return conclude(stack, system, recorder)


def conclude(stack: ExitStack, system: System, recorder: Recorder) -> int:
    """Judge, say what is wrong, and leave everything running if that was asked for; the exit status."""
    wrong = judge(system, recorder)
    for line in wrong:
        say(f"wrong: {line}", "red")
    if not wrong:
        say("every check passed: each pod was placed once, within measured capacity, and nothing is left behind")
    if KEEP and not wrong:
        leave_running(stack, system)
    return 1 if wrong else 0


def leave_running(stack: ExitStack, system: System) -> None:
    """Let everything go on after us."""
    processes = [p for p in (system.operator, *system.agents.values()) if p is not None]
    state = {
        "work_dir": str(system.cluster.work_dir),
        "pids": [p.pid for p in processes],
        "nodes": system.real.detach() if system.real else None,
    }
    STATE.write_text(json.dumps(state))
    stack.pop_all()
    if system.real is None:
        say("simulated nodes and their operator end with this command: only the control plane goes on", "yellow")
    console.print(f"\nexport KUBECONFIG={system.cluster.kubeconfig}")
    console.print(f"kubectl of the same version: {system.cluster.kubectl_path}\n`make demo-down` ends it.")


def down() -> int:
    """End what KEEP=1 has left running."""
    if not STATE.exists():
        console.print("nothing is running")
        return 0
    if STATE.stat().st_uid != os.getuid():
        console.print(f"{STATE} belongs to another user; the demo that it names is left running")
        return 1
    state = json.loads(STATE.read_text())
    for pid in state["pids"]:
        stop_pid(pid, "concerto.cli.main")
    if state["nodes"]:
        subprocess.run([sys.executable, "-m", "e2e.testbed.nodes", "down"], check=False)
    else:
        stop_left(Path(state["work_dir"]))
    STATE.unlink()
    return 0


def main() -> int:
    """Run or end it; an interruption (Ctrl-C, SIGTERM) ends everything that was started."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("down", nargs="?", choices=["down"], help="end what KEEP=1 has left running")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return down() if wanted.down else demo()
    except KeyboardInterrupt:
        say("interrupted: everything that was started has been stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
