"""Where a test has our processes end or stop, to show that nothing is lost there (`concerto.kube.failpoints`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from concerto.kube.failpoints import VARIABLE
from e2e.testbed.processes import Process


@dataclass(frozen=True)
class Failpoint:
    """The file that names the point.

    Attributes:
        file: it is there until a process has reached the point.
    """

    file: Path

    def add_to(self, process: Process) -> None:
        """Have the process read the file from its next start on."""
        process.command = ["env", f"{VARIABLE}={self.file}", *process.command]

    def set(self, point: str, action: str = "kill", times: int = 1) -> None:
        """Have the process that reaches the point first, or so many times, end (``kill``) or stop there (``stop``)."""
        pending = self.file.with_suffix(".new")
        pending.write_text(f"{point} {action} {times}")
        pending.rename(self.file)

    def clear(self) -> None:
        """No process ends or stops any more."""
        self.file.unlink(missing_ok=True)

    def is_reached(self) -> bool:
        """Whether a process has ended or stopped there."""
        return not self.file.exists()
