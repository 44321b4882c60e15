"""Work of a pod as a shell's loop that takes so much CPU time on this machine; machines differ threefold."""

from __future__ import annotations

import os
import shutil

_STEPS = 100_000
_TRIALS = 3


def loop(steps: int) -> str:
    """A script of so many steps, on one line."""
    return f"i=0; while [ $i -lt {steps} ]; do i=$((i+1)); done"


def steps_per_second() -> float:
    """Steps of the loop in a second of CPU time here, in the shell of the images; the best of three trials (0.5 s).

    Raises:
        FileNotFoundError: there is no busybox on PATH.
    """
    shell = shutil.which("busybox")
    if shell is None:
        raise FileNotFoundError("no busybox on PATH: install the Debian package busybox-static")
    return _STEPS / min(_cpu_seconds(shell) for _ in range(_TRIALS))


def _cpu_seconds(shell: str) -> float:
    process = os.posix_spawn(shell, [shell, "sh", "-c", loop(_STEPS)], os.environ)
    _, status, used = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{shell} ended with status {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime
