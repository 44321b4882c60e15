"""How tests are dealt out to the processes of `-n`: what computes fills the time that suites with real parts wait.

A suite in `e2e/` waits for a third of its time: for leases to run out, for pods to end, for a controller to look again.
With three processes or more, the last one runs what is outside of `e2e/` first, and yields its CPU to all others.
Suites are for it only when nothing else is left: the longest, which have nodes, have ended or begun by then.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SUITES = "e2e/"
_NICE = 5
"""A third of the CPU time that others want, too: its tests have patience, but not without end."""


def fills(worker_id: str, workers: int) -> bool:
    """Whether this process of `-n` runs what computes, while others run suites.

    Args:
        worker_id: ``gw0`` and so on.
        workers: how many there were at the start.
    """
    return workers > 2 and worker_id == f"gw{workers - 1}"


def yield_to_others() -> None:
    """Have this process run where the others leave a CPU idle, or with a third of their right.

    The kernel weighs sessions before the processes in them (autogroup), so this becomes one of its own.
    """
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # it leads a session; or the kernel has no groups
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(_NICE))


class Spread(LoadFileScheduling):
    """Whole files in the order of the collection; one process takes those outside of `e2e/` first."""

    _has_filled = False

    def _fills(self, node: WorkerController) -> bool:
        return fills(node.gateway.id, self.numnodes)

    def _next_for(self, node: WorkerController) -> str | None:
        if not self._fills(node):
            return next(iter(self.workqueue), None)
        for file in self.workqueue:
            if not file.startswith(SUITES):
                self._has_filled = True
                return file
        # a control plane of its own is not worth its start for the last few
        return next(iter(self.workqueue)) if self._has_filled and len(self.workqueue) > self.numnodes else None

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_for(node)
        if file is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        # what a process has last runs only once it knows that nothing follows
        if self.workqueue and not node.shutting_down and self._next_for(node) is None:
            node.shutdown()
            return
        super()._reschedule(node)


def scheduler(config: pytest.Config, log: object) -> Spread | None:
    """For `--dist loadfile`; for other ways of dealing out, xdist's own."""
    return Spread(config, log) if config.getvalue("dist") == "loadfile" else None
