"""A load program that sends requests from a real node's network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters.process import ends_with_us
from e2e.testbed.nodes import RealNode


@contextmanager
def running_load(node: RealNode, module: str, arguments: Sequence[str], lines: list[str]) -> Iterator[None]:
    """Run a load program; at the end, add the lines that it has printed.

    The requests come from the node's network. They are computed outside of the node's cgroup.

    Args:
        node: the node, which runs.
        module: of the program, which prints a first line when it begins, and stops on SIGTERM.
        arguments: for the program.
        lines: gets the other lines that it prints, and a last one: empty, or ``failed`` if its exit status is not 0.
    """
    assert node.init is not None, "its node runs"
    command = ["nsenter", "-t", str(node.init), "-n", "--", sys.executable, "-m", module, *arguments]
    load = subprocess.Popen(ends_with_us(*command), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert load.stdout is not None, "a pipe"
    try:
        load.stdout.readline()
        yield
    finally:
        load.terminate()
        printed, _ = load.communicate()
        lines += printed.splitlines()
        lines += [""] if load.returncode == 0 else ["failed"]
