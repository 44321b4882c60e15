"""Where a process's time goes, by py-spy: shares of what it does, not of functions."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from e2e.testbed.clusters.process import ends_with_us

# The first group one of whose words stands in a sample's frames gets the sample
GROUPS = {
    "imports and start-up": ("importlib", "kopf/_core/reactor/running.py:spawn"),
    "reading the cluster (lists)": ("Reflector._list", "Session.pages"),
    "placement records": ("placement_records.py",),
    "bindings": ("binder.py",),
    "events": ("events.py",),
    "watch events into the cluster state": ("Reflector._watch",),
    "deciding (cycles)": ("Scheduler._decide",),
    "answers, TLS and sockets": ("aiohttp", "ssl", "asyncio", "uvloop"),
}
OTHER = "event loop, TLS and system calls"


class Profiler:
    """Samples a process until `stop`."""

    def __init__(self, pid: int, output: Path) -> None:
        """Begin at once."""
        program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"
        self._output = output
        options = f"--pid {pid} --rate 200 --format raw --threads --duration 600 --output".split()
        self._process = subprocess.Popen(
            ends_with_us(program, "record", *options, str(output)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> dict[str, float]:
        """Shares of the main thread's time by group, largest first."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        return shares(self._output.read_text())


def shares(raw: str) -> dict[str, float]:
    """Shares by group of py-spy's raw format: frames joined by semicolons, and a count."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        frames, _, count = line.rpartition(" ")
        if "MainThread" in frames.split(";", 1)[0]:
            counts[_group(frames)] += int(count)
    total = sum(counts.values()) or 1
    return {name: count / total for name, count in counts.most_common()}


def _group(frames: str) -> str:
    last = frames.rsplit(";", 1)[-1]
    for name, words in GROUPS.items():
        where = last if name == "answers, TLS and sockets" else frames
        if any(word in where for word in words):
            return name
    return OTHER
