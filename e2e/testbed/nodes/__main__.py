"""Real nodes to play with: ``python -m e2e.testbed.nodes up``, ``list``, ``down``, ``clean``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from e2e.testbed.clusters.binaries import find_or_build
from e2e.testbed.clusters.local import LocalControlPlane, stop_left
from e2e.testbed.nodes.cleanup import cleanup_stale, holders
from e2e.testbed.nodes.config import NODES_PER_SLOT
from e2e.testbed.nodes.real import RealNodes


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def up(arguments: argparse.Namespace) -> None:
    """Starts a control plane and nodes that stay when this command ends."""
    work_dir = Path(tempfile.mkdtemp(prefix="concerto-nodes-"))
    control_plane = LocalControlPlane(
        find_or_build(_say), work_dir=work_dir, scheduler=arguments.scheduler, outlives_us=True
    )
    control_plane.start()
    nodes = RealNodes(control_plane, [f"n{i + 1}" for i in range(arguments.nodes)])
    try:
        nodes.start()
        nodes.wait_ready()
    except BaseException:
        nodes.stop()
        stop_left(work_dir)
        raise
    nodes.detach()
    _say(f"{arguments.nodes} nodes Ready; `python -m e2e.testbed.nodes down` removes them")
    print(f"export KUBECONFIG={control_plane.kubeconfig}")


def list_runs(arguments: argparse.Namespace) -> None:
    """Says which runs of real nodes are up."""
    for slot, facts in holders().items():
        names = ", ".join(facts.get("nodes", {}))
        print(f"slot {slot.number}: nodes {names}; supervisor {facts['pid']}; files in {facts.get('work_dir')}")


def down(arguments: argparse.Namespace) -> None:
    """Ends the runs that ``up`` has left running, and their control planes."""
    for slot, facts in holders().items():
        if not facts.get("detached"):
            continue
        os.kill(facts["pid"], signal.SIGTERM)
        while slot in holders():
            time.sleep(0.05)
        stop_left(Path(facts["work_dir"]))
        _say(f"removed the nodes of slot {slot.number}")


def clean(arguments: argparse.Namespace) -> None:
    """Removes what killed runs have left."""
    for leftover in cleanup_stale():
        _say(f"removed the {leftover}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.testbed.nodes", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("up", help="start a control plane and nodes, and leave them running")
    command.add_argument("--nodes", type=int, default=2, choices=range(1, NODES_PER_SLOT + 1))
    command.add_argument("--scheduler", action="store_true", help="run kube-scheduler as well")
    command.set_defaults(run=up)
    for name, run, text in (
        ("list", list_runs, "which runs are up"),
        ("down", down, "end the runs that `up` has left"),
        ("clean", clean, "remove what killed runs have left"),
    ):
        commands.add_parser(name, help=text).set_defaults(run=run)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
