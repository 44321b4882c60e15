"""Where the files of the node are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class NodeFiles:
    """Where the node's files are, and how often to read the slow ones; the agent's own settings, not the CRD's.

    Attributes:
        scope: ``Machine``: the machine's files; ``Cgroup``: one cgroup's, for nodes that share a machine.
        cgroup: path of the node's cgroup, relative to the hierarchies' roots; "" is the root.
        memory_capacity_bytes: what the node's memory is measured against in scope ``Cgroup``; None: MemTotal.
        proc: where the machine's /proc is seen.
        sys: where the machine's /sys is seen.
        max_gap_seconds: differences of counters over a longer time are dropped.
        slow_period_seconds: how often what changes rarely is read: the CPUs, the usage of the pods that are not
            counted, and every tenth time the neighbours' cpusets.
    """

    scope: Literal["Machine", "Cgroup"] = "Machine"
    cgroup: str = ""
    memory_capacity_bytes: int | None = None
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    max_gap_seconds: float = 2.0
    slow_period_seconds: float = 1.0
