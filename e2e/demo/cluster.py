"""`make demo MODE=cluster`: the main job on Concerto installed as its users install it, from images on real nodes."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.text import Text

from e2e.demo.__main__ import KEEP, STATE, conclude, console, say, show, watch_job
from e2e.demo.job import burn_here
from e2e.image.build import CannotBuild, cached
from e2e.testbed import metrics_server
from e2e.testbed.clusters import LocalControlPlane, Unusable, find_binaries
from e2e.testbed.incluster import NAMESPACE, installed_system
from e2e.testbed.recorder import Recorder
from e2e.testbed.system import System, can_run_real_nodes
from e2e.testbed.waiting import eventually


def typed(system: System, *arguments: str) -> None:
    """A command as a person would type it, and what it prints."""
    console.print(Text(f"\n$ kubectl {' '.join(arguments)}", "bold"))
    print(system.cluster.kubectl(*arguments), end="", flush=True)


def top(system: System, control_plane: LocalControlPlane) -> None:
    """`kubectl top`, from the real metrics-server where there is one."""
    try:
        say("kubectl top: metrics-server measures each node twice (30 s)")
        with metrics_server.start(control_plane, say):
            eventually("every node has metrics", lambda: "<unknown>" not in system.cluster.kubectl("top", "nodes"))
            typed(system, "top", "nodes")
            typed(system, "top", "pods", "-n", NAMESPACE)
    except Unusable as error:
        say(f"no kubectl top: {error}", "yellow")


def demo() -> int:
    """Run it; the exit status."""
    if STATE.exists():
        console.print(f"a demo is still running ({STATE}): `make demo-down` ends it")
        return 1
    with ExitStack() as stack:
        images = cached(say)
        job = burn_here()  # measured before anything else runs
        work_dir = Path(tempfile.mkdtemp(prefix="concerto-cluster-")) if KEEP else None
        control_plane = LocalControlPlane(find_binaries(say), work_dir=work_dir, scheduler=True, outlives_us=KEEP)
        possible, reason = can_run_real_nodes(control_plane)
        if not possible:
            say(f"images run on real nodes only: {reason}", "red")
            return 1
        say("control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler (5 s)")
        stack.enter_context(control_plane)
        system = stack.enter_context(installed_system(control_plane, say, images=images))
        typed(system, "get", "pods", "-n", NAMESPACE, "-o", "wide")
        recorder = stack.enter_context(Recorder(str(control_plane.kubeconfig)))
        say("manifests/samples: a Job of 60 CPU-burning pods without requests (about 1-3 min)")
        control_plane.apply(job)
        took, _ = watch_job(system)
        show(system)
        typed(system, "describe", "lease", "concerto-operator", "-n", NAMESPACE)
        top(system, control_plane)
        console.print()
        say(f"the Job of 60 pods took {took:.0f} s")
        say(f"images: {images}")
        return conclude(stack, system, recorder)


def main() -> int:
    """Run it; an interruption (Ctrl-C, SIGTERM) ends everything that was started."""
    argparse.ArgumentParser(prog="python -m e2e.demo.cluster", description=(__doc__ or "").splitlines()[0]).parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return demo()
    except (CannotBuild, subprocess.CalledProcessError) as error:
        say(str(error), "red")
        return 1
    except KeyboardInterrupt:
        say("interrupted: everything that was started has been stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
