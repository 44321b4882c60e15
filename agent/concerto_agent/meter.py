"""What a meter is: one resource of the node, read ten times a second."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from concerto.capacity.node_status import Problem
from concerto_agent.files import KeptFile
from concerto_agent.rates import NAN

_CONTENT_BYTES = 4096


@dataclass(frozen=True)
class Reading:
    """One resource at one instant.

    Attributes:
        usage: fraction of the node, NaN if it was not measured.
        utilisation: what load-aware scores average: for cpu without the pressure, else the same as ``usage``.
        non_pod: the part of it outside the pods that are counted, NaN if it is unknown.
        stolen: of cpu: the part that processes outside of the node took while the node's own waited.
        runnable: of cpu: tasks that run or wait for a CPU now, per CPU; NaN where nobody counts them.
    """

    usage: float
    utilisation: float
    non_pod: float = NAN
    runnable: float = NAN
    stolen: float = 0.0


NOTHING = Reading(NAN, NAN)


class Meter(Protocol):
    """Measures one resource."""

    def files(self) -> list[KeptFile] | None:
        """What `read` reads each time; None if that is not known before."""
        ...

    def read(self, seconds: float, problems: list[Problem]) -> Reading:
        """The resource now.

        Args:
            seconds: time since the last read; 0 if there was none or it is too long ago.
            problems: what is missing is added to it.
        """
        ...

    def close(self) -> None:
        """Give back every descriptor."""
        ...


def pressure_name(file: KeptFile | None) -> str:
    """Subject and verb of the sentence on a pressure file that cannot be read."""
    if file is None:
        return "No cgroup hierarchy (v2 or unified) reports pressure"
    return f"{file.path} reports no pressure"


def content(path: Path) -> bytes | None:
    """What a small file holds (its first 4 KiB); None if it cannot be read, or is no regular file.

    Whoever writes a gauge may put anything in its place: to open a FIFO would wait for a writer, and a device never
    ends.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        return os.read(descriptor, _CONTENT_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
