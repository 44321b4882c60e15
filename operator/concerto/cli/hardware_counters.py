"""Hardware counters of a command, by the program ``perf`` where the machine has it and its processor has counters."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

EVENTS = ("instructions", "cycles", "LLC-load-misses")
"""Names of perf's events, as perf-list(1) has them."""


def find_perf() -> str | None:
    """Path of perf; None if it is not there, or counts no instructions on this machine (many virtual machines)."""
    perf = shutil.which("perf")
    if perf is None:
        return None
    tried = subprocess.run(
        [perf, "stat", "-x,", "-e", "instructions", "true"], stderr=subprocess.PIPE, text=True, check=False
    )
    return perf if tried.returncode == 0 and parse_perf(tried.stderr) else None


def counted(perf: str, command: Iterable[str], output: Path) -> list[str]:
    """A command line that runs the command, ends as it does, and writes what was counted to ``output``."""
    return [perf, "stat", "-x,", "-o", str(output), "-e", ",".join(EVENTS), "--", *command]


def parse_perf(text: str) -> dict[str, float]:
    """Counts by event, of those that could be counted, from the output of ``perf stat -x,`` (perf-stat(1))."""
    found = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and (event := fields[2].partition(":")[0]) in EVENTS:
            try:
                found[event] = float(fields[0])
            except ValueError:
                continue  # <not supported>, <not counted>
    return found


def describe(counts: Iterable[Mapping[str, float]]) -> str:
    """Instructions a cycle and cache misses, over several runs; empty where too little was counted."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    instructions, cycles, misses = (total[event] for event in EVENTS)
    parts = []
    if instructions and cycles:
        parts.append(f"{instructions / cycles:.2f} instructions a cycle")
    if instructions and "LLC-load-misses" in total:
        parts.append(f"{1000 * misses / instructions:.1f} last-level cache misses per 1,000 instructions")
    return ", ".join(parts)
